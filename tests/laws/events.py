"""Random events with their literal meaning: the rows of a frame that satisfy them."""

from __future__ import annotations

import datetime as dt
import operator
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

import kdmkit as kdm
from kdmkit.distributions.events import Event
from laws.frames import LawFrame, Subject, numbers_of

Mask = Callable[[Any], np.ndarray]
_SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True)
class Meaning:
    """An event, and the rows of a frame in which it happens."""

    event: Event
    holds: Mask

    def __and__(self, other: Meaning) -> Meaning:
        return Meaning(self.event & other.event, lambda frame: self.holds(frame) & other.holds(frame))

    def __or__(self, other: Meaning) -> Meaning:
        return Meaning(self.event | other.event, lambda frame: self.holds(frame) | other.holds(frame))

    def __invert__(self) -> Meaning:
        return Meaning(~self.event, lambda frame: ~self.holds(frame))


def outcome(subject: Subject, values: Any) -> np.ndarray:
    """Cells in a form in which numpy compares them as people do."""
    if subject.kind == "ordinal":
        codes = {level: code for code, level in enumerate(subject.values)}
        return np.array([codes[value] for value in values])
    if subject.kind == "time":
        return np.array([_seconds(value) for value in values])
    if subject.kind == "date":
        return pd.to_datetime(pd.Series(values)).to_numpy("datetime64[us]")
    if subject.kind == "duration":
        return pd.to_timedelta(pd.Series(values)).to_numpy("timedelta64[us]")
    return np.asarray(numbers_of(pd.Series(values))) if subject.kind == "number" else np.asarray(values)


def _seconds(value: Any) -> float:
    value = dt.time.fromisoformat(value) if isinstance(value, str) else value
    return value.hour * 3600 + value.minute * 60 + value.second + value.microsecond / 1e6


def _span(subject: Subject, value: Any) -> tuple[Any, Any]:
    """The first and the last instant of what a value stands for: "2024-05" is a month."""
    if subject.kind == "duration":
        return (np.timedelta64(value),) * 2
    if subject.kind != "date":
        (place,) = outcome(subject, [value]) if subject.kind != "number" else (value,)
        return place, place
    if isinstance(value, str):
        units = {4: "Y", 7: "M", 10: "D", 16: "m"}
        instant = np.datetime64(value.replace(" ", "T"), units[len(value)])
        return instant.astype("datetime64[us]"), (instant + 1).astype("datetime64[us]") - np.timedelta64(
            1, "us"
        )
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return _span(subject, value.isoformat())
    return (np.datetime64(value, "us"),) * 2


def compare(subject: Subject, sign: str, value: Any) -> Meaning:
    """column < value, and its kind."""
    column = kdm.col(subject.name)
    first, last = _span(subject, value)
    masks: dict[str, Mask] = {
        "<": lambda x: x < first,
        "<=": lambda x: x <= last,
        ">": lambda x: x > last,
        ">=": lambda x: x >= first,
        "=": lambda x: (x >= first) & (x <= last) if subject.is_ordered else x == value,
    }
    if sign == "!=":
        return ~compare(subject, "=", value)
    event = _SIGNS[sign](column, value)

    def holds(frame: Any) -> np.ndarray:
        there = ~is_missing(subject).holds(frame)
        inside = np.zeros(len(frame), dtype=bool)
        if there.any():
            inside[there] = masks[sign](outcome(subject, frame[subject.name][there]))
        return inside

    return Meaning(event, holds)


def is_missing(subject: Subject) -> Meaning:
    """The cell is missing."""

    def holds(frame: Any) -> np.ndarray:
        cells = frame[subject.name]
        return np.asarray((numbers_of(cells) if subject.kind == "number" else cells).isna())

    return Meaning(kdm.col(subject.name).is_missing(), holds)


def can_compare(left: str, right: str) -> Event:
    """Both cells are there."""
    return ~kdm.col(left).is_missing() & ~kdm.col(right).is_missing()


def between(subject: Subject, low: Any, high: Any, closed: str) -> Meaning:
    """A range; a range of times may go over midnight."""
    low_sign = ">=" if closed in ("both", "left") else ">"
    high_sign = "<=" if closed in ("both", "right") else "<"
    over, under = compare(subject, low_sign, low), compare(subject, high_sign, high)
    is_wrapped = subject.kind == "time" and _seconds(low) > _seconds(high)
    both = over | under if is_wrapped else over & under
    return Meaning(kdm.col(subject.name).between(low, high, closed), both.holds)  # type: ignore[arg-type]


def one_of(subject: Subject, values: Sequence[Any]) -> Meaning:
    meaning = compare(subject, "=", values[0])
    for value in values[1:]:
        meaning = meaning | compare(subject, "=", value)
    return Meaning(kdm.col(subject.name).isin(values), meaning.holds)


