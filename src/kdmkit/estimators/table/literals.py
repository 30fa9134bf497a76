"""Numbers, months, weekdays and dates as people write them."""

from __future__ import annotations

import datetime
import re

MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")

_NUMBER = re.compile(
    r"""(?P<sign>[+\-−]?) [$€£¥]?[ ]?
    (?P<digits> (?:\d{1,3}(?:,\d{3})+ | \d+(?:_\d+)*)? (?P<point>\.(?:\d+(?:_\d+)*)?)? )
    (?P<exponent>[eE][+-]?\d{1,6})? [ ]?(?P<unit>[kKM%]?)[ ]?[$€£¥]?""",
    re.VERBOSE,
)
_POWERS = {"": 0, "k": 3, "K": 3, "M": 6, "%": -2}
_LARGEST = 1e308
_LONGEST = 1_000


def is_number(text: str) -> bool:
    """Whether a text is a number as `read_number` takes it, of any size."""
    return _matched(text) is not None


_PLAIN = re.compile(
    r"[+-]?(?:\d+(?P<fraction>\.\d*)?|(?P<point>\.\d+))(?P<exponent>[eE][+-]?\d{1,6})?", re.ASCII
)


def plain_number(text: str) -> int | float | None:
    """A number as Python writes it, below 1e308; None for other texts."""
    match = _PLAIN.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None or not abs(number := float(text)) < _LARGEST:
        return None
    return number if match["fraction"] or match["point"] or match["exponent"] else int(text)


def read_number(text: str) -> int | float:
    """A number as people write it; an int if it is written without a fraction or an exponent.

    Args:
        text: may have a sign of money, separators of thousands, and one of the units k, M and %.

    >>> [read_number(text) for text in ("20,000", "20_000", "$20", "2.5k", "3M", "-1e-9", "5%", "20 €")]
    [20000, 20000, 20, 2500.0, 3000000, -1e-09, 0.05, 20]
    """
    match = _matched(text)
    if match is None:
        raise ValueError("a number")
    sign = "-" if match["sign"] in ("-", "−") else ""
    digits, power = match["digits"].replace(",", "").replace("_", ""), _POWERS[match["unit"]]
    exponent = int(match["exponent"][1:]) if match["exponent"] else 0
    number = float(f"{sign}{digits}e{exponent + power}")
    if not abs(number) < _LARGEST:
        raise ValueError("a number below 1e308")
    is_whole = match["point"] is None and match["exponent"] is None and match["unit"] != "%"
    return int(sign + digits) * 10**power if is_whole else number


def _matched(text: str) -> re.Match[str] | None:
    match = _NUMBER.fullmatch(text) if len(text) <= _LONGEST else None
    return match if match and match["digits"] not in ("", ".") else None


_DURATION = re.compile(r"(\d[\d.,_]*)\s*([a-z]+)\.?(?:\s*(?:,|and)?\s*(?=\d)|$)", re.I)
_SECONDS = {
    **dict.fromkeys(("s", "sec", "second"), 1),
    **dict.fromkeys(("m", "min", "minute"), 60),
    **dict.fromkeys(("h", "hr", "hour"), 3600),
    **dict.fromkeys(("d", "day"), 86_400),
    **dict.fromkeys(("w", "wk", "week"), 604_800),
    "ms": 0.001,
}


def read_people_duration(text: str) -> int | float:
    """A duration in seconds: a number, or numbers with units.

    >>> [read_people_duration(text) for text in ("90", "30h", "1 day 2.5 hours", "-2min 5s", "1,500 ms")]
    [90, 108000, 95400.0, -125, 1.5]
    """
    unsigned = text.strip().lstrip("-−")
    parts = list(_DURATION.finditer(unsigned))
    units = [unit.lower() for unit in (part[2] for part in parts)]
    seconds = [_SECONDS.get(unit, _SECONDS.get(unit.removesuffix("s"), 0)) for unit in units]
    if parts and all(seconds) and sum(len(part[0]) for part in parts) == len(unsigned):
        total = sum(read_number(part[1]) * size for part, size in zip(parts, seconds, strict=True))
        return -total if len(unsigned) < len(text.strip()) else total
    if is_number(text):
        return read_number(text)
    raise ValueError("a number of seconds, or a duration such as 2h 30min or 1 day,")


def number_of_name(text: str, names: tuple[str, ...]) -> int | None:
    """The place of the month or weekday, from three of its letters on.

    >>> number_of_name("Sept", MONTHS), number_of_name("sat", WEEKDAYS), number_of_name("ju", MONTHS)
    (8, 5, None)
    """
    short = text.casefold().removesuffix(".")
    return next((i for i, name in enumerate(names) if len(short) >= 3 and name.startswith(short)), None)


# ---- dates

