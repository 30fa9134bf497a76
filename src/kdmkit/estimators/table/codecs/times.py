"""Times of day."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.estimators.table.codecs.base import Cells, Codec, is_range, unseen_offset
from kdmkit.estimators.table.codecs.calendar import DAY, clock_of
from kdmkit.estimators.table.codecs.dates import digit_part, known_digit
from kdmkit.estimators.table.codecs.parts import Known, Part, part_from_config
from kdmkit.estimators.table.frames.objects import microseconds
from kdmkit.estimators.table.frames.storage import RawColumn
from kdmkit.kernels import Kernel, Region


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
        self.clock, self.part, self.share = clock, part, share

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
    def shapes(self) -> tuple[torch.Size, ...]:
        return (self.part.shape,)

    @property
    def levels(self) -> Sequence[Any] | None:
        values = self.part.values
        return None if values is None else [_clock(int(value) * self.clock) for value in values]

    def kernels(self, n_components: int | None = None) -> tuple[Kernel, ...]:
        return (self.part.kernel(n_components),)

    def encode(self, column: RawColumn) -> Cells:
        if column.storage.base != "time" and not column.missing.all():
            wanted = "times of day"
            raise TypeError(bad_argument(f"column {self.name!r}", wanted, column.example))
        units = np.where(column.missing, 0, column.values if column.storage.base == "time" else 0)
        events = self.part.encode((units.astype(np.int64) // self.clock).astype(np.float64))
        offset = events.log_offset + unseen_offset(~events.inside, self.share)
        observed = torch.from_numpy(events.inside & ~column.missing)
        return Cells((events.values,), observed, torch.from_numpy(np.where(column.missing, 0.0, offset)))

    def decode(self, *parts: Tensor) -> np.ndarray:
        return np.rint(self.part.decode(parts[0])).astype(np.int64) * self.clock

    def numbers(self, *parts: Tensor) -> np.ndarray:
        """Times of day on the column's clock."""
        units = np.asarray(self.decode(*parts))
        times = np.empty(units.shape, dtype=object)
        times.reshape(-1)[:] = [_clock(int(unit)) for unit in units.reshape(-1)]
        return times

    def event(self, value: Any) -> tuple[Tensor, ...]:
        events = self.part.encode(np.array([float(self._units(value))]))
        if not events.inside[0]:
            raise self._no_value("a time of day of the column", value)
        return (events.values[0],)

    def _units(self, value: Any) -> int:
        if isinstance(value, str):
            try:
                value = datetime.time.fromisoformat(value.strip())
            except ValueError:
                value = None
        if not isinstance(value, datetime.time):
            raise self._no_value("a time of day such as '18:30'", value)
        return microseconds(value) // self.clock

    def region(self, value: Any) -> list[tuple[Known, ...]]:
        if value is None:
            return [(None,)]
        if isinstance(value, list | set | frozenset | np.ndarray):
            events = [self.event(one)[0] for one in value]
            if not events:
                raise self._no_value("one or more times", value)
            return [(known,) for known in self.part.one_of(events)]
        return self._range(value) if is_range(value) else [self.event(value)]

    def _range(self, value: tuple[Any, ...]) -> list[tuple[Known, ...]]:
        """From the first to the last; a range that ends before it starts goes over midnight."""
        if len(value) != 2:
            raise self._no_value("a pair (first, last)", value)
        last = DAY // self.clock - 1
        low = 0 if value[0] is None else self._units(value[0])
        high = last if value[1] is None else self._units(value[1])
        ends = [(low, high)] if low <= high else [(low, last), (0, high)]
        try:
            return [(known_digit(self.part, pair),) for pair in ends]
        except ValueError as error:
            raise self._no_value("a range that holds times of the column", value) from error

    def stack(self, boxes: Sequence[tuple[Known, ...]]) -> tuple[Tensor | Region | None, ...]:
        known = [box[0] for box in boxes]
        return (None if all(case is None for case in known) else self.part.stack(known),)

    def describe(self) -> str:
        return f"step {datetime.timedelta(microseconds=self.clock)}"

    def config(self) -> dict[str, Any]:
        fields = {"name": self.name, "clock": self.clock, "share": self.share}
        return {"codec": self.codec, **fields, "part": self.part.config()}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> TimeCodec:
        part = part_from_config(config["part"])
        return cls(config["name"], config["clock"], part, share=config["share"])


def _clock(units: int) -> datetime.time:
    return (datetime.datetime.min + datetime.timedelta(microseconds=units)).time()