def date_part(rng: random.Random, subject: Subject) -> Meaning:
    """month(date) = 7, and its kind."""
    parts = {"year": range(2018, 2062), "month": range(1, 13), "weekday": range(7), "day": range(1, 32)}
    names = {"months": ["year", "month"], "years": ["year"]}.get(subject.source, list(parts))
    part = rng.choice(names)
    value, sign = rng.choice(parts[part]), rng.choice(list(_SIGNS))
    event = _SIGNS[sign](getattr(kdm.col(subject.name), part), value)

    def holds(frame: Any) -> np.ndarray:
        return np.asarray(_SIGNS[sign](getattr(frame[subject.name].dt, part), value))

    return Meaning(event, holds)


def pair(rng: random.Random, left: str, right: str) -> Meaning:
    """left <= right, and its kind."""
    sign = rng.choice(list(_SIGNS))
    event = _SIGNS[sign](kdm.col(left), kdm.col(right))
    return Meaning(event, lambda frame: _SIGNS[sign](*(_numbers(frame[name]) for name in (left, right))))


def _numbers(series: Any) -> np.ndarray:
    if series.dtype.kind == "m":
        return series.dt.total_seconds().to_numpy()
    if series.dtype == object and isinstance(series.dropna().iloc[0], dt.time):
        return np.array([np.nan if value is None else _seconds(value) for value in series])
    series = numbers_of(series)
    is_nullable = pd.api.types.is_extension_array_dtype(series.dtype)
    return series.to_numpy(float, na_value=np.nan) if is_nullable else series.to_numpy()


class EventMaker:
    """Random events about a frame."""

    def __init__(self, rng: random.Random, law_frame: LawFrame) -> None:
        self.rng, self.frame = rng, law_frame
        self.subjects = law_frame.subjects

    def condition(self, subject: Subject | None = None) -> Meaning:
        """A condition on one column."""
        rng = self.rng
        subject = rng.choice(self.subjects) if subject is None else subject
        if subject.has_missing and rng.random() < 0.2:
            return rng.choice([is_missing(subject), ~is_missing(subject)])
        some = [subject.some(rng) for _ in range(rng.choice([1, 2, 3]))]
        if not subject.is_ordered:
            plain = compare(subject, rng.choice(["=", "!="]), some[0])
            return rng.choice([plain, one_of(subject, some), ~one_of(subject, some)])
        pick = rng.random()
        if pick < 0.45:
            return compare(subject, rng.choice(list(_SIGNS)), some[0])
        if pick < 0.6:
            return rng.choice([one_of(subject, some), ~one_of(subject, some)])
        if pick < 0.7 and subject.kind == "date":
            return date_part(rng, subject)
        low, high = self.ends(subject)
        return between(subject, low, high, rng.choice(["both", "left", "right", "neither"]))

    def ends(self, subject: Subject) -> tuple[Any, Any]:
        """Two different ends in their order."""
        for _ in range(100):
            low, high = subject.some(self.rng), subject.some(self.rng)
            if _span(subject, low)[1] < _span(subject, high)[0]:
                return low, high
        raise AssertionError(subject)

    def event(self, depth: int = 2) -> Meaning:
        """A random event; `depth` limits the levels of and, or, not."""
        pick = self.rng.random()
        if depth == 0 or pick < 0.4:
            return self.condition()
        if pick < 0.5:
            return ~self.event(depth - 1)
        one, other = self.event(depth - 1), self.event(depth - 1)
        return one & other if pick < 0.75 else one | other

    def cuts(self, subject: Subject, n: int) -> list[Any]:
        """Ascending values of an ordered column that do not overlap."""
        values: list[Any] = []
        for value in sorted((subject.some(self.rng) for _ in range(n)), key=lambda one: _span(subject, one)):
            if not values or _span(subject, values[-1])[1] < _span(subject, value)[0]:
                values.append(value)
        return values

    def partition(self, subject: Subject) -> list[Meaning]:
        """Disjoint conditions on a column of which one holds."""
        return self.ranges(subject) + [is_missing(subject)] * subject.has_missing

    def ranges(self, subject: Subject) -> list[Meaning]:
        """Disjoint conditions on the values of a column of which one holds if the cell is there."""
        if not subject.is_ordered:
            return [compare(subject, "=", level) for level in subject.values]
        cuts = self.cuts(subject, self.rng.randint(1, 4))
        parts = [compare(subject, "<", cuts[0])]
        for i, cut in enumerate(cuts):
            single = self.rng.random() < 0.5
            parts += [compare(subject, "=", cut)] if single else []
            closed = "neither" if single else "left"
            if i + 1 < len(cuts):
                parts.append(between(subject, cut, cuts[i + 1], closed))
            else:
                parts.append(compare(subject, ">" if single else ">=", cut))
        return parts
