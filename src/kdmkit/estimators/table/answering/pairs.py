"""The probability that one column is below, equal to or above another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kdmkit._core.checks import bad_argument
from kdmkit.distributions.event_text import Pair
from kdmkit.distributions.events import Box
from kdmkit.estimators.table.column import Column
from kdmkit.estimators.table.presence import PRESENT
from kdmkit.kernels import Interval, OneOf, Region
from kdmkit.kernels.regions import intersection

if TYPE_CHECKING:
    from kdmkit.estimators.table.answering.engine import TableEngine

# A column with at most this many values is summed over; others are cut into cells.
_MOST_VALUES, _CELLS = 20_000, 4096


def pair_share(engine: TableEngine, pair: Pair, signs: Region, rest: Box) -> float:
    """P(the sign of left − right lies in a region | conditions on other columns).

    Where a cell is missing there is no sign: the outcome is `Missing`.

    If one of the columns has at most 20,000 values, it is a sum over them, exact. Otherwise the range is cut
    into 4,096 cells at quantiles: within a cell both orders count alike, which is exact to about 1e-6.
    """
    left, right = (engine.column("event", name) for name in pair)
    check_comparable(left, right)
    values, flipped = listed_values(engine, left), False
    if values is None:
        values, flipped = listed_values(engine, right), True
    if values is not None:
        below, equal = _summed(engine, (right, left) if flipped else (left, right), values, rest)
    else:
        below, equal = _in_cells(engine, left, right, rest)
        flipped = False
    both = _share_of_both(engine, (left, right), rest)
    above = max(0.0, both - below - equal)
    below, above = (above, below) if flipped else (below, above)
    shares = {-1: below, 0: equal, 1: above, None: 1.0 - both}
    return float(np.clip(sum(share for sign, share in shares.items() if sign in signs), 0.0, 1.0))


def _share_of_both(engine: TableEngine, columns: tuple[Column, Column], rest: Box) -> float:
    """P(both cells are there | conditions)."""
    if all(column.presence is None for column in columns):
        return 1.0
    here = rest
    for column in columns:
        here = _narrowed(here, column, PRESENT)
    return float(engine.conditional([here], rest)[0])


def check_comparable(left: Column, right: Column) -> None:
    """Raises unless two columns are numbers, dates, times, or levels of one order."""
    kinds = [_kind(column) for column in (left, right)]
    if kinds[0] is None or kinds[0] != kinds[1]:
        wanted = "two columns of numbers, of dates, of times, or of the same ordered levels"
        got = f"{left.name!r} ({left.kind}) and {right.name!r} ({right.kind})"
        raise ValueError(bad_argument("event", wanted, got))


def _kind(column: Column) -> Any:
    codec = column.codec
    if codec.numeric or column.kind in ("date", "time"):
        return "number" if codec.numeric else column.kind
    return tuple(codec.levels or ()) if codec.ordered else None


def listed_values(engine: TableEngine, column: Column) -> list[Any] | None:
    """The values of a column on a grid between its extreme quantiles; None if they are many, or no grid."""
    if column.codec.levels is not None:
        return list(column.codec.levels)
    return column.codec.listed(*engine.extremes(column), _MOST_VALUES)


def _summed(
    engine: TableEngine, columns: tuple[Column, Column], values: list[Any], rest: Box
) -> tuple[float, float]:
    """P(first < second) and P(first = second) as sums over the values of the first."""
    first, second = columns
    above, same = [], []
    for value in values:
        here = _narrowed(rest, first, OneOf([value]))
        above.append(_narrowed(here, second, Interval(value, None, "neither")))
        same.append(_narrowed(here, second, OneOf([value])))
    probs = engine.conditional(above + same, rest)
    return float(probs[: len(values)].sum()), float(probs[len(values) :].sum())


def _in_cells(engine: TableEngine, left: Column, right: Column, rest: Box) -> tuple[float, float]:
    """P(left < right) and P(left = right) of numbers without a short list of values."""
    edges = np.unique(np.concatenate([engine.edges(column, _CELLS) for column in (left, right)]))
    atoms = sorted({atom for column in (left, right) for atom in column.codec.atoms})
    ends = sorted({*edges.tolist(), *atoms})
    above, same, single = [], [], []
    for low, high in zip([None, *ends], [*ends, None], strict=True):
        cell = Interval(low, high, "neither")
        here = _narrowed(rest, left, cell)
        if high is not None:
            above.append(_narrowed(here, right, Interval(high, None)))
        same.append(_narrowed(here, right, cell))
    for end in ends:
        here = _narrowed(rest, left, OneOf([end]))
        above.append(_narrowed(here, right, Interval(end, None, "neither")))
        single.append(_narrowed(here, right, OneOf([end])))
    probs = engine.conditional([*above, *same, *single], rest)
    strict, within, equal = np.split(probs, [len(above), len(above) + len(same)])
    return float(strict.sum() + 0.5 * within.sum()), float(equal.sum())


def _narrowed(box: Box, column: Column, values: Region) -> Box:
    """A box in which a column also lies in a region of its values."""
    region = values if values is PRESENT else column.codec.read(values)
    return {**box, column.name: intersection([box[column.name], region]) if column.name in box else region}
