"""The probability that one column is below, equal to or above another one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.distributions.event_inference import EventEvidence
from kdmkit.distributions.events import Box
from kdmkit.estimators.table.answering.instants import Instants, compare_instants, time_signs
from kdmkit.estimators.table.codecs.dates import DateCodec
from kdmkit.estimators.table.codecs.times import TimeCodec
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
# A list of values that leaves out more is made anew.
_LEFT_OUT = 1e-6


class Comparison:
    """Two columns that are compared, in rows that have both cells.

    Dates and times are compared digit by digit. Of other columns, if one has at most 20,000 values,
    probabilities are sums over them, exact. Otherwise the range is cut at 1,023 quantiles of each, at knots
    and at atoms. Within a cell both orders count alike: the error is about 1e-6.

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
        below, equal, above = self._shares_by_prior() or self._shares_of_signs()
        shares = {-1: below, 0: equal, 1: above}
        return float(np.clip(sum(share for sign, share in shares.items() if sign in signs), 0.0, 1.0))

    def _shares_by_prior(self) -> list[float] | None:
        """P(left < right), P(left = right) and P(left > right) as sums over values that are usual without
        evidence; None unless these are columns of numbers, and nearly all of the values.

        Tables of pairs of components without evidence about the columns are kept.
        """
        names, engine = (*self.left.variables, *self.right.variables), self.engine
        if not self._are_numbers:
            return None
        if names not in engine.signs:
            prior = Comparison(engine, self.left, self.right, engine.joint)
            first, second, values = prior._shorter()
            tables = [] if values is None else prior._signs(first, second, np.array(values, dtype=float))
            engine.signs[names] = first is self.right, values, tables
        is_flipped, values, tables = engine.signs[names]
        if values is None:
            return None
        first, second = (self.right, self.left) if is_flipped else (self.left, self.right)
        if any(self.rho.kernels[name] is not engine.joint.kernels[name] for name in names):
            tables = self._signs(first, second, np.array(values, dtype=float))
        shares = self._shares(first, second, tables)
        shares = shares[::-1] if is_flipped else shares
        return shares if sum(shares) > 1 - _LEFT_OUT else None

    def _shares_of_signs(self) -> list[float]:
        """P(left < right), P(left = right) and P(left > right)."""
        if all(isinstance(column.codec, DateCodec | TimeCodec) for column in (self.left, self.right)):
            return self._of_instants()
        first, second, values = self._shorter()
        if values is None:
            return self._in_cells()
        if self._are_numbers:
            shares = self._shares(first, second, self._signs(first, second, np.array(values, dtype=float)))
        else:
            shares = self._summed(values, first, second)
        return shares if first is self.left else shares[::-1]

    @property
    def _are_numbers(self) -> bool:
        return self.left.codec.number_part is not None and self.right.codec.number_part is not None

    def _shorter(self) -> tuple[Column, Column, list[Any] | None]:
        """The columns, the one with the shorter list of values first, and this list."""
        left, right = self._listed(self.left), self._listed(self.right)
        if right is not None and (left is None or len(right) < len(left)):
            return self.right, self.left, right
        return self.left, self.right, left

    def _listed(self, column: Column) -> list[Any] | None:
        """The values of a column on a grid that it may have; None if they are many, or no grid."""
        if column.codec.levels is not None:
            return list(column.codec.levels)
        low, high = self._quantiles(column, [_LEAST, 1 - _LEAST])
        return column.codec.listed(low, high, _MOST_VALUES)

    def _quantiles(self, column: Column, levels: list[float]) -> Any:
        if self.rho is self.engine.joint:
            return self.engine.prior(column).quantile(levels)
        return self.engine.posterior_of(column, self.rho.marginal(*column.variables)).quantile(levels)

    def _signs(self, first: Column, second: Column, values: np.ndarray) -> list[Tensor]:
        """P(first < second), P(first = second) and P(first > second) for every pair of components."""
        signs = [torch.zeros((), dtype=torch.float64)] * 3
        for rows in slices(len(values), _ROWS):
            some = values[rows]
            at = self._between(first, some, some).exp().mT
            signs[0] = signs[0] + at @ self._between(second, some, np.inf, "neither").exp()
            signs[1] = signs[1] + at @ self._between(second, some, some).exp()
            signs[2] = signs[2] + at @ self._between(second, -np.inf, some, "neither").exp()
        return signs

    def _shares(self, first: Column, second: Column, tables: Sequence[Float[Tensor, "m k"]]) -> list[float]:
        """Averages of tables over the pairs of components."""
        both = self.rho._pairs_given(first.variables[0], second.variables[0], {})
        return [float((both * table).sum()) for table in tables]

    def _summed(self, values: list[Any], first: Column, second: Column) -> list[float]:
        """P(first < second), P(first = second) and P(first > second) as sums over the first's values."""
        n = len(values)
        after: list[Pairs] = [{first: OneOf([v]), second: Interval(v, None, "neither")} for v in values]
        probs = self._probs(after + [{first: OneOf([v]), second: OneOf([v])} for v in values])
        return _with_rest(float(probs[:n].sum()), float(probs[n:].sum()))

    def _of_instants(self) -> list[float]:
        """P(left < right), P(left = right) and P(left > right) of dates or times.

        Tables of pairs of components without evidence about times of day are kept.
        """
        left, right = (Instants(column, self.rho) for column in (self.left, self.right))

        def signs() -> Sequence[Tensor]:
            names, kept = (left.time, right.time), self.engine.signs
            if any(self.rho.kernels[name] is not self.engine.joint.kernels[name] for name in names):
                return time_signs(left, right)
            if names not in kept:
                kept[names] = time_signs(left, right)
            tables: Sequence[Tensor] = kept[names]
            return tables

        return compare_instants(left, right, signs)

    def _in_cells(self) -> list[float]:
        """P(left < right), P(left = right) and P(left > right) of numbers without a short list of values."""
        left, right = self.left, self.right
        levels = (np.arange(1, _CELLS) / _CELLS).tolist()
        every = {end for c in (left, right) for end in (*self._quantiles(c, levels), *c.codec.breaks)}
        ends = np.array(sorted(every), dtype=float)
        starts, stops = np.r_[-np.inf, ends], np.r_[ends, np.inf]
        cells = self._between(left, starts, stops, "neither").exp().mT
        tables = [
            cells[:, :-1] @ self._between(right, ends, np.inf).exp(),
            cells @ self._between(right, starts, stops, "neither").exp(),
            cells[:, 1:] @ self._between(right, -np.inf, ends).exp(),
        ]
        signs = self._shares(left, right, [*tables, *self._signs(left, right, ends)])
        less, within, more, *at_ends = signs
        return [less + 0.5 * within + at_ends[0], at_ends[1], more + 0.5 * within + at_ends[2]]

    def _between(self, column: Column, low: Any, high: Any, closed: Closed = "both") -> Float[Tensor, "n m"]:
        """The log masses that the components of a column of numbers have in ranges."""
        (name,), part = column.variables, column.codec.number_part
        assert part is not None
        kernel, components = self.rho.kernels[name], self.rho.components[name]
        ends: Sequence[np.ndarray] = np.broadcast_arrays(low, high)
        if part.step:  # cells of the grid
            sides = (closed == "neither", closed == "both")
            ends = [part.edges(one, after) for one, after in zip(ends, sides, strict=True)]
            ends, closed = [ends[0], np.maximum(*ends)], "left"  # between two values there is no cell
        first, last = [torch.from_numpy((end - part.shift) / part.scale).unsqueeze(-1) for end in ends]
        return kernel.log_mass(Interval(first, last, closed), components).double()

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