_ISO = re.compile(r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:[T ]\d[\d:.]*(?:Z|[+-]\d[\d:]*)?)?)?)?", re.A)
_CLOCK = r"(\d{1,2}):(\d\d)(?::(\d\d)(\.\d{1,6})?)?\s*([ap]m)?"
_TIME = re.compile(_CLOCK, re.I | re.A)
_HOUR = re.compile(r"(\d{1,2})\s*([ap]m)", re.I | re.A)
_DATE_TIME = re.compile(r"(.*?\d)(?:[T,]\s*|\s+)" + _CLOCK, re.I | re.A)
_YEAR_FIRST = re.compile(r"(?P<year>\d{4})(?:(?P<mark>[-/.])\d{1,2}(?P=mark)\d{1,2}|\d{4})")
_YEAR_LAST = re.compile(r"(\d{1,2})([-/.])(\d{1,2})\2(\d{4})")
_DAY_MONTH = re.compile(
    r"(?P<day>\d{1,2})(?:st|nd|rd|th|\.)?[\s\-]*(?P<month>[a-z]+)\.?[,\s\-]+(?P<year>\d{4})", re.I
)
_MONTH_DAY = re.compile(
    r"(?P<month>[a-z]+)\.?\s*(?P<day>\d{1,2})(?:st|nd|rd|th)?(?:,\s*|\s+)(?P<year>\d{4})", re.I
)
_MONTH = re.compile(r"(?P<month>[a-z]+)\.?[,\s\-/]+(?P<year>\d{4})", re.I)
_TIME_WANTED = "a time such as 18:30, 18:30:15 or 6:30 pm"
_WANTED = "a date such as 2024-05-31, 31.05.2024 or 4 July 2015"


def read_people_date(text: str, *, day_first: bool | None = None) -> str:
    """A date as people write it, in the form of ISO 8601, which is left as it is.

    Args:
        text: year, month and day; year and month; or year. A date may have a time.
        day_first: the order of day and month where both are possible. None raises a ValueError that shows
            both readings.

    >>> [read_people_date(text) for text in ("2024-05", "5/31/2024", "4.7.2015 18:30", "Jul 2015")]
    ['2024-05', '2024-05-31', '2015-07-04T18:30', '2015-07']
    >>> read_people_date("07/04/2015", day_first=True)
    '2015-04-07'
    """
    text = text.strip()
    if match := _ISO.fullmatch(text):
        _iso(match[1], match[2] or "1", match[3])  # raises for month 13
        return text
    timed = _DATE_TIME.fullmatch(text)
    date = _read_day(timed[1] if timed else text, day_first)
    if timed is None:
        return date
    if len(date) < 10:
        raise ValueError(_WANTED)
    return f"{date}T{_read_time(*timed.groups()[1:])}"


def read_people_time(text: str) -> str:
    """A time of day as people write it, in the form of ISO 8601.

    >>> [read_people_time(text) for text in ("9:15", "18:30:15.5", "6:30 pm", "12am")]
    ['09:15', '18:30:15.5', '18:30', '00:00']
    """
    text = text.strip()
    if match := _HOUR.fullmatch(text):
        return _read_time(match[1], "00", None, None, match[2])
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(_TIME_WANTED)
    return _read_time(*match.groups())


def _read_time(hour: str, minute: str, second: str | None, fraction: str | None, half: str | None) -> str:
    hours = int(hour)
    if half:
        if not 1 <= hours <= 12:
            raise ValueError("an hour from 1 to 12 before am or pm")
        hours = hours % 12 + (12 if half.lower() == "pm" else 0)
    if hours > 23 or int(minute) > 59 or int(second or 0) > 59:
        raise ValueError(_TIME_WANTED)
    return f"{hours:02}:{minute}" + (f":{second}{fraction or ''}" if second else "")


def _read_day(text: str, day_first: bool | None) -> str:
    if _YEAR_FIRST.fullmatch(text):
        year, month, day = re.fullmatch(r"(\d{4})\D?(\d{1,2}?)\D?(\d\d?)", text).groups()  # type: ignore[union-attr]
        return _iso(year, month, day)
    if match := _YEAR_LAST.fullmatch(text):
        first, mark, second, year = match.groups()
        return _iso(year, *_ordered(year, first, second, True if mark == "." else day_first))
    for form in (_DAY_MONTH, _MONTH_DAY, _MONTH):
        match = form.fullmatch(text)
        place = number_of_name(match["month"], MONTHS) if match else None
        if match and place is not None:
            return _iso(match["year"], place + 1, match.groupdict().get("day"))
    raise ValueError(_WANTED)


def _ordered(year: str, first: str, second: str, day_first: bool | None) -> tuple[str, str]:
    """Month and day."""
    if int(first) > 12 or int(second) > 12:
        day_first = int(first) > 12
    elif day_first is None and int(first) != int(second):
        readings = f"{_iso(year, first, second)} or {_iso(year, second, first)}"
        raise ValueError(f"a date with one reading, {readings},")
    return (second, first) if day_first else (first, second)


def _iso(year: str, month: str | int, day: str | None = None) -> str:
    try:
        date = datetime.date(int(year), int(month), int(day or 1)).isoformat()
    except ValueError as error:
        raise ValueError(_WANTED) from error
    return date if day else date[:7]
