"""Columns of texts that are dates: the ways in which dates are written."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence

import numpy as np

from kdmkit._core.checks import bad_argument
from kdmkit.estimators.table.frames.storage import RawColumn

#: Ways to write dates, those of ISO 8601 first; %q is a quarter, which `strptime` does not know.
PATTERNS = (
    "%Y-%m-%d",
    "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%dT%H:%M:%S",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%dT%H:%M",
    "%Y-%m-%d %H:%M:%S.%f",
    "%Y-%m-%dT%H:%M:%S.%f",
    "%Y-%m-%dT%H:%M:%SZ",
    "%Y-%m-%dT%H:%M:%S.%fZ",
    "%Y/%m/%d",
    "%Y/%m/%d %H:%M:%S",
    "%d.%m.%Y",
    "%d.%m.%Y %H:%M",
    *("%m/%d/%Y", "%d/%m/%Y", "%m/%d/%Y %H:%M", "%d/%m/%Y %H:%M"),
    *("%m/%d/%Y %H:%M:%S", "%d/%m/%Y %H:%M:%S"),
    "%m/%d/%Y %I:%M %p",
    "%Y/%m/%d %H:%M",
    *("%m/%d/%y", "%d/%m/%y", "%m/%d/%y %H:%M", "%d/%m/%y %H:%M", "%d.%m.%y"),
    "%m-%d-%Y",
    "%d-%m-%Y",
    *("%d %b %Y", "%d-%b-%Y", "%d %B %Y", "%d-%b-%y", "%d-%B-%Y"),
    *("%b %d, %Y", "%B %d, %Y", "%b %d %Y", "%B %d %Y"),
    *("%b-%Y", "%b %Y", "%B %Y", "%B-%Y", "%Y %b", "%Y-%b", "%Y %B", "%b-%y", "%m/%Y", "%Y-%m"),
    *("%b-%d-%Y", "%B-%d-%Y", "%b/%d/%Y", "%d/%b/%Y", "%Y-%b-%d", "%Y %b %d", "%Y/%b/%d"),
    *("%YQ%q", "%Y-Q%q", "%Y Q%q", "%Y:Q%q", "Q%q %Y", "Q%q-%Y", "Q%q/%Y"),
)
#: Pairs that read the same text as different dates.
_AMBIGUOUS = (
    {"%m-%d-%Y", "%d-%m-%Y"},
    *({f"%m/%d/{end}", f"%d/%m/{end}"} for end in ("%Y", "%Y %H:%M", "%Y %H:%M:%S", "%y", "%y %H:%M")),
)
# Of dates with two digits for the year, the first that is not in this century.
_FIRST_OF_LAST_CENTURY = 2050
# Directives of numbers without a leading zero, which `strptime` reads as those with one.
_UNPADDED = {"%-d": "day", "%-m": "month", "%-H": "hour"}
_QUARTER = re.compile(r"[Qq]([1-4])(?!\d)")
_SAMPLE = 200


def date_format(column: RawColumn) -> str:
    """The `strptime` format of all texts of a column. Raises a ValueError unless there is exactly one."""
    formats = date_formats(column)
    if len(formats) == 1:
        return formats[0]
    if formats:
        got = f"texts that are dates both as {formats[0]} and as {formats[1]}"
        raise ValueError(bad_argument(f"column {column.name!r}", "dates of one meaning", got))
    raise ValueError(bad_argument(f"column {column.name!r}", "dates", _first_that_is_none(column)))


def date_formats(column: RawColumn) -> list[str]:
    """The formats in which all texts are written: one, none, or two if day and month may swap."""
    texts = list(dict.fromkeys(column.present.tolist()))
    formats = [pattern for pattern in PATTERNS if all(read_date(text, pattern) is not None for text in texts)]
    if formats == ["%Y-%m"] and all((int(text[2:4]) + 1) % 100 == int(text[-2:]) for text in texts):
        return []  # seasons, such as 2003-04
    chosen = formats if set(formats) in _AMBIGUOUS else formats[:1]
    return [_as_padded(pattern, texts[:_SAMPLE]) for pattern in chosen]


def _as_padded(pattern: str, texts: Sequence[str]) -> str:
    """The format that writes most texts as they are: numbers have leading zeros, or have none."""
    days = pattern.replace("%d", "%-d").replace("%m", "%-m")
    candidates = [pattern, days, pattern.replace("%H", "%-H"), days.replace("%H", "%-H")]

    def count(candidate: str) -> int:
        dates = np.array([read_date(text, candidate) for text in texts])
        return int((write_dates(dates, candidate) == np.array(texts, dtype=object)).sum())

    return max(dict.fromkeys(candidates), key=count)


def read_date(text: str, pattern: str) -> np.datetime64 | None:
    """The date of a text; None if it has another format."""
    if "%q" in pattern:
        pattern = pattern.replace("%q", "%m")
        text, count = _QUARTER.subn(lambda quarter: f"Q{3 * int(quarter[1]) - 2:02}", text)
        if count != 1:
            return None
    try:
        date = datetime.datetime.strptime(text.strip(), pattern.replace("%-", "%"))
    except ValueError:
        return None
    if "%y" in pattern and date.year >= _FIRST_OF_LAST_CENTURY:
        date = date.replace(year=date.year - 100)
    return np.datetime64(date, "us")


def read_dates(column: RawColumn, pattern: str) -> np.ndarray:
    """Dates of a column of texts. Raises a ValueError that names the first one that does not parse."""
    by_text: dict[str, np.datetime64] = {}
    dates = np.full(len(column.values), np.datetime64("NaT"), "datetime64[us]")
    for row in np.flatnonzero(~column.missing):
        text = column.values[row]
        if text not in by_text:
            date = read_date(text, pattern)
            if date is None:
                wanted, got = f"dates written as {pattern}", f"{text!r} in row {row}"
                raise ValueError(bad_argument(f"column {column.name!r}", wanted, got))
            by_text[text] = date
        dates[row] = by_text[text]
    return dates


def write_dates(dates: np.ndarray, pattern: str) -> np.ndarray:
    """Texts of dates `datetime64[us]`."""
    texts = np.empty(len(dates), dtype=object)
    texts[:] = [_written(date, pattern) for date in dates.astype("datetime64[us]").tolist()]
    return texts


def _written(date: datetime.datetime, pattern: str) -> str:
    for directive, part in _UNPADDED.items():
        if directive in pattern:
            pattern = pattern.replace(directive, str(getattr(date, part)))
    return date.strftime(pattern.replace("%q", str((date.month + 2) // 3)))


def _first_that_is_none(column: RawColumn) -> str:
    """The first text that is no date in any format, or in that of the first text."""
    rows = np.flatnonzero(~column.missing)
    first = [p for p in PATTERNS if read_date(column.values[rows[0]], p) is not None]
    for row in rows:
        if all(read_date(column.values[row], p) is None for p in first or PATTERNS):
            return f"{column.values[row]!r} in row {row}"
    return "texts in several formats"
