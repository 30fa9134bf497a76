"""Dates and date-times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.estimators.table.codecs.base import Box, Cells, Codec
from kdmkit.estimators.table.codecs.calendar import Calendar, between_zones, in_zone, parse_span
from kdmkit.estimators.table.codecs.date_texts import date_format, read_date, read_dates, write_dates
from kdmkit.estimators.table.codecs.parts import NumberPart, Part, part_from_config
from kdmkit.estimators.table.codecs.times import digit_part
from kdmkit.estimators.table.display import scalar, written
from kdmkit.estimators.table.frames.storage import RawColumn, Storage
from kdmkit.estimators.table.literals import read_people_date
from kdmkit.kernels import Interval, OneOf, QuantileNormal, Region
from kdmkit.kernels.region_forms import by_edges
from kdmkit.kernels.regions import NOTHING, WHOLE, union

Span = tuple[np.datetime64, np.datetime64]
#: Digits of dates: by the place of a digit, a region of its values.
Digits = dict[int, Region]
_MICROSECOND = np.timedelta64(1, "us")
# No date has a normal score beyond this one, or lies farther from the data than this many times their span.
_FAR_SCORE, _FAR_SPANS = 8.0, 10


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

    def read(self, region: Region) -> Region:
        """Dates as numbers of units of the calendar: a day is that day, "2024-05" the whole month."""
        if isinstance(region, Interval) and None not in (region.low, region.high):
            first, last = self._span(region.low)[0], self._span(region.high)[1]
            if first > last + _MICROSECOND:
                raise self._no_value("low ≤ high", (region.low, region.high))
        return by_edges(region, self._edge)

    def _edge(self, value: Any, after: bool) -> float:
        first, last = self._span(value)
        return self.calendar.unit_from(last + _MICROSECOND if after else first) - 0.5

    def _span(self, value: Any) -> Span:
        try:
            return parse_span(in_zone(value, self.zone))
        except (ValueError, OverflowError) as error:
            if self.text is not None and isinstance(value, str):
                date = read_date(value, self.text)
                if date is not None:
                    return date, date
            raise self._no_value("a date such as '2024-05-31' or '2024-05-31 18:30'", value) from error

    def read_text(self, text: str) -> str:
        """A date in the form of ISO 8601, from one that a person writes."""
        date = None if self.text is None else read_date(text, self.text)
        if date is not None:
            return str(date.astype("datetime64[D]") if not self.calendar.clock else date)
        return read_people_date(text)

    def trimmed(self, outcomes: Region) -> Region:
        if not outcomes.spans:
            return NOTHING
        return WHOLE if outcomes.spans == WHOLE.spans else outcomes

    def read_part(self, part: str, region: Region) -> Region:
        if part == "hour" and not self.calendar.clock:
            raise self._no_value("date-times, for the hour", "dates without a time of day")
        numbers = by_edges(region, lambda number, after: float(number) + (0.5 if after else -0.5))
        return self.calendar.units_of_part(part, numbers, *self._range)

    @cached_property
    def seen(self) -> Region:
        size = math.prod(self.calendar.sizes[1:])
        first, last = self._extremes
        return Interval(first * size - 0.5, (last + 1) * size - 0.5, "left")

    @property
    def _extremes(self) -> tuple[float, float]:
        """The least and the greatest first digit of the data: dates of one year have one."""
        part = self.parts[0]
        values = part.values or (0.0,)
        return part.extremes if isinstance(part, NumberPart) else (values[0], values[-1])

    @property
    def _range(self) -> tuple[int, int]:
        """Values of the first digit beyond which no date has a probability that matters."""
        part = self.parts[0]
        if not isinstance(part, NumberPart):
            return int(self._extremes[0]), int(self._extremes[1])
        change = QuantileNormal(part.knots, part.scores)
        ends = (
            change.inv(torch.tensor([-_FAR_SCORE, _FAR_SCORE], dtype=torch.float64)) * part.scale + part.shift
        )
        least, most = part.extremes
        far = _FAR_SPANS * (most - least + 1)
        return math.floor(max(float(ends[0]), least - far)), math.ceil(min(float(ends[1]), most + far))

    def digit_range(self) -> tuple[int, int]:
        """The range of the first digit."""
        return self._range

    def boxes(self, outcomes: Region) -> list[Box]:
        cells = [digit_boxes(self.calendar.sizes, [(piece.low, piece.high) for piece in outcomes.pieces])]
        boxes = []
        for digits in cells[0]:
            box = {}
            for place, region in digits.items():
                part = self.parts[place]
                allowed = part.trimmed(part.outcomes(region))
                if allowed.is_empty:
                    break
                if not allowed.is_whole:
                    box[place] = part.kernel_region(allowed)
            else:
                boxes.append(box)
        return boxes

    def outcomes_of(self, values: np.ndarray) -> np.ndarray:
        return self.calendar.units(self.instants_of(values))

    def instants_of(self, values: np.ndarray) -> np.ndarray:
        """Cells as instants."""
        base = "datetime" if values.dtype.kind == "M" else "string"
        raw = RawColumn(self.name, values, np.zeros(len(values), bool), Storage(base))
        return _instants(raw, self.text, self.zone)

    def are_outcomes(self, column: RawColumn) -> np.ndarray:
        return np.asarray(self.from_units(self.outcomes_of(column.values)) == column.values)

    def raw(self, values: Sequence[Any]) -> RawColumn:
        dates = np.asarray(values)
        if dates.dtype.kind != "M":
            dates = np.array([self._span(value)[0] for value in values])
        dates = dates.astype("datetime64[us]")
        return RawColumn(self.name, dates, np.zeros(len(dates), bool), Storage("datetime"))

    def from_units(self, units: np.ndarray) -> np.ndarray:
        """The date of every unit of the calendar."""
        return self.calendar.dates_of(units)

    def units_of(self, digits: Sequence[np.ndarray]) -> np.ndarray:
        """The unit of every date that is written in digits."""
        return self.calendar.units(self.calendar.join(digits))

    def decoded(self, units: np.ndarray) -> np.ndarray:
        """Units as the frame holds dates."""
        return self.written(self.from_units(units))

    @property
    def units_per_day(self) -> int:
        """The number of units with a common day."""
        return self.calendar.sizes[-1] if self.calendar.clock else 1

    # ---- description

    def examples(self) -> tuple[str, ...]:
        ends = self.seen.pieces[0]
        dates = self.decoded(np.array([ends.low + 0.5, ends.high - 0.5]))
        return tuple(written(scalar(date)) for date in dates)

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


# ---- ranges of dates as boxes of digits


def digit_boxes(sizes: Sequence[int], ranges: Sequence[tuple[float | None, float | None]]) -> list[Digits]:
    """All dates in disjoint ranges of units as disjoint boxes of digits.

    Values of a digit with equal rests share a box: every morning of a year is one box.

    Args:
        sizes: how many values each digit has; 0 for the first one, which is not bounded.
        ranges: ends of units, halves of whole numbers; None is open.

    >>> for box in digit_boxes([0, 7], [(25.5, 35.5)]):
    ...     print(box)
    {0: Interval(3.5, 4.5, closed='left')}
    {0: OneOf([3]), 1: Interval(4.5, 6.5, closed='left')}
    {0: OneOf([5]), 1: Interval(-0.5, 0.5, closed='left')}
    """
    spans = [
        (-math.inf if low is None else round(low + 0.5), math.inf if high is None else round(high + 0.5))
        for low, high in ranges
    ]
    return _boxes_below(tuple(spans), tuple(sizes[1:]), 0)


def _boxes_below(spans: tuple[tuple[float, float], ...], sizes: tuple[int, ...], place: int) -> list[Digits]:
    """Boxes of half-open spans of units in the digits from a place on."""
    unit = math.prod(sizes)
    whole: list[Region] = []
    rests: dict[float, list[tuple[float, float]]] = {}
    for start, stop in spans:
        first, last = _floor(start / unit), _floor(stop / unit) if math.isinf(stop) else (stop - 1) // unit
        head = start if math.isinf(start) else (start + unit - 1) // unit
        tail = stop if math.isinf(stop) else stop // unit
        if head < tail:
            whole.append(_values(head, tail))
        for digit in {first, last} if head <= tail else {first}:
            if not head <= digit < tail and math.isfinite(digit):
                low, high = max(start - digit * unit, 0), min(stop - digit * unit, unit)
                rests.setdefault(digit, []).append((low, high))
    alike: dict[tuple[tuple[float, float], ...], list[float]] = {}
    for digit, rest in rests.items():
        alike.setdefault(tuple(rest), []).append(digit)
    boxes: list[Digits] = [{place: union(whole)}] if whole else []
    for spans_below, digits in alike.items():
        below = _boxes_below(spans_below, sizes[1:], place + 1)
        boxes += [{place: OneOf(digits), **box} for box in below]
    return boxes


def _floor(number: float) -> float:
    return number if math.isinf(number) else math.floor(number)


def _values(first: float, after_last: float) -> Region:
    """The whole numbers from the first one to the one before `after_last`."""
    low = None if math.isinf(first) else first - 0.5
    return Interval(low, None if math.isinf(after_last) else after_last - 0.5, "left")
