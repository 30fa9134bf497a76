"""Times of day, digits of dates, and the circles on which they go round."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.estimators.table.codecs.analysis import (
    Counts,
    code_part,
    count,
    number_part,
    rank_part,
    takes_codes,
)
from kdmkit.estimators.table.codecs.base import Cells, Codec
from kdmkit.estimators.table.codecs.calendar import DAY, clock_of
from kdmkit.estimators.table.codecs.parts import Events, Part, part_from_config
from kdmkit.estimators.table.frames.storage import RawColumn, Storage, microseconds, time_of_day
from kdmkit.estimators.table.literals import read_people_time
from kdmkit.kernels import Interval, Kernel, Periodic, Region, Resolution
from kdmkit.kernels.region_forms import by_edges
from kdmkit.kernels.regions import intersection, interval, union

# Digits go round if they have more values; those of times have levels where they have rows enough.
_FEW_VALUES = 60
_MANY_VALUES = 288
_ROWS_PER_VALUE = 50
# The initial κ, unless the layer sets it.
_KAPPA = 10.0


@dataclass(frozen=True)
class CirclePart(Part):
    """Whole numbers 0 … period − 1 that go round, such as minutes of the day.

    There are many of them: they have densities, not masses, and a draw is the nearest whole number.
    """

    kind = "circle"
    period: int

    def kernel(self, n_components: int | None) -> Kernel:
        shape = () if n_components is None else (n_components, 1)
        return Periodic(torch.full(shape, _KAPPA), self.period)

    @property
    def shape(self) -> torch.Size:
        return torch.Size([1])

    def encode(self, numbers: np.ndarray) -> Events:
        inside = (numbers >= 0) & (numbers < self.period)
        events = torch.from_numpy(np.where(inside, np.round(numbers), 0.0)).unsqueeze(-1)
        return Events(events, inside, np.zeros(len(numbers)))

    def decode(self, events: Tensor, *, rounded: bool = True) -> np.ndarray:
        numbers = events.detach().cpu().double().squeeze(-1).numpy()
        return np.mod(np.round(numbers), self.period) if rounded else numbers

    @cached_property
    def support(self) -> Interval:
        return Interval(-0.5, self.period - 0.5, "left")

    def edge(self, number: float, after: bool) -> float:
        return (math.floor(number) + 1 if after else math.ceil(number)) - 0.5

    def kernel_region(self, outcomes: Region) -> Region:
        # An open end is that of the cell of 0, which lies half before and half after the start of the circle.
        return intersection([self.support, outcomes])

    def describe(self) -> str:
        return f"0…{self.period - 1}, periodic"


class TimeCodec(Codec):
    """A column of times of day, in units of its clock.

    Args:
        clock: microseconds of one unit.
        part: how units since midnight are events.
        share: the probability of a time that the column cannot have.
    """

    codec = "times"
    ordered = True

    def __init__(self, name: str, clock: int, part: Part, *, share: float) -> None:
        self.name, self.kind = name, "time"
        self.clock, self.share = clock, share
        self.part, self.parts = part, (part,)

    @classmethod
    def fit(cls, column: RawColumn) -> TimeCodec:
        times = column.present
        clock = clock_of(times)
        part = digit_part(times // clock, DAY // clock)
        return cls(column.name, clock, part, share=0.5 / (len(times) + 1))

    @property
    def levels(self) -> Sequence[Any] | None:
        values = self.part.values
        return None if values is None else [time_of_day(int(value) * self.clock) for value in values]

    def encode(self, column: RawColumn) -> Cells:
        units = np.zeros(len(column.missing), np.int64)
        if not column.missing.all():
            if column.storage.base != "time":
                raise TypeError(bad_argument(f"column {self.name!r}", "times of day", column.example))
            units = np.where(column.missing, 0, column.values) // self.clock
        return self._cells([self.part.encode(units.astype(np.float64))], column.missing)

    def decode(self, *parts: Tensor) -> np.ndarray:
        return np.rint(self.part.decode(parts[0])).astype(np.int64) * self.clock

    def numbers(self, *parts: Tensor) -> np.ndarray:
        """Times of day on the column's clock."""
        decoded = self.decode(*parts)
        times = np.empty(decoded.shape, dtype=object)
        times.reshape(-1)[:] = [time_of_day(int(time)) for time in decoded.reshape(-1)]
        return times

    def read(self, region: Region) -> Region:
        """Times as numbers of units of the clock; a range that ends before it starts goes over midnight."""
        if isinstance(region, Interval) and region.low is not None and region.high is not None:
            low, high = self._microseconds(region.low), self._microseconds(region.high)
            if low > high:
                late = interval(region.low, None, above=region.above, below=False)
                early = interval(None, region.high, above=False, below=region.below)
                return union([self.read(late), self.read(early)])
        return by_edges(region, self._edge)

    def _edge(self, value: Any, after: bool) -> float:
        """Before the first unit ≥ a time, or > it (`after`)."""
        unit, rest = divmod(self._microseconds(value), self.clock)
        return unit + (after or rest > 0) - 0.5

    def _microseconds(self, value: Any) -> int:
        time = value
        if isinstance(value, str):
            with suppress(ValueError):
                time = datetime.time.fromisoformat(read_people_time(value))
        if not isinstance(time, datetime.time):
            raise self._no_value("a time of day such as '18:30'", value)
        return microseconds(time)

    def read_text(self, text: str) -> str:
        """A time in the form of ISO 8601."""
        return read_people_time(text)

    def read_part(self, part: str, region: Region) -> Region:
        if part != "hour":
            return super().read_part(part, region)
        per_hour = DAY // 24 // self.clock
        if not per_hour:
            raise self._no_value("times in units of an hour or less, for the hour", self.describe())
        return by_edges(
            region, lambda hour, after: (math.floor(hour) + 1 if after else math.ceil(hour)) * per_hour - 0.5
        )

    def outcomes_of(self, values: np.ndarray) -> np.ndarray:
        return (values // self.clock).astype(np.float64)

    def are_outcomes(self, column: RawColumn) -> np.ndarray:
        return np.asarray(column.values % self.clock == 0)

    def raw(self, values: Sequence[Any]) -> RawColumn:
        times = np.array([self._microseconds(value) for value in values], dtype=np.int64)
        return RawColumn(self.name, times, np.zeros(len(times), bool), Storage("time"))

    def from_units(self, units: np.ndarray) -> np.ndarray:
        """The time of every unit of the clock."""
        return self.numbers(torch.from_numpy(np.asarray(units, float)).unsqueeze(-1))

    def units_of(self, digits: Sequence[np.ndarray]) -> np.ndarray:
        """The unit of every time that is written in digits."""
        return digits[0]

    def decoded(self, units: np.ndarray) -> np.ndarray:
        """Units as the frame holds times."""
        return np.rint(units).astype(np.int64) * self.clock

    @property
    def units_per_day(self) -> int:
        """The number of units with a common day."""
        return DAY // self.clock

    def digit_range(self) -> tuple[int, int]:
        """The range of the only digit."""
        return 0, DAY // self.clock - 1

    def describe(self) -> str:
        return f"step {datetime.timedelta(microseconds=self.clock)}"

    def config(self) -> dict[str, Any]:
        fields = {"name": self.name, "clock": self.clock, "share": self.share}
        return {"codec": self.codec, **fields, "part": self.part.config()}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> TimeCodec:
        part = part_from_config(config["part"])
        return cls(config["name"], config["clock"], part, share=config["share"])


def digit_part(digits: np.ndarray, size: int) -> Part:
    """The first digit is a number. Others are levels, places in a list, or go round, by how many they are."""
    digits = digits.astype(np.float64)
    if not size:
        # Not levels, even if they are few: there will be later dates.
        return number_part(count(digits), Resolution(1.0, 0.0), bounded=False)
    if size > _MANY_VALUES:
        return CirclePart(size)
    numbers = np.arange(size, dtype=np.float64)
    counts = Counts(numbers, np.bincount(digits.astype(np.int64), minlength=size))
    if takes_codes(counts) or _FEW_VALUES < size <= len(digits) // _ROWS_PER_VALUE:
        return code_part(numbers, len(digits))
    return rank_part(counts) if size <= _FEW_VALUES else CirclePart(size)
