"""The search for sums, products and orders between columns of numbers, with their support."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from kdmkit.estimators.table.expressions import (
    WHOLE_STEP,
    Constant,
    Expression,
    Operation,
    Reference,
    is_linear,
    linear,
)
from kdmkit.estimators.table.rule_search import NumberView

# Nats by which a rule explains the rows better than chance does, beside the logarithm of what was tried.
_FEWEST_NATS = 30.0
# In a row of independent cells an order must fail with this probability.
_LEAST_OVERLAP = 0.105
# Rows of a rule, and distinct values of what is computed.
_FEWEST_ROWS, _FEWEST_VALUES = 20, 10
# Rows in which a part of a sum is not 0.
_FEWEST_PARTS = 10
# Rows by which formulas are guessed before all rows are looked at, and by which chance is measured.
_FIRST_ROWS, _CHANCE_ROWS, _FEW_ROWS = 1000, 200, 16
# Parts of a sum, digits of a coefficient, columns that are looked at.
_MOST_PARTS, _DIGITS, _MOST_COLUMNS = 10, 4, 100
# How far a coefficient that is fitted to rounded numbers may lie from a simple one.
_SLACKS = (0.05, 0.001)


# ---- orders


def find_orders(views: Sequence[NumberView]) -> list[tuple[str, str]]:
    """Pairs (low, high) of columns whose order no row breaks, though chance would.

    Rows are compared with rows of independent cells: then at least a tenth would break the order. Orders that
    follow from two others are left out.
    """
    margin = _FEWEST_NATS + math.log(max(1, len(views) ** 2))
    holds: dict[tuple[str, str], bool] = {}
    for low, high in itertools.permutations(views, 2):
        there = ~np.isnan(low.numbers) & ~np.isnan(high.numbers)
        a, b = low.numbers[there], high.numbers[there]
        if len(a) < _FEWEST_ROWS or (a > b).any() or (a == b).all():
            continue
        share = np.searchsorted(np.sort(b), a, side="left").mean() / len(b)
        holds[low.name, high.name] = share >= _LEAST_OVERLAP and -len(a) * math.log1p(-share) >= margin
    between = {low: [high for other, high in holds if other == low] for low, _ in holds}
    return [
        (low, high)
        for (low, high), is_supported in holds.items()
        if is_supported and not any(holds[low, mid] and holds.get((mid, high)) for mid in between[low])
    ]


# ---- sums and products


def find_formulas(views: Sequence[NumberView]) -> dict[str, Expression]:
    """The formulas by which all rows compute a column from others, up to the rounding of all of them.

    Sums of multiples of columns come first, then products and quotients. No formula is circular.
    """
    views, rows = _complete(views[:_MOST_COLUMNS])
    if not len(rows):
        return {}
    views = [view for view in sorted(views, key=lambda v: v.size) if np.ptp(view.numbers[rows]) > 0]
    search = _Search({view.name: view for view in views}, rows)
    formulas: dict[str, Expression] = {}
    totals: dict[str, dict[str, float]] = {}
    basis: list[str] = []
    for view in views:
        parts = search.parts_of(view, basis)
        if parts is None:
            basis.append(view.name)
            continue
        totals[view.name] = parts
        formulas[view.name] = search.shortened(view, parts, totals)
    for name in search.by_fineness(basis):
        for expression in search.products(name):
            if not _depends(name, expression.names, formulas):
                formulas[name] = expression
                break
    return formulas


def _complete(views: Sequence[NumberView]) -> tuple[list[NumberView], np.ndarray]:
    """The columns with the fewest missing cells, and the rows in which all of them are there."""
    views = sorted(views, key=lambda view: int(np.isnan(view.numbers).sum()))
    n = len(views[0].numbers) if views else 0
    there, chosen = np.ones(n, bool), []
    for view in views:
        both = there & ~np.isnan(view.numbers)
        if both.sum() >= max(_FEWEST_ROWS, 0.25 * n):
            there = both
            chosen.append(view)
    return chosen, np.flatnonzero(there)


def _depends(name: str, others: Collection[str], formulas: Mapping[str, Expression]) -> bool:
    """Whether some columns are computed from a column, or that column is computed already."""
    if name in formulas or name in others:
        return True
    return any(_depends(name, formulas[other].names, formulas) for other in others if other in formulas)


class _Logarithms(NamedTuple):
    """Logarithms of columns of positive numbers in a few rows, `(columns, rows)`, and their errors."""

    names: list[str]
    logs: np.ndarray
    errors: np.ndarray


class _Search:
    def __init__(self, views: Mapping[str, NumberView], rows: np.ndarray) -> None:
        self.views = views
        self.all = {name: view.numbers[rows] for name, view in views.items()}
        first = np.random.default_rng(0).permutation(len(rows))[:_FIRST_ROWS]
        self.first = {name: numbers[first] for name, numbers in self.all.items()}
        self.n_tried = len(views) ** 3

    # ---- sums

    def parts_of(self, view: NumberView, basis: Sequence[str]) -> dict[str, float] | None:
        """The multiples of columns of a basis whose sum a column is."""
        target = self.first[view.name]
        if len(np.unique(target)) < _FEWEST_VALUES or 3 * (len(basis) + 1) > len(target):
            return None
        names = [name for name in basis if np.count_nonzero(self.all[name]) >= _FEWEST_PARTS]
        scales = np.array([max(float(np.abs(self.first[name]).max()), 1e-300) for name in names])
        while names:
            matrix = np.stack([self.first[name] for name in names], 1) / scales
            solution, *_ = np.linalg.lstsq(matrix, target, rcond=None)
            with np.errstate(over="ignore"):
                coefficients = solution / scales
            if not np.isfinite(coefficients).all():
                return None
            off = np.abs(matrix @ solution - target)
            if (off > self._allowed(view, dict(zip(names, coefficients, strict=True)), wide=True)).any():
                return None
            # What adds less than rounding is no part.
            adds = np.abs(solution)  # columns are scaled to at most 1
            least = max(0.6 * view.half_step, 3 * off.max(), 1e-6 * np.abs(target).max())
            is_part = adds > least
            if is_part.all():
                break
            names = [name for name, keep in zip(names, is_part, strict=True) if keep]
            scales = scales[is_part]
        if not names or len(names) > _MOST_PARTS:
            return None
        for slack in _SLACKS:
            parts = {name: _nice(size, slack) for name, size in zip(names, coefficients, strict=True)}
            if self._holds(view, linear(parts)):
                return parts
        return None

    def shortened(
        self, view: NumberView, parts: dict[str, float], totals: Mapping[str, dict[str, float]]
    ) -> Expression:
        """A sum in which other sums stand for their parts, the largest columns first."""
        parts = dict(parts)
        for name, others in sorted(totals.items(), key=lambda pair: -len(pair[1])):
            share = {parts.get(other, 0.0) / size for other, size in others.items()}
            if name == view.name or len(others) < 2 or len(share) > 1 or share == {0.0}:
                continue
            shorter = {n: size for n, size in parts.items() if n not in others} | {name: share.pop()}
            if self._holds(view, self._sum(shorter)):
                parts = shorter
        return self._sum(parts)

    def _sum(self, parts: Mapping[str, float]) -> Expression:
        return linear(dict(sorted(parts.items(), key=lambda pair: -abs(pair[1]) * self.views[pair[0]].size)))

    def _allowed(self, view: NumberView, parts: Mapping[str, float], *, wide: bool = False) -> Any:
        rounded = sum(abs(size) * self.views[name].half_step for name, size in parts.items())
        exact = 1e-6 * float(np.abs(self.first[view.name]).max())
        return (2 if wide else 1.001) * (view.half_step + rounded) + exact

    def _holds(self, view: NumberView, expression: Expression) -> bool:
        """Whether all rows keep a formula, and chance would not."""
        if not expression.names:
            return False
        target, value = self.all[view.name], expression.value(self.all)
        tolerance = np.full(len(target), view.half_step)
        for name in expression.names:
            step = self.views[name].half_step
            if step and (step < WHOLE_STEP or is_linear(expression)):
                moved = {**self.all, name: self.all[name] + step}
                tolerance = tolerance + np.abs(expression.value(moved) - value)
        tolerance = tolerance * (1 + 1e-6) + 1e-6 * np.maximum(np.abs(target), np.abs(value))
        if not bool(np.isfinite(value).all() and (np.abs(value - target) <= tolerance).all()):
            return False
        rows = np.random.default_rng(1).permutation(len(target))[:_CHANCE_ROWS]
        _, once = np.unique(value[rows], return_index=True)
        rows = rows[once]
        near = np.abs(target[rows][:, None] - value[rows]) <= tolerance[rows]
        nats = -np.log(near.mean(0)).sum()
        return bool(nats >= _FEWEST_NATS + math.log(self.n_tried))

    # ---- products and quotients

    @cached_property
    def _positive(self) -> _Logarithms | None:
        """The columns of positive numbers in some rows in which rounding counts little."""
        positive = [name for name in self.views if (self.all[name] >= 0).all()]
        while positive:
            there = np.stack([self.first[name] > 0 for name in positive])
            if there.all(0).sum() >= _FEW_ROWS:
                break
            positive.pop(int(there.sum(1).argmin()))
        if len(positive) < 3:
            return None
        places = np.flatnonzero(there.all(0))
        numbers = np.stack([self.first[name][places] for name in positive])
        errors = np.array([[self.views[name].half_step] for name in positive]) / numbers
        best = np.argsort(errors.max(0), kind="stable")[: max(_FEW_ROWS, len(places) // 2)]
        rows = best[:: max(1, len(best) // _FEW_ROWS)]
        return _Logarithms(positive, np.log(numbers[:, rows]), errors[:, rows])

    def by_fineness(self, names: Sequence[str]) -> list[str]:
        """The columns among some that may be products, the one that is recorded most finely first."""
        if self._positive is None:
            return []
        error = dict(zip(self._positive.names, self._positive.errors.max(-1).tolist(), strict=True))
        fine = [n for n in names if n in error and len(np.unique(self.first[n])) >= _FEWEST_VALUES]
        return sorted(fine, key=lambda name: error[name])

    def products(self, name: str) -> Iterator[Expression]:
        """Quotients and products of two others, times a number, that a column is."""
        assert self._positive is not None
        names, logs, errors = self._positive
        i = names.index(name)
        is_whole = np.array([[self.views[other].half_step >= WHOLE_STEP] for other in names])
        parts = np.where(is_whole, 0.0, errors)
        for sign in "/*":
            other = logs if sign == "*" else -logs
            factor = logs[i] - logs[:, None] - other
            allowed = 2.2 * (errors[i] + parts[:, None] + parts).max(-1) + 2e-6
            for j, k in np.argwhere(np.ptp(factor, -1) <= allowed).tolist():
                is_alone = any(np.ptp(logs[i] - logs[m]) <= 2e-6 for m in (j, k))
                if i in (j, k) or j == k or is_alone or (sign == "*" and j > k):
                    continue
                size = _nice(math.exp(float(np.median(factor[j, k]))), _SLACKS[-1])
                product = Operation(sign, self._multiple(size, names[j]), Reference(names[k]))
                if self._holds(self.views[name], product):
                    yield product

    @staticmethod
    def _multiple(size: float, name: str) -> Expression:
        return Reference(name) if size == 1 else Operation("*", Constant(size), Reference(name))


def _nice(size: float, slack: float) -> float:
    """The simplest coefficient near a number: a few digits, or one part of a whole number."""
    size = float(size)
    part = 1 / size
    if 1.5 < abs(part) < 60.5 and abs(part - round(part)) < slack * abs(part):
        return 1 / round(part)
    decimals = _DIGITS - 1 - math.floor(math.log10(abs(size)))
    for digits in range(decimals - _DIGITS + 1, decimals):
        if abs(round(size, digits) - size) <= slack * abs(size):
            return round(size, digits)
    return round(size, decimals)
