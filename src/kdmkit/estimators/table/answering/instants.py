"""The probability that a date or a time is before, at or after another one, digit by digit.

Dates are compared by their days first: those of one column are listed, and a day of the other one is later
if its first digits are equal and the next one is greater. Where days are equal, times of day are compared for
every pair of components.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.logspace import finite_max
from kdmkit.estimators.table.answering.digit_quantiles import first_reached
from kdmkit.estimators.table.codecs.calendar import DAY, Calendar
from kdmkit.estimators.table.codecs.dates import DateCodec
from kdmkit.estimators.table.codecs.number_lists import ListPart
from kdmkit.estimators.table.codecs.parts import NumberPart, Part
from kdmkit.estimators.table.codecs.times import TimeCodec
from kdmkit.estimators.table.column import Column
from kdmkit.kernels import Interval
from kdmkit.ops.blocks import slices

#: Evidence by variable, in the form of scores: the rows are cases.
Case = dict[str, tuple[Float[Tensor, "n m"], Float[Tensor, " n"]]]
#: P(less), P(equal) and P(greater) for every pair of components.
Signs = list[Float[Tensor, "m k"]]

# Tails of days that are left out.
_LEAST = 1e-9
# Rows of evidence that are answered together.
_ROWS = 4096
# Times of day share cells if their clocks have more units than this.
_CELLS = 4320


class _Digit(NamedTuple):
    """Log-masses of the values of a digit, in the form of scores of evidence.

    Attributes:
        low: the first value.
        at, after: of every value and of all greater ones, each as its difference from the largest one.
    """

    low: int
    at: tuple[Float[Tensor, "n m"], Float[Tensor, " n"]]
    after: tuple[Float[Tensor, "n m"], Float[Tensor, " n"]]


class Instants:
    """A column of dates or of times of day.

    Args:
        rho: the joint distribution of its variables and those of another column.
    """

    def __init__(self, column: Column, rho: Any) -> None:
        codec = column.codec
        assert isinstance(codec, DateCodec | TimeCodec)
        self.calendar: Calendar | None = codec.calendar if isinstance(codec, DateCodec) else None
        self.clock = codec.calendar.clock if isinstance(codec, DateCodec) else codec.clock
        n_days = len(codec.parts) - bool(self.clock)
        self.rho, self.days = rho, column.variables[:n_days]
        self.time = column.variables[-1] if self.clock else None
        self._parts = dict(zip(column.variables, codec.parts, strict=True))
        self.range = self._range(codec) if n_days else (0, 0)

    def _range(self, codec: Any) -> tuple[int, int]:
        """The values of the first digit that are not in the tails."""
        name, rho = self.days[0], self.rho
        first = rho.marginal(name)
        levels = (_LEAST, 1 - _LEAST)
        low, high = (
            first_reached(self._parts[name], [(1.0, first)], level, *codec.digit_range())[0]
            for level in levels
        )
        return low, high

    @property
    def n_days(self) -> int:
        """The number of days, months or years in the range."""
        return (self.range[1] - self.range[0] + 1) * math.prod(self._sizes)

    @property
    def _sizes(self) -> tuple[int, ...]:
        return () if self.calendar is None else self.calendar.sizes[1 : len(self.days)]

    def listed_days(self) -> np.ndarray:
        """The digits of all days in the range, a row for each digit."""
        digits = np.indices((self.n_days // math.prod(self._sizes), *self._sizes)).reshape(len(self.days), -1)
        digits[0] += self.range[0]
        return digits

    def digits(self) -> dict[str, _Digit]:
        """The digits of days. The first one has a value more at both ends of the range."""
        first, last = self.range
        ends = [(first - 1, last + 1), *[(0, size - 1) for size in self._sizes]]
        return {name: self._digit(name, *pair) for name, pair in zip(self.days, ends, strict=True)}

    def _digit(self, name: str, low: int, high: int) -> _Digit:
        below = self.below(name, np.arange(low, high + 2))
        return _Digit(low, _scores(below.diff(dim=0)), _scores(1 - below[1:]))

    def below(self, name: str, counts: np.ndarray) -> Float[Tensor, "n m"]:
        """P_j(digit < count)."""
        part, kernel, components = self._parts[name], self.rho.kernels[name], self.rho.components[name]
        components = components.double() if components.is_floating_point() else components
        if isinstance(part, ListPart):
            return _below_in_list(part, kernel, components, counts)
        if isinstance(part, NumberPart):
            ends = (part.edges(counts.astype(np.float64), after=False) - part.shift) / part.scale
            start = np.full_like(ends, -np.inf)
        else:
            ends, start = counts - 0.5, np.full(len(counts), -0.5)
        low, high = (torch.from_numpy(end).unsqueeze(-1).to(components.device) for end in (start, ends))
        reached = kernel.log_mass(Interval(low, high, "left"), components).double().exp()
        return torch.where(high <= low, 0.0, reached)

    def times(self, ends: np.ndarray) -> Float[Tensor, "n m"]:
        """P_j(time of day < end), of ends in microseconds."""
        assert self.time is not None
        return self.below(self.time, -(-ends // self.clock))


def _below_in_list(part: Part, kernel: Any, components: Tensor, counts: np.ndarray) -> Float[Tensor, "n m"]:
    regions = [part.trimmed(part.outcomes(Interval(None, float(count), "neither"))) for count in counts]
    inside = [i for i, region in enumerate(regions) if not (region.is_empty or region.is_whole)]
    whole = torch.tensor([[float(region.is_whole)] for region in regions], dtype=torch.float64)
    reached = whole.repeat(1, len(components)).to(components.device)
    if inside:
        masses = kernel.log_mass([part.kernel_region(regions[i]) for i in inside], components)
        reached[inside] = masses.double().exp()
    return reached


def _scores(masses: Float[Tensor, "n m"]) -> tuple[Float[Tensor, "n m"], Float[Tensor, " n"]]:
    logs = masses.clamp_min(0.0).log()
    top = finite_max(logs)
    return logs - top, top.squeeze(-1)


def compare_instants(left: Instants, right: Instants, signs: Any) -> list[float]:
    """P(left < right), P(left = right) and P(left > right).

    Args:
        signs: the result of `time_signs`, called if it is needed.
    """
    if right.n_days < left.n_days:
        return compare_instants(right, left, lambda: [table.mT for table in signs()[::-1]])[::-1]
    before, same = 0.0, [0.0, 0.0, 0.0]
    for earlier, equal, n_equal in _cases(left, right):
        before += sum(float(left.rho._log_mass(case).double().exp().sum()) for case in earlier)
        if n_equal:
            same = [a + b for a, b in zip(same, _same_day(left, right, equal, n_equal, signs), strict=True)]
    below, at = before + same[0], same[1]
    return [below, at, max(0.0, 1.0 - below - at)]


def _cases(left: Instants, right: Instants) -> Iterator[tuple[list[Case], Case, int]]:
    """For blocks of days of the left column: evidence that the right one has a later day, evidence that it
    has the same day, and the number of days that both may have.
    """
    if left.calendar is None or right.calendar is None:
        yield [], {}, 1
        return
    days, tables, others = left.listed_days(), left.digits(), right.digits()
    for rows in slices(days.shape[1], _ROWS):
        here = _chosen(tables, left.days, list(days[:, rows]), "at")
        there, is_exact = _days_of(right.calendar, _dates(left.calendar, days[:, rows]))
        first, last = right.range
        is_exact &= (there[0] >= first) & (there[0] <= last)
        there[0] = there[0].clip(first - 1, last + 1)
        before: Case = {}
        later = []
        for name, place in zip(right.days, there, strict=True):
            later.append({**here, **before, **_chosen(others, [name], [place], "after")})
            before |= _chosen(others, [name], [place], "at")
        exact = np.flatnonzero(is_exact)
        equal = {n: (relative[exact], top[exact]) for n, (relative, top) in {**here, **before}.items()}
        yield later, equal, len(exact)


def _dates(calendar: Calendar, days: np.ndarray) -> np.ndarray:
    return calendar.join([*days, *([np.zeros_like(days[0])] if calendar.clock else [])])


def _days_of(calendar: Calendar, dates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The digits of the last days, months or years up to dates, and whether they begin at these dates."""
    digits = np.array(calendar.split(dates)[: len(calendar.digits) - bool(calendar.clock)])
    return digits, _dates(calendar, digits) == dates


