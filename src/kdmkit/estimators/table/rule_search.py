"""The search for rules between columns, with their support: what chance and keys explain is no rule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from kdmkit.estimators.table.codecs.analysis import code_part
from kdmkit.estimators.table.codecs.functions import GONE, DerivedCodec, fit_steps
from kdmkit.estimators.table.codecs.number_lists import CodePart
from kdmkit.estimators.table.codecs.numbers import NumberCodec
from kdmkit.estimators.table.codecs.parts import NumberPart
from kdmkit.estimators.table.column import Column
from kdmkit.estimators.table.frames.storage import RawColumn

# Rows of each level of the finer column, on average: a key determines everything and means nothing.
_ROWS_PER_LEVEL = 3
# Rows that repeat a level of the finer column with another value than the commonest of the coarser one.
_FEWEST_REPEATS = 10
# Nats by which a function explains the rows better than chance does, beside the logarithm of all pairs.
_FEWEST_NATS = 25.0
# Numbers with fewer rows for each are no identifiers. Functions of other numbers are bands: at most this many
# runs for each level, with at least this many rows.
_ROWS_PER_NUMBER, _RUNS_PER_LEVEL, _ROWS_PER_RUN = 20, 2, 10
# The gap at a cut is at most the first number times the mean gap of the neighbouring numbers, whose count is
# the second.
_WIDEST_GAP, _NEIGHBOURS = 3.0, 10
# Pairs are looked at in this many rows first.
_FIRST_ROWS = 2000
# A coarser column has at most this many levels.
_MOST_LEVELS = 2000


@dataclass(frozen=True)
class View:
    """One column of the rows of a fit, as the search sees it.

    Attributes:
        column: the column.
        outcomes: NaN where the cell is missing.
    """

    column: Column
    outcomes: np.ndarray

    @cached_property
    def _coded(self) -> tuple[np.ndarray, np.ndarray]:
        distinct, codes = np.unique(self.outcomes, return_inverse=True, equal_nan=True)
        return distinct, codes.reshape(-1)

    @property
    def codes(self) -> np.ndarray:
        """A code for every distinct outcome, a missing cell among them."""
        return self._coded[1]

    @property
    def n_levels(self) -> int:
        return len(self._coded[0])

    @property
    def numbers(self) -> np.ndarray:
        """The number of every code, of a numeric column; NaN for a missing cell."""
        outcomes, part = self._coded[0], getattr(self.column.codec, "part", None)
        if isinstance(part, NumberPart) or part is None or part.values is None:
            return outcomes
        places = np.where(np.isnan(outcomes), 0, outcomes).astype(np.int64)
        return np.where(np.isnan(outcomes), np.nan, np.array(part.values)[places])

    @cached_property
    def counts(self) -> np.ndarray:
        """The number of rows of every code."""
        return np.bincount(self.codes, minlength=self.n_levels)

    @property
    def is_number(self) -> bool:
        """Whether the outcomes are numbers rather than levels."""
        return isinstance(self.column.codec.number_part, NumberPart)

    def edge(self, number: float) -> float:
        """The edge between outcomes that is nearest below a number between two of them."""
        part = self.column.codec.number_part
        if part is None or not isinstance(part, NumberPart):
            return math.floor(number) + 0.5
        return part.edge(number, False) if part.step else number


@dataclass(frozen=True)
class NumberView:
    """A column of numbers, as the search for formulas sees it.

    Attributes:
        numbers: NaN where the cell is missing.
        half_step: half a unit of its last decimal; 0 if its numbers are not rounded.
    """

    name: str
    numbers: np.ndarray
    half_step: float

    @property
    def size(self) -> float:
        """The mean of the absolute values."""
        return float(np.nanmean(np.abs(self.numbers)))


def views_of(columns: Mapping[str, Column], raw: Mapping[str, RawColumn]) -> dict[str, View]:
    """The columns that may be part of a function: those of levels and of numbers, with one variable."""
    return {
        name: view_of(column, raw[name])
        for name, column in columns.items()
        if len(column.variables) == 1 and column.kind not in ("date", "time")
    }


def view_of(column: Column, cells: RawColumn) -> View:
    """One column as the search sees it."""
    outcomes = np.full(len(cells.values), np.nan)
    encoded = column.codec.encode(cells)
    here = encoded.observed.numpy()
    outcomes[here] = column.codec.outcomes_of(cells.values[here])
    return View(column, outcomes)


# ---- functions


def find_functions(views: Mapping[str, View]) -> list[tuple[str, str]]:
    """Pairs of a finer and a coarser column, which is a function of it in all rows."""
    every = [view for view in views.values() if view.n_levels > 1]
    if not every:
        return []
    n = len(every[0].outcomes)
    margin = _FEWEST_NATS + math.log(len(every) ** 2)
    first = np.random.default_rng(0).permutation(n)[:_FIRST_ROWS]
    some = {view.column.name: view.codes[first] for view in every}
    coarse = [view for view in every if view.n_levels <= min(_MOST_LEVELS, n / _ROWS_PER_LEVEL)]
    return [
        (fine.column.name, view.column.name)
        for fine in every
        if fine.is_number or fine.n_levels <= n / _ROWS_PER_LEVEL
        for view in coarse
        if view is not fine
        and fine.n_levels >= view.n_levels
        and not exceptions(some[fine.column.name], some[view.column.name])
        and not exceptions(fine.codes, view.codes)
        and _is_supported(fine, view, margin)
    ]


def exceptions(fine: np.ndarray, coarse: np.ndarray) -> int:
    """How many rows have another value than most rows with their finer value."""
    width = int(coarse.max()) + 1
    pairs, counts = np.unique(fine * width + coarse, return_counts=True)
    most = np.zeros(int(fine.max()) + 1, dtype=np.int64)
    np.maximum.at(most, pairs // width, counts)
    return len(fine) - int(most.sum())


def _is_supported(fine: View, coarse: View, margin: float) -> bool:
    """Whether chance, or values that hardly repeat, do not explain a function."""
    counts, n = fine.counts, len(fine.codes)
    commonest = np.argmax(coarse.counts)
    value = np.zeros(fine.n_levels, dtype=np.int64)
    value[fine.codes] = coarse.codes
    if fine.column.codec.numeric:
        starts = np.flatnonzero(np.diff(value, prepend=-1))
        if len(starts) <= _RUNS_PER_LEVEL * coarse.n_levels:  # bands
            counts, value = np.add.reduceat(counts, starts), value[starts]
            if n < _ROWS_PER_RUN * len(starts) or not _touch(fine.numbers, starts[1:]):
                return False
        elif n < _ROWS_PER_NUMBER * fine.n_levels:
            return False
    repeats = (counts - 1)[value != commonest].sum()
    if repeats < _FEWEST_REPEATS:
        return False
    log_shares = np.log(coarse.counts[coarse.counts > 0] / n)
    sizes, how_often = np.unique(counts, return_counts=True)
    nats = -(how_often * np.logaddexp.reduce(sizes[:, None] * log_shares, axis=1)).sum()
    return bool(nats >= margin)


def _touch(numbers: np.ndarray, starts: np.ndarray) -> bool:
    """Whether bands of numbers touch: beside every cut there are numbers as near as elsewhere.

    Groups that lie apart, such as small and large animals, are no bands.
    """
    numbers = numbers[~np.isnan(numbers)]
    gaps = np.diff(numbers)
    for start in starts[starts < len(numbers)].tolist():
        sides = gaps[max(0, start - 1 - _NEIGHBOURS) : start - 1], gaps[start : start + _NEIGHBOURS]
        usual = max((float(side.mean()) for side in sides if len(side)), default=0.0)
        if gaps[start - 1] > _WIDEST_GAP * usual:
            return False
    return True


def choose_sources(pairs: Sequence[tuple[str, str]], views: Mapping[str, View]) -> dict[str, str]:
    """For each derived column, the column that the model holds in its place.

    Of columns that determine each other the model holds the one of texts or levels.
    """
    determined: dict[str, list[str]] = {}
    for fine, coarse in pairs:
        determined.setdefault(coarse, []).append(fine)

    def rank(name: str) -> tuple[Any, ...]:
        # With exceptions, or missing cells, a finer column may have fewer levels.
        finer = [fine for fine in determined.get(name, ()) if name not in determined.get(fine, ())]
        return (len(finer), *_rank(views[name]))

    sources: dict[str, str] = {}
    roots: list[str] = []
    for name in sorted(views, key=rank):
        finer = [root for root in roots if root in determined.get(name, ())]
        if finer:
            sources[name] = min(finer, key=lambda root: views[root].n_levels)
        else:
            roots.append(name)
    return sources


def nearest_pairs(pairs: Sequence[tuple[str, str]], views: Mapping[str, View]) -> list[tuple[str, str]]:
    """The functions that do not follow from others: zip → city and city → state, not zip → state.

    Of columns that determine each other the first one stands for all.
    """
    holds = set(pairs)
    same = {a: [b for b in views if a == b or {(a, b), (b, a)} <= holds] for a in views}
    first = {a: min(names, key=lambda name: _rank(views[name])) for a, names in same.items()}

    def follows(fine: str, coarse: str) -> bool:
        if first[fine] == first[coarse]:
            return first[fine] not in (fine, coarse)
        if (fine, coarse) != (first[fine], first[coarse]):
            return True
        others = {first[name] for name in views} - {fine, coarse}
        return any({(fine, between), (between, coarse)} <= holds for between in others)

    return [pair for pair in pairs if not follows(*pair)]


def _rank(view: View) -> tuple[Any, ...]:
    """Finer columns come first; of columns as fine as each other levels, then texts."""
    return (-view.n_levels, view.is_number, view.column.codec.numeric)


def derived_column(view: View, fine: View, is_outcome: bool) -> Column:
    """A column as a function of a finer one.

    Args:
        is_outcome: whether missing cells are outcomes.
    """
    column = view.column
    inner = _levels_codec(column.codec, view.outcomes)
    is_code = column.codec.levels is not None
    numbered = view.outcomes if is_code else np.searchsorted(inner.part.numbers, view.outcomes)
    codes = np.where(np.isnan(view.outcomes), GONE, numbered).astype(np.int64)
    used = is_outcome | ((codes != GONE) & ~np.isnan(fine.outcomes))
    steps, broken = fit_steps(fine.outcomes[used], codes[used], fine.edge)
    n, k = int(used.sum()), int(broken.sum())
    codec = DerivedCodec(inner, fine.column.codec, steps, (k + 0.5) / (n + 1))
    return replace(
        column,
        codec=codec,
        details=codec.describe(),
        why=f"{column.why}; a function of {fine.column.name!r}",
        variables=fine.column.variables,
        presence=None,
        source=fine.column.name,
        code=column.variables[0],
    )


def _levels_codec(codec: Any, outcomes: np.ndarray) -> Any:
    """The codec of a coarser column: numbers become levels."""
    if not isinstance(codec, NumberCodec) or isinstance(codec.part, CodePart):
        return codec
    listed = codec.part.values
    numbers = np.unique(outcomes[~np.isnan(outcomes)]) if listed is None else np.array(listed)
    part = code_part(numbers, len(outcomes))
    return NumberCodec(codec.name, codec.kind, codec.base, part, share=codec.share, writing=codec.writing)
