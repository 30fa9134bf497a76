"""Times of day."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.estimators.table.codecs.base import Box, Cells, Codec
from kdmkit.estimators.table.codecs.calendar import DAY, clock_of
from kdmkit.estimators.table.codecs.dates import digit_part, known_digit
from kdmkit.estimators.table.codecs.parts import Part, part_from_config
from kdmkit.estimators.table.frames.objects import microseconds, time_of_day
from kdmkit.estimators.table.frames.storage import RawColumn


class TimeCodec(Codec):
    """A column of times of day, in units of its clock.

    Args:
        clock: microseconds of one unit.
        part: how units since midnight are events.
        share: the probability of a time that the column cannot have.
    """

    codec = "times"

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
    def ordered(self) -> bool:
        return True

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

    def event(self, value: Any) -> tuple[Tensor, ...]:
        events = self.part.encode(np.array([float(self._units(value))]))
        if not events.inside[0]:
            raise self._no_value("a time of day of the column", value)
        return (events.values[0],)

    def _microseconds(self, value: Any) -> int:
        time = value
        if isinstance(value, str):
            with suppress(ValueError):
                time = datetime.time.fromisoformat(value.strip())
        if not isinstance(time, datetime.time):
            raise self._no_value("a time of day such as '18:30'", value)
        return microseconds(time)

    def _units(self, value: Any) -> int:
        return self._microseconds(value) // self.clock

    def _one_of(self, values: list[Any]) -> list[Box]:
        return [(known,) for known in self.part.one_of([self.event(value)[0] for value in values])]

    def _range(self, ends: tuple[Any, Any]) -> list[Box]:
        """From the first to the last; a range that ends before it starts goes over midnight."""
        last = DAY // self.clock - 1
        low = 0 if ends[0] is None else self._units(ends[0])
        high = last if ends[1] is None else self._units(ends[1])
        pairs = [(low, high)] if low <= high else [(low, last), (0, high)]
        try:
            return [(known_digit(self.part, pair),) for pair in pairs]
        except ValueError as error:
            raise self._no_value("a range that holds times of the column", ends) from error

    def beside(self, value: Any, up: bool) -> datetime.time:
        """One unit later or earlier; the ends of the day are as far as it goes."""
        time = self._microseconds(value)
        moved = time + (self.clock if up else -self.clock)
        return time_of_day(moved if 0 <= moved < DAY else time)

    def describe(self) -> str:
        return f"step {datetime.timedelta(microseconds=self.clock)}"

    def config(self) -> dict[str, Any]:
        fields = {"name": self.name, "clock": self.clock, "share": self.share}
        return {"codec": self.codec, **fields, "part": self.part.config()}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> TimeCodec:
        part = part_from_config(config["part"])
        return cls(config["name"], config["clock"], part, share=config["share"])
