"""Dates, date-times and times of day."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.estimators.table.codecs.analysis import code_part, count, number_part
from kdmkit.estimators.table.codecs.base import Box, Cells, Codec
from kdmkit.estimators.table.codecs.calendar import (
    DAY,
    Calendar,
    between_zones,
    clock_of,
    date_format,
    digit_ranges,
    in_zone,
    parse_span,
    read_date,
    read_dates,
    write_dates,
)
from kdmkit.estimators.table.codecs.parts import Events, Part, PartEvidence, part_from_config, stack_numbers
from kdmkit.estimators.table.frames.storage import RawColumn, microseconds, time_of_day
from kdmkit.kernels import Interval, Kernel, Periodic, Region, Resolution

Span = tuple[np.datetime64, np.datetime64]
# Digits have levels if they have at most the first number of values, or at most the second and rows enough.
_FEW_VALUES = 60
_MANY_VALUES = 288
_ROWS_PER_VALUE = 50
_MICROSECOND = np.timedelta64(1, "us")
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

    def interval(self, low: float, high: float) -> PartEvidence:
        low, high = max(low, 0.0), min(high, self.period - 1.0)
        if low > high:
            raise ValueError(bad_argument("range", f"numbers from 0 to {self.period - 1}", (low, high)))
        if (low, high) == (0, self.period - 1):
            return None
        return Interval(torch.tensor([low - 0.5]).double(), torch.tensor([high + 0.5]).double())

    def one_of(self, events: Sequence[Tensor]) -> list[PartEvidence]:
        return list(events)

    def stack(self, cases: Sequence[PartEvidence]) -> Tensor | Region:
        return stack_numbers(cases, (-0.5, self.period - 0.5))

    def describe(self) -> str:
        return f"0…{self.period - 1}, periodic"


class DateCodec(Codec):
    """A column of dates or date-times. Every digit of its `Calendar` is a part.

    Args:
        calendar: how dates are written in digits.
        parts: how every digit is an event.
        share: the probability of a date that the column cannot have.
        text: the format of dates, if the frame holds texts.
        zone: the time zone whose clocks show the dates, if the frame has one.
    """

    codec = "dates"
    ordered = True

    def __init__(
        self,
        name: str,
        calendar: Calendar,
        parts: Sequence[Part],
        *,
        share: float,
        text: str | None = None,
        zone: str = "",
    ) -> None:
        self.name, self.kind, self.zone = name, "date", zone
        self.calendar, self.parts, self.share, self.text = calendar, tuple(parts), share, text

    @classmethod
    def fit(cls, column: RawColumn) -> DateCodec:
        text = date_format(column) if column.storage.base == "string" else None
        zone = column.storage.zone
        dates = _instants(column, text, zone)[~column.missing]
        calendar = Calendar.fit(dates)
        digits = calendar.split(dates)
        parts = [digit_part(digit, size) for digit, size in zip(digits, calendar.sizes, strict=True)]
        return cls(column.name, calendar, parts, share=0.5 / (len(dates) + 1), text=text, zone=zone)

    @property
    def part_names(self) -> tuple[str, ...]:
        return self.calendar.digits

    # ---- rows

    def encode(self, column: RawColumn) -> Cells:
        dates = _instants(column, self.text, self.zone)
        missing = column.missing | np.isnat(dates)
        dates = np.where(missing, np.datetime64(0, "us"), dates)
        digits = [digit.astype(np.float64) for digit in self.calendar.split(dates)]
        events = [part.encode(digit) for part, digit in zip(self.parts, digits, strict=True)]
        return self._cells(events, missing)

    def decode(self, *parts: Tensor) -> np.ndarray:
        return self.written(self.numbers(*parts))

    def written(self, dates: np.ndarray) -> np.ndarray:
        """Dates as the frame holds them: texts, or as they are."""
        return dates if self.text is None else write_dates(dates, self.text)

    def numbers(self, *parts: Tensor) -> np.ndarray:
        """Date-times. Digits are those of whole dates: a mean of dates is not a mean of digits."""
        digits = [part.decode(event) for part, event in zip(self.parts, parts, strict=True)]
        return self.calendar.join(digits)

    # ---- questions

    def event(self, value: Any) -> tuple[Tensor, ...]:
        boxes = self.region(value)
        if len(boxes) > 1 or not all(isinstance(digit, Tensor) for digit in boxes[0]):
            raise self._no_value(f"one date ({self.describe()})", value)
        return tuple(digit for digit in boxes[0] if isinstance(digit, Tensor))

    def _span(self, value: Any) -> Span:
        try:
            return parse_span(in_zone(value, self.zone))
        except ValueError as error:
            if self.text is not None and isinstance(value, str):
                date = read_date(value, self.text)
                if date is not None:
                    return date, date
            raise self._no_value("a date such as '2024-05-31' or '2024-05-31 18:30'", value) from error

    def _point(self, value: Any) -> list[Box]:
        return [box for span in self.spans(value) for box in self._boxes(*span, value)]

    def _one_of(self, values: list[Any]) -> list[Box]:
        return self._point(values)

    def _range(self, ends: tuple[Any, Any]) -> list[Box]:
        return self._point(ends)

    def spans(self, value: Any) -> list[tuple[np.datetime64 | None, np.datetime64 | None]]:
        """The first and the last instant of every span of time that a date, a range or a set means."""
        if isinstance(value, tuple):
            first = None if value[0] is None else self._span(value[0])[0]
            last = None if value[1] is None else self._span(value[1])[1]
            if first is not None and last is not None and first > last:
                raise self._no_value("low ≤ high", value)
            return [(first, last)]
        several = isinstance(value, list | set | frozenset | np.ndarray)
        return [*_merged([self._span(one) for one in (value if several else [value])])]

    def beside(self, value: Any, up: bool) -> np.datetime64:
        first, last = self._span(value)
        return last + _MICROSECOND if up else first - _MICROSECOND

    def _boxes(self, first: np.datetime64 | None, last: np.datetime64 | None, value: Any) -> list[Box]:
        """The dates from first to last, in boxes of digits that the column may have."""
        low = None if first is None else self._digits(self.calendar.ceiling(first))
        high = None if last is None else self._digits(last)
        boxes = []
        for box in digit_ranges(low, high, self.calendar.sizes):
            try:
                boxes.append(tuple(map(known_digit, self.parts, box)))
            except ValueError:  # no date of the column has such digits
                continue
        if not boxes:
            raise self._no_value(f"dates that the column may have ({self.describe()})", value)
        return boxes

    def _digits(self, date: np.datetime64) -> list[int]:
        return [int(digit[0]) for digit in self.calendar.split(np.array([date]))]

    # ---- description

    def describe(self) -> str:
        return " + ".join(self.calendar.digits)

    def config(self) -> dict[str, Any]:
        fields = {"name": self.name, "share": self.share, "text": self.text, "zone": self.zone}
        parts = [part.config() for part in self.parts]
        return {"codec": self.codec, **fields, "calendar": self.calendar.config(), "parts": parts}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> DateCodec:
        calendar = Calendar.from_config(config["calendar"])
        parts = [part_from_config(part) for part in config["parts"]]
        options = {"share": config["share"], "text": config["text"], "zone": config.get("zone", "")}
        return cls(config["name"], calendar, parts, **options)


def _merged(spans: Sequence[Span]) -> list[Span]:
    """The union of spans of time as disjoint ones."""
    merged: list[Span] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def known_digit(part: Part, digit: tuple[float, float] | None) -> PartEvidence:
    if digit is None:
        return None
    if digit[0] == digit[1]:
        event = part.encode(np.array([digit[0]]))
        if not event.inside[0]:
            raise ValueError(bad_argument("digit", f"one of the column ({part.describe()})", digit[0]))
        return event.values[0]
    return part.interval(*digit)


def digit_part(digits: np.ndarray, size: int) -> Part:
    """The first digit is a number. Others have a level for each value, or go round if values are many."""
    digits = digits.astype(np.float64)
    if not size:
        # Not levels, even if they are few: there will be later dates.
        return number_part(count(digits), Resolution(1.0, 0.0), bounded=False)
    if size <= _FEW_VALUES or (size <= _MANY_VALUES and len(digits) >= _ROWS_PER_VALUE * size):
        return code_part(np.arange(size, dtype=np.float64), len(digits))
    return CirclePart(size)


def _instants(column: RawColumn, text: str | None, zone: str) -> np.ndarray:
    """The column's dates as `datetime64[us]` of clocks in a zone, NaT for missing cells."""
    if column.missing.all():
        return np.full(len(column.missing), np.datetime64("NaT"), "datetime64[us]")
    if column.storage.base == "string":
        return read_dates(column, date_format(column) if text is None else text)
    if column.storage.base != "datetime":
        raise TypeError(bad_argument(f"column {column.name!r}", "dates", column.example))
    dates: np.ndarray = np.where(column.missing, np.datetime64("NaT"), column.values)
    source = column.storage.zone
    return dates if not zone or not source or source == zone else between_zones(dates, source, zone)


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
        return [(region,) for region in self.part.one_of([self.event(value)[0] for value in values])]

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
