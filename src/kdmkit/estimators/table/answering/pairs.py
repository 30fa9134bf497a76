"""The probability that one column is below, equal to or above another one."""

from __future__ import annotations

import itertools
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from kdmkit._core.checks import bad_argument
from kdmkit.distributions.event_inference import EventEvidence
from kdmkit.distributions.events import Box
from kdmkit.estimators.table.column import Column
from kdmkit.kernels import Interval, OneOf, Region

if TYPE_CHECKING:
    from kdmkit.estimators.table.answering.engine import TableEngine

#: Regions of values of two columns.
Pairs = dict[Column, Region]

# A column with at most this many values is summed over; others are cut into cells.
_MOST_VALUES, _CELLS = 20_000, 1024
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
        kinds = [_kind(column) for column in (left, right)]
        if kinds[0] is None or kinds[0] != kinds[1]:
            wanted = "two columns of numbers, of dates, of times, or of the same ordered levels"
            got = f"{left.name!r} ({left.kind}) and {right.name!r} ({right.kind})"
            raise ValueError(bad_argument("event", wanted, got))
        self.engine, self.left, self.right, self.rho = engine, left, right, rho

    def probability(self, signs: Region) -> float:
        """P(the sign of left − right lies in a region)."""
        values, flipped = self._listed(self.left), False
        if values is None:
            values, flipped = self._listed(self.right), True
        if values is None:
            (below, equal), flipped = self._in_cells(), False
        else:
            below, equal = self._summed(
                values, *(self.right, self.left) if flipped else (self.left, self.right)
            )
        above = max(0.0, 1.0 - below - equal)
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

    def _summed(self, values: list[Any], first: Column, second: Column) -> tuple[float, float]:
        """P(first < second) and P(first = second) as sums over the values of the first."""
        n = len(values)
        above: list[Pairs] = [{first: OneOf([v]), second: Interval(v, None, "neither")} for v in values]
        probs = self._probs(above + [{first: OneOf([v]), second: OneOf([v])} for v in values])
        return float(probs[:n].sum()), float(probs[n:].sum())

    def _in_cells(self) -> tuple[float, float]:
        """P(left < right) and P(left = right) of numbers without a short list of values."""
        left, right = self.left, self.right
        levels = (np.arange(1, _CELLS) / _CELLS).tolist()
        ends = sorted({end for c in (left, right) for end in (*self._quantiles(c, levels), *c.codec.breaks)})
        cells: list[Region] = [Interval(*pair, "neither") for pair in pairwise([None, *ends, None])]
        above: list[Pairs] = [
            {left: cell, right: Interval(end, None)} for cell, end in zip(cells, ends, strict=False)
        ]
        above += [{left: OneOf([end]), right: Interval(end, None, "neither")} for end in ends]
        same: list[Pairs] = [{left: cell, right: cell} for cell in cells]
        single: list[Pairs] = [{left: OneOf([end]), right: OneOf([end])} for end in ends]
        probs = self._probs([*above, *same, *single])
        strict, within, equal = np.split(probs, [len(above), len(above) + len(same)])
        return float(strict.sum() + 0.5 * within.sum()), float(equal.sum())

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


def _kind(column: Column) -> Any:
    codec = column.codec
    if codec.numeric or column.kind in ("date", "time"):
        return "number" if codec.numeric else column.kind
    return tuple(codec.levels or ()) if codec.ordered else None
