"""The probability that one column is below, equal to or above another one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit._core.logspace import finite_max
from kdmkit.distributions.event_inference import EventEvidence
from kdmkit.distributions.events import Box
from kdmkit.estimators.table.column import Column
from kdmkit.kernels import Interval, OneOf, Region
from kdmkit.kernels.regions import Closed
from kdmkit.ops.blocks import slices

if TYPE_CHECKING:
    from kdmkit.estimators.table.answering.engine import TableEngine

#: Regions of values of two columns.
Pairs = dict[Column, Region]

# A column with at most this many values is summed over; others are cut into cells.
_MOST_VALUES, _CELLS = 20_000, 1024
# Values that are summed over at once.
_ROWS = 4096
# Tails that a comparison of two columns leaves out.
_LEAST = 1e-9


class Comparison:
    """Two columns that are compared, in rows that have both cells.

    If one of them has at most 20,000 values, probabilities are sums over them, exact. Otherwise the range is
    cut at 1,023 quantiles of each, at knots and at atoms. Within a cell both orders count alike: the error is
    about 1e-6.

    Args:
        engine: the fitted table.
        left, right: the columns: both of numbers, of dates, of times, or of levels of one order.
        rho: the joint distribution of their variables.
    """

    def __init__(self, engine: TableEngine, left: Column, right: Column, rho: Any) -> None:
        kinds = [column.order_kind for column in (left, right)]
        if kinds[0] is None or kinds[0] != kinds[1]:
            wanted = "two columns of numbers, of dates, of times, or of the same ordered levels"
            got = f"{left.name!r} ({left.kind}) and {right.name!r} ({right.kind})"
            raise ValueError(bad_argument("event", wanted, got))
        self.engine, self.left, self.right, self.rho = engine, left, right, rho

    def probability(self, signs: Region) -> float:
        """P(the sign of left − right lies in a region)."""
        left, right = self._listed(self.left), self._listed(self.right)
        flipped = right is not None and (left is None or len(right) < len(left))
        values = right if flipped else left
        first, second = (self.right, self.left) if flipped else (self.left, self.right)
        if values is None:
            below, equal, above = self._in_cells()
        elif first.codec.number_part is not None and second.codec.number_part is not None:
            below, equal, above = self._at_numbers(first, second, np.array(values, dtype=float))
        else:
            below, equal, above = self._summed(values, first, second)
        below, above = (above, below) if flipped else (below, above)
        shares = {-1: below, 0: equal, 1: above}
        return float(np.clip(sum(share for sign, share in shares.items() if sign in signs), 0.0, 1.0))

    def _listed(self, column: Column) -> list[Any] | None:
        """The values of a column on a grid that it may have; None if they are many, or no grid."""
        if column.codec.levels is not None:
            return list(column.codec.levels)
        low, high = self._quantiles(column, [_LEAST, 1 - _LEAST])
        return column.codec.listed(low, high, _MOST_VALUES)

    def _quantiles(self, column: Column, levels: list[float]) -> Any:
        if self.engine.has_digits(column):
            return self.engine.prior(column).quantile(levels)
        return self.engine.posterior_of(column, self.rho.marginal(*column.variables)).quantile(levels)

    def _summed(self, values: list[Any], first: Column, second: Column) -> list[float]:
        """P(first < second), P(first = second) and P(first > second) as sums over the first's values."""
        n = len(values)
        after: list[Pairs] = [{first: OneOf([v]), second: Interval(v, None, "neither")} for v in values]
        probs = self._probs(after + [{first: OneOf([v]), second: OneOf([v])} for v in values])
        return _with_rest(float(probs[:n].sum()), float(probs[n:].sum()))

    def _at_numbers(self, first: Column, second: Column, values: np.ndarray) -> list[float]:
        """`_summed` for columns of numbers."""
        below, above = (np.full_like(values, -np.inf), values), (values, np.full_like(values, np.inf))
        masses = [
            self._between(second, *above, "neither"),
            self._between(second, values, values),
            self._between(second, *below, "neither"),
        ]
        return self._shares(first, second, self._between(first, values, values), *masses)

    def _in_cells(self) -> list[float]:
        """P(left < right), P(left = right) and P(left > right) of columns without a short list of values."""
        left, right = self.left, self.right
        levels = (np.arange(1, _CELLS) / _CELLS).tolist()
        ends = sorted({end for c in (left, right) for end in (*self._quantiles(c, levels), *c.codec.breaks)})
        if left.codec.number_part is not None and right.codec.number_part is not None:
            return self._in_cells_of_numbers(np.array(ends, dtype=float))
        cells: list[Region] = [Interval(*pair, "neither") for pair in pairwise([None, *ends, None])]
        above: list[Pairs] = [
            {left: cell, right: Interval(end, None)} for cell, end in zip(cells, ends, strict=False)
        ]
        above += [{left: OneOf([end]), right: Interval(end, None, "neither")} for end in ends]
        same: list[Pairs] = [{left: cell, right: cell} for cell in cells]
        single: list[Pairs] = [{left: OneOf([end]), right: OneOf([end])} for end in ends]
        probs = self._probs([*above, *same, *single])
        strict, within, equal = np.split(probs, [len(above), len(above) + len(same)])
        return _with_rest(float(strict.sum() + 0.5 * within.sum()), float(equal.sum()))

    def _in_cells_of_numbers(self, ends: np.ndarray) -> list[float]:
        left, right = self.left, self.right
        starts, stops = np.r_[-np.inf, ends], np.r_[ends, np.inf]
        above, below = self._between(right, ends, np.inf), self._between(right, -np.inf, ends)
        never = torch.full_like(above[:1], -torch.inf)
        masses = [torch.cat([above, never]), self._between(right, starts, stops, "neither")]
        cells = self._between(left, starts, stops, "neither")
        less, within, more = self._shares(left, right, cells, *masses, torch.cat([never, below]))
        at_ends = self._at_numbers(left, right, ends)
        return [less + 0.5 * within + at_ends[0], at_ends[1], more + 0.5 * within + at_ends[2]]

    def _between(self, column: Column, low: Any, high: Any, closed: Closed = "both") -> Float[Tensor, "n m"]:
        """The log masses that the components of a column of numbers have in ranges."""
        (name,), part = column.variables, column.codec.number_part
        assert part is not None
        kernel, components = self.rho.kernels[name], self.rho.components[name]
        ends: Sequence[np.ndarray] = np.broadcast_arrays(low, high)
        if part.step:  # cells of the grid
            sides = (closed == "neither", closed == "both")
            ends = [
                np.array([part.edge(end, after) for end in one])
                for one, after in zip(ends, sides, strict=True)
            ]
            closed = "left"
        first, last = [torch.from_numpy((end - part.shift) / part.scale).unsqueeze(-1) for end in ends]
        return kernel.log_mass(Interval(first, last, closed), components).double()

    def _shares(
        self, first: Column, second: Column, masses: Float[Tensor, "n m"], *others: Float[Tensor, "n m"]
    ) -> list[float]:
        """Σ_i P(first in range i, second in range i) for ranges of the second, by their log masses."""
        totals = [0.0] * len(others)
        for rows in slices(len(masses), _ROWS):
            top = finite_max(masses[rows])
            relative = (masses[rows] - top).to(self.rho.components[first.variables[0]])
            case = {first.variables[0]: (relative, top.squeeze(-1))}
            weights, log_mass = self.rho._weights_given(second.variables[0], case)
            both = (weights.double() + log_mass.double().unsqueeze(-1)).exp()
            totals = [
                total + float((both * one[rows].exp()).sum())
                for total, one in zip(totals, others, strict=True)
            ]
        return totals

    def _probs(self, pairs: list[Pairs]) -> np.ndarray:
        """The probabilities of regions of values of both columns."""
        parts = [(i, one) for i, pair in enumerate(pairs) for one in self._boxes(pair)]
        total = np.zeros(len(pairs))
        if parts:
            logs = EventEvidence(self.rho, [one for _, one in parts]).log_masses().cpu().numpy()
            np.add.at(total, [i for i, _ in parts], np.exp(logs))
        return total

    def _boxes(self, pair: Pairs) -> list[Box]:
        """Boxes of variables; none if a region is empty."""
        parts = [column.value_boxes(column.codec.read(values)) for column, values in pair.items()]
        return [{**one, **other} for one, other in itertools.product(*parts)]


def _with_rest(below: float, equal: float) -> list[float]:
    return [below, equal, max(0.0, 1.0 - below - equal)]
