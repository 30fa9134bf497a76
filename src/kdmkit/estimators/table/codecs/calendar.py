"""Dates as digits and times of zones."""

from __future__ import annotations

import datetime
import math
import re
import zoneinfo
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kdmkit._core.checks import bad_argument
from kdmkit.kernels import Interval, Region, Union

DAY = 86_400_000_000  # microseconds
_HOUR = DAY // 24
_MONDAY = np.datetime64("1970-01-05", "D")
# Spans in days: shorter ones have days as their first digit, longer ones weeks, and those of years seasons.
_SPAN_OF_WEEKS = 56
_SPAN_OF_SEASONS = 2 * 364
_LONGEST_SPAN_OF_SEASONS = 30 * 364
#: Resolutions of the time of day in microseconds.
_CLOCKS = (*(60_000_000 * minutes for minutes in (60, 30, 15, 10, 5, 1)), 1_000_000, 1_000, 1)


@dataclass(frozen=True)
class Calendar:
    """Dates as digits. The digits of a later date are greater, read from the first one.

    Attributes:
        digits: names of the digits: the first of year, month, quarter, day, week and season is not bounded.
        sizes: how many values each digit has; 0 for the first one.
        clock: microseconds of one unit of the time of day; 0 if dates have none.
    """

    digits: tuple[str, ...]
    sizes: tuple[int, ...]
    clock: int

    @classmethod
    def fit(cls, dates: np.ndarray) -> Calendar:
        """The digits for dates `datetime64[us]` without missing ones.

        Dates that are all first days of months are months, quarters or years. Otherwise there are the week
        and the weekday, or only the day if dates span less than eight weeks or more than thirty years. Spans
        of two to thirty years have seasons: a year of 52 weeks, the week in it, and the weekday. Dates that
        have a time of day have it as their last digit.
        """
        days = dates.astype("datetime64[D]")
        within = (dates - days).astype(np.int64)
        clock = clock_of(within) if within.any() else 0
        if not clock and _are_months(days):
            months = days.astype("datetime64[M]").astype(np.int64)
            if not (months % 12).any():
                return cls(("year",), (0,), 0)
            return (
                cls(("year", "month"), (0, 12), 0)
                if (months % 3).any()
                else cls(("year", "quarter"), (0, 4), 0)
            )
        span = int((days.max() - days.min()).astype(np.int64))
        names: tuple[str, ...]
        sizes: tuple[int, ...]
        if span < _SPAN_OF_WEEKS or span > _LONGEST_SPAN_OF_SEASONS:
            names, sizes = ("day",), (0,)
        elif span < _SPAN_OF_SEASONS:
            names, sizes = ("week", "weekday"), (0, 7)
        else:
            names, sizes = ("season", "week", "weekday"), (0, 52, 7)
        return cls((*names, "time"), (*sizes, DAY // clock), clock) if clock else cls(names, sizes, 0)

    @property
    def monthly(self) -> bool:
        return self.digits[0] == "year"

    @property
    def _months(self) -> int:
        """The months of one unit of monthly dates."""
        return 12 // math.prod(self.sizes[1:])

    def split(self, dates: np.ndarray) -> list[np.ndarray]:
        """The digits of dates `datetime64[us]`, each an array of whole numbers."""
        units, clock = self._units(dates)
        digits: list[np.ndarray] = []
        for size in reversed(self.sizes[1 : len(self.sizes) - bool(self.clock)]):
            units, digit = np.divmod(units, size)
            digits.append(digit)
        return [units, *reversed(digits), *([clock] if self.clock else [])]

    def join(self, digits: Sequence[np.ndarray]) -> np.ndarray:
        """Dates `datetime64[us]` of digits."""
        whole = [np.rint(digit).astype(np.int64) for digit in digits]
        clock = whole.pop() if self.clock else np.zeros_like(whole[0])
        units = whole[0]
        for digit, size in zip(whole[1:], self.sizes[1:], strict=False):
            units = units * size + digit
        return self._dates(units) + (clock * self.clock).astype("timedelta64[us]")

    def _units(self, dates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Months, quarters, years or days since 1970 (days since a Monday of it), and the time of day."""
        days = dates.astype("datetime64[D]")
        if self.monthly:
            return dates.astype("datetime64[M]").astype(np.int64) // self._months, days
        clock = (dates - days).astype(np.int64) // (self.clock or DAY)
        return (days - _MONDAY).astype(np.int64), clock

    def _dates(self, units: np.ndarray) -> np.ndarray:
        if self.monthly:
            return (self._months * units).astype("datetime64[M]").astype("datetime64[us]")
        return (_MONDAY + units.astype("timedelta64[D]")).astype("datetime64[us]")

    # ---- dates as numbers of units: months, days, or units of the clock

    def units(self, dates: np.ndarray) -> np.ndarray:
        """The unit of every date, as floats."""
        units, clock = self._units(dates)
        return (units * self.sizes[-1] + clock if self.clock else units).astype(np.float64)

    def dates_of(self, units: np.ndarray) -> np.ndarray:
        """The first instant of every unit."""
        units = np.asarray(units, np.int64)
        if not self.clock:
            return self._dates(units)
        days, clock = np.divmod(units, self.sizes[-1])
        return self._dates(days) + (clock * self.clock).astype("timedelta64[us]")

    def unit_from(self, instant: np.datetime64) -> int:
        """The first unit that does not begin before an instant."""
        (unit,) = self.units(np.array([instant]))
        return int(unit) + bool(self.dates_of(np.array([unit]))[0] < instant)

    def units_of_part(self, part: str, numbers: Region, first: int, last: int) -> Region:
        """The units of which a part of the date lies in a region, for some values of the first digit."""
        heads = self.sizes[1 : len(self.sizes) - bool(self.clock)]
        size = math.prod(heads)
        days = np.arange(first * size, (last + 1) * size)
        dates = self._dates(days).astype("datetime64[D]")
        if self.monthly and part in ("weekday", "day"):
            raise ValueError(
                bad_argument("question", "days, for their number in the month or week", "months")
            )
        per_day = self.sizes[-1] if self.clock else 1
        if part != "hour":
            edges = (_runs(numbers.contains(_date_part(dates, part))) + days[0]) * per_day
        else:
            hours = _runs(numbers.contains(np.arange(per_day) * self.clock // _HOUR))
            edges = (days[:, None, None] * per_day + hours).reshape(-1, 2)
        return Union([Interval(start - 0.5, stop - 0.5, "left") for start, stop in edges.tolist()])

    def config(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Calendar:
        return cls(tuple(config["digits"]), tuple(config["sizes"]), config["clock"])


def clock_of(microseconds: np.ndarray) -> int:
    """The coarsest unit of the clock, in microseconds, in which all times of day are whole."""
    return next(unit for unit in _CLOCKS if not (microseconds % unit).any())


def _are_months(days: np.ndarray) -> bool:
    """Whether all dates are first days of months, of three or more different ones."""
    months = days.astype("datetime64[M]")
    return bool((days == months.astype("datetime64[D]")).all()) and len(np.unique(months)) >= 3


def _runs(inside: np.ndarray) -> np.ndarray:
    """The first place of every run of True, and the place behind it."""
    padded = np.concatenate([[False], inside, [False]]).astype(np.int8)
    return np.flatnonzero(np.diff(padded)).reshape(-1, 2)


def _date_part(dates: np.ndarray, part: str) -> np.ndarray:
    """A part of every date: weekdays count from Monday, 0."""
    months = dates.astype("datetime64[M]")
    match part:
        case "year":
            return dates.astype("datetime64[Y]").astype(np.int64) + 1970
        case "month":
            return months.astype(np.int64) % 12 + 1
        case "weekday":
            return (dates - _MONDAY).astype(np.int64) % 7
    return (dates - months.astype("datetime64[D]")).astype(np.int64) + 1


# ---- dates that people write

_ISO = re.compile(
    r"(\d{4})(?:-(\d{2})(?:-(\d{2})(?:[T ](\d{2})(?::(\d{2})(?::(\d{2})(?:\.(\d{1,6})(\d*))?)?)?)?)?)?Z?$"
)
_UNITS = ("Y", "M", "D", "h", "m", "s", "us")


def parse_span(value: Any) -> tuple[np.datetime64, np.datetime64]:
    """The first and the last microsecond that a date means: a day, "2024-05" the whole month.

    An instant between two microseconds lies between them: the first one is the later one. Text has the form
    of ISO 8601. Raises a ValueError if it does not parse.

    >>> [str(end) for end in parse_span("2024-02")]
    ['2024-02-01T00:00:00.000000', '2024-02-29T23:59:59.999999']
    """
    is_between = False
    if isinstance(value, str):
        match = _ISO.match(value.strip())
        if match is None:
            raise ValueError(value)
        *parts, beyond = match.groups()
        unit = _UNITS[sum(part is not None for part in parts) - 1]
        text = value.strip().removesuffix("Z").replace(" ", "T")
        start = np.datetime64(text).astype(f"datetime64[{unit}]")
        is_between = bool((beyond or "").strip("0"))
    elif isinstance(value, np.datetime64):
        start = value
    elif isinstance(value, datetime.datetime):
        start = np.datetime64(value.replace(tzinfo=None), "us")
        is_between = getattr(value, "nanosecond", 0) > 0
    elif isinstance(value, datetime.date):
        start = np.datetime64(value, "D")
    else:
        raise ValueError(value)
    if np.isnat(start):
        raise ValueError(value)
    if np.datetime_data(start.dtype)[0] in ("ns", "ps", "fs", "as"):
        is_between = bool(start != start.astype("datetime64[us]"))
        start = start.astype("datetime64[us]")
    first, after = start.astype("datetime64[us]"), (start + 1).astype("datetime64[us]")
    return after if is_between else first, after - np.timedelta64(1, "us")


# ---- time zones

_OFFSET = re.compile(r"(?:UTC)?([+-])(\d\d):?(\d\d)$")
_WITH_OFFSET = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d.*(Z|[+-]\d\d:?\d\d)$")


def zone_of(name: str) -> datetime.tzinfo:
    """The zone of a name, or of a difference from UTC.

    >>> zone_of("UTC+02:00").utcoffset(None)
    datetime.timedelta(seconds=7200)
    """
    offset = _OFFSET.match(name)
    if offset is None:
        return zoneinfo.ZoneInfo(name)
    sign, hours, minutes = offset.groups()
    delta = datetime.timedelta(hours=int(hours), minutes=int(minutes))
    return datetime.timezone(delta if sign == "+" else -delta)


def between_zones(dates: np.ndarray, source: str, target: str) -> np.ndarray:
    """Times of clocks in one zone as times of clocks in another.

    >>> between_zones(np.array(["2024-07-01T12:00"], "M8[us]"), "UTC", "Europe/Berlin")
    array(['2024-07-01T14:00:00.000000'], dtype='datetime64[us]')
    """
    from_zone, to_zone = zone_of(source), zone_of(target)
    distinct, place = np.unique(dates, return_inverse=True)
    clocks = [
        date and date.replace(tzinfo=from_zone).astimezone(to_zone).replace(tzinfo=None)
        for date in distinct.tolist()
    ]
    times: np.ndarray = np.array(clocks, "datetime64[us]")[place.reshape(-1)]
    return times


def in_zone(value: Any, zone: str) -> Any:
    """A date-time that has a zone as clocks in another zone show it; every other value as it is."""
    if isinstance(value, str) and zone and _WITH_OFFSET.match(value.strip()):
        value = datetime.datetime.fromisoformat(value.strip())
    if zone and isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(zone_of(zone)).replace(tzinfo=None)
    return value
