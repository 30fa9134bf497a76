"""What conditions are about, and their text in the query language."""

from __future__ import annotations

import datetime
import math
import re
from typing import Any, Literal, NamedTuple

from kdmkit.kernels.regions import Interval, Missing, OneOf, Region

DatePartName = Literal["year", "month", "weekday", "day", "hour"]
DATE_PARTS = ("year", "month", "weekday", "day", "hour")


class DatePart(NamedTuple):
    """A part of a date, which is a whole number. Months and days count from 1, weekdays from Monday = 0."""

    name: str
    part: str

    def __str__(self) -> str:
        return f"{self.part}({quoted_name(self.name)})"


class Pair(NamedTuple):
    """Two variables of one kind that are compared: conditions are on the sign of left − right."""

    left: str
    right: str


#: What a condition is about.
Key = str | DatePart | Pair

#: Words that have a meaning in queries.
KEYWORDS = {"and", "or", "not", "in", "between", "is"}
_WORD = re.compile(r"[^\W\d][\w.\-]*")


def condition_text(key: Key, region: Region, *, negated: bool) -> str:
    if isinstance(key, Pair):
        # In backticks: a word would be a value of the left variable if it has such a value.
        left, right = quoted_name(key.left), _in_backticks(key.right)
        if isinstance(region, OneOf):
            return f"{left} {'!=' if negated else '='} {right}"
        return f"{'not ' if negated else ''}{left} {_sign(region)} {right}"
    name = str(key) if isinstance(key, DatePart) else quoted_name(key)
    if region is Missing:
        return f"{name} is not missing" if negated else f"{name} is missing"
    if isinstance(region, OneOf):
        values = list(map(_value_text, dict.fromkeys(region.values)))
        if len(values) == 1:
            return f"{name} {'!=' if negated else '='} {values[0]}"
        return f"{name} {'not in' if negated else 'in'} {{{', '.join(values)}}}"
    assert isinstance(region, Interval)
    text = _interval_text(name, region)
    return f"not {text}" if negated else text


def _interval_text(name: str, region: Interval) -> str:
    low, high = region.low, region.high
    if low is None and high is None:
        return f"{name} is not missing"
    if high is None:
        return f"{name} {'>' if region.above else '>='} {_value_text(low)}"
    if low is None:
        return f"{name} {'<' if region.below else '<='} {_value_text(high)}"
    opening, closing = "(" if region.above else "[", ")" if region.below else "]"
    return f"{name} in {opening}{_value_text(low)}, {_value_text(high)}{closing}"


def _sign(region: Region) -> str:
    assert isinstance(region, Interval)
    if region.low is None:
        return "<" if region.below else "<="
    return ">" if region.above else ">="


def _is_word(text: str) -> bool:
    return _WORD.fullmatch(text) is not None and text.lower() not in KEYWORDS


def quoted_name(name: str) -> str:
    """A name as a query writes it: in backticks unless it is a word."""
    return name if _is_word(name) else _in_backticks(name)


def _in_backticks(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _value_text(value: Any) -> str:
    """A value as a query writes it: a text in quotes unless it is a word; durations in seconds."""
    if isinstance(value, datetime.timedelta) or hasattr(value, "total_seconds"):
        value = value.total_seconds()
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int | float) and math.isfinite(value):
        return repr(value)
    if isinstance(value, str) and _is_word(value):
        return value
    if isinstance(value, datetime.datetime):
        is_between = getattr(value, "nanosecond", 0) > 0
        value = value.isoformat(timespec="nanoseconds" if is_between else "microseconds")
    elif isinstance(value, datetime.date | datetime.time):
        value = value.isoformat()
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