def _chosen(
    tables: Mapping[str, _Digit], names: Sequence[str], places: Sequence[np.ndarray], which: str
) -> Case:
    case = {}
    for name, place in zip(names, places, strict=True):
        relative, top = getattr(tables[name], which)
        index = torch.from_numpy(np.asarray(place - tables[name].low)).to(top.device)
        case[name] = relative[index], top[index]
    return case


# ---- times of the same day


def _same_day(left: Instants, right: Instants, case: Case, n: int, signs: Any) -> list[float]:
    """P(left < right), P(left = right) and P(left > right) on the same days, summed over cases."""
    rho = left.rho
    if left.time is None and right.time is None:
        return [0.0, float(rho._log_mass(case).double().exp().sum()), 0.0]
    if left.time is None or right.time is None:
        clock, name = (left, left.time) if left.time else (right, right.time)
        assert name is not None
        digit = clock._digit(name, 0, 0)
        rows = [np.zeros(n, int)]
        at, after = (
            float(rho._log_mass({**case, **_chosen({name: digit}, [name], rows, which)}).double().exp().sum())
            for which in ("at", "after")
        )
        return [0.0, at, after] if left.time else [after, at, 0.0]
    both = rho._pairs_given(left.time, right.time, case)
    return [float((both * table).sum()) for table in signs()]


def time_signs(left: Instants, right: Instants) -> Signs:
    """P(less), P(equal) and P(greater) of two times of day, for every pair of components."""
    if left.clock < right.clock:
        return [table.mT for table in time_signs(right, left)[::-1]]
    if DAY // left.clock > _CELLS:
        return _signs_in_cells(left, right)
    starts = np.arange(0, DAY, left.clock)
    at = left.times(np.append(starts, DAY)).diff(dim=0)
    before, upto = right.times(starts), right.times(starts + 1)
    return [at.mT @ (1 - upto), at.mT @ (upto - before), at.mT @ before]


def _signs_in_cells(left: Instants, right: Instants) -> Signs:
    """The same of clocks with many units: within a cell, densities are straight lines."""
    ends = np.linspace(0, DAY, _CELLS + 1).astype(np.int64)
    one, other = (times.times(ends) for times in (left, right))
    at, there, before = one.diff(dim=0), other.diff(dim=0), other[:-1]
    within = at.mT @ there
    equal = within * (right.clock / (DAY // _CELLS))
    lean = (at.mT @ _slopes(there) - _slopes(at).mT @ there) / 12
    half = 0.5 * (within - equal)
    return [at.mT @ (1 - other[1:]) + half + lean, equal, at.mT @ before + half - lean]


def _slopes(masses: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
    """The change of the mass of cells that go round, per cell."""
    return 0.5 * (masses.roll(-1, 0) - masses.roll(1, 0))
