"""Events: boolean expressions of conditions on variables, and their normal form of disjoint boxes.

    Event   =  Condition | All | AnyOf | Not          (All() is certain, AnyOf() is impossible)
    Box     =  one region for some variables: the event that every variable lies in its region

Conditions keep values as people gave them. Their regions meet only in `boxes`, after whoever asks has read
them: a table reads dates and levels, a joint KDM takes numbers as they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kdmkit._core.checks import bad_argument
from kdmkit.distributions.event_text import Key, condition_text, quoted_name
from kdmkit.kernels.region_forms import as_region
from kdmkit.kernels.regions import (
    Interval,
    Missing,
    OneOf,
    Region,
    intersection,
    is_missing,
    region_of,
    union,
)

#: One region for each of some variables: all of them hold together.
Box = dict[Any, Region]


class Outcomes(ABC):
    """What variables can be: makes regions that people wrote into regions of outcomes."""

    @abstractmethod
    def read(self, key: Key, region: Region) -> tuple[Key, Region]:
        """The variable that a condition is about, and the region of its outcomes."""

    @abstractmethod
    def trimmed(self, key: Key, region: Region) -> Region:
        """A region of outcomes; `WHOLE` if it holds all of them, `NOTHING` if it holds none."""


# Boxes of one event, and steps on the way to them.
_MOST_BOXES = 10_000
_MOST_STEPS = 50_000


class Event(ABC):
    """A boolean expression of conditions on variables: `&`, `|`, `~`. `kdmkit.col` makes conditions.

    `str(event)` is its text in the query language of tables.

    >>> import kdmkit as kdm
    >>> price, cut = kdm.col("price"), kdm.col("cut")
    >>> event = (price > 1000) & ~cut.isin(["Fair", "Good"])
    >>> str(event)
    'price > 1000 and cut not in {Fair, Good}'
    >>> str(event | (price.between(1, 2)))
    '(price > 1000 and cut not in {Fair, Good}) or price in [1, 2]'
    """

    @abstractmethod
    def _boxes(self, work: _Work, negated: bool) -> list[Box]:
        """Disjoint boxes of the event, or of its complement."""

    @abstractmethod
    def keys(self) -> set[Key]:
        """What the conditions are about."""

    def boxes(self, outcomes: Outcomes) -> list[Box]:
        """The normal form: disjoint boxes. None if the event is impossible, one empty box if it is certain.

        A ValueError is raised if there would be more than 10,000 of them.
        """
        return self._boxes(_Work(outcomes), False)

    def __and__(self, other: Any) -> Event:
        return All((*_parts(All, self), *_parts(All, other))) if isinstance(other, Event) else NotImplemented

    def __or__(self, other: Any) -> Event:
        if not isinstance(other, Event):
            return NotImplemented
        return AnyOf((*_parts(AnyOf, self), *_parts(AnyOf, other)))

    def __invert__(self) -> Event:
        return self.event if isinstance(self, Not) else Not(self)

    def __bool__(self) -> bool:
        wanted = "&, | and ~ between events (and, or, not and chained comparisons ask for a truth value)"
        raise TypeError(bad_argument("event", wanted, str(self)))


def _parts(kind: type[All | AnyOf], event: Event) -> tuple[Event, ...]:
    return event.parts if isinstance(event, kind) else (event,)


@dataclass(frozen=True)
class Condition(Event):
    """A variable lies in a region.

    Args:
        key: the variable, a part of a date, or a pair of variables that are compared.
        region: an `Interval`, a `OneOf` or `Missing`.
    """

    key: Key
    region: Region

    def keys(self) -> set[Key]:
        return {self.key}

    def _boxes(self, work: _Work, negated: bool) -> list[Box]:
        return work.intersection([self], negated)

    def __str__(self) -> str:
        return condition_text(self.key, self.region, negated=False)


@dataclass(frozen=True)
class All(Event):
    """All of some events happen."""

    parts: tuple[Event, ...] = ()

    def keys(self) -> set[Key]:
        return set().union(*[part.keys() for part in self.parts])

    def _boxes(self, work: _Work, negated: bool) -> list[Box]:
        return work.union(self.parts, negated) if negated else work.intersection(self.parts, negated)

    def __str__(self) -> str:
        return _joined(self.parts, " and ")


@dataclass(frozen=True)
class AnyOf(Event):
    """At least one of some events happens."""

    parts: tuple[Event, ...] = ()

    def keys(self) -> set[Key]:
        return set().union(*[part.keys() for part in self.parts])

    def _boxes(self, work: _Work, negated: bool) -> list[Box]:
        return work.intersection(self.parts, negated) if negated else work.union(self.parts, negated)

    def __str__(self) -> str:
        return _joined(self.parts, " or ")


@dataclass(frozen=True)
class Not(Event):
    """An event does not happen."""

    event: Event

    def keys(self) -> set[Key]:
        return self.event.keys()

    def _boxes(self, work: _Work, negated: bool) -> list[Box]:
        return self.event._boxes(work, not negated)

    def __str__(self) -> str:
        if isinstance(self.event, Condition):
            return condition_text(self.event.key, self.event.region, negated=True)
        return f"not ({self.event})"


CERTAIN, IMPOSSIBLE = All(), AnyOf()


def as_event(given: Any) -> Event:
    """What people give as evidence: an event; a mapping from variable to value; or None, which is certain.

    >>> str(as_event({"price": (1, None), "cut": ["Ideal"], "color": None}))
    'price >= 1 and cut = Ideal'
    """
    if isinstance(given, Event):
        return given
    conditions = [isin(name, value) for name, value in dict(given or {}).items() if not is_unknown(value)]
    return conditions[0] if len(conditions) == 1 else All(tuple(conditions))


def is_unknown(value: Any) -> bool:
    """Whether a value in a mapping of evidence says nothing: None, NaN and their kind."""
    return not isinstance(value, Region) and not hasattr(value, "__len__") and is_missing(value)


def isin(key: Key, value: Any) -> Event:
    """The event that a variable has a value: one, one in a region, or one of a list."""
    region = as_region(value)
    if region == ~Missing:
        return Not(Condition(key, Missing))
    if (isinstance(region, Interval | OneOf) and not region.has_missing) or region is Missing:
        return Condition(key, region)
    parts: list[Event] = [Condition(key, region_of((span,))) for span in region.spans]
    parts += [Condition(key, Missing)] if region.has_missing else []
    return parts[0] if len(parts) == 1 else AnyOf(tuple(parts))


# ---- boxes


class _Work:
    """Boxes of events, and the number of steps that they took."""

    def __init__(self, outcomes: Outcomes) -> None:
        self._outcomes, self._steps = outcomes, 0

    def intersection(self, parts: Sequence[Event], negated: bool) -> list[Box]:
        """The boxes in which all parts hold."""
        regions, rest = self._by_key(parts, negated)
        boxes: list[Box] = [{}]
        for key, several in regions.items():
            boxes = self._narrowed(boxes, key, intersection(several))
        for others in rest:
            boxes = [both for box in boxes for other in others for both in self._both(box, other)]
            self._check(boxes)
        return boxes

    def union(self, parts: Sequence[Event], negated: bool) -> list[Box]:
        """Disjoint boxes of which one holds if one of the parts does."""
        regions, rest = self._by_key(parts, negated)
        groups = [self._narrowed([{}], key, union(several)) for key, several in regions.items()]
        boxes: list[Box] = []
        for group in sorted([*groups, *rest], key=len):
            boxes += [new for box in group for new in self._outside(box, boxes)]
            if {} in boxes:
                return [{}]
            self._check(boxes)
        return self._merged(boxes)

    def _by_key(
        self, parts: Sequence[Event], negated: bool
    ) -> tuple[dict[Key, list[Region]], list[list[Box]]]:
        """Regions of the parts that are single conditions, by variable, and the boxes of the other parts."""
        regions: dict[Key, list[Region]] = {}
        rest = []
        for part in parts:
            flipped = negated
            while isinstance(part, Not):
                part, flipped = part.event, not flipped
            if isinstance(part, Condition):
                key, region = self._outcomes.read(part.key, part.region)
                regions.setdefault(key, []).append(~region if flipped else region)
            else:
                rest.append(part._boxes(self, flipped))
        return regions, rest

    def _narrowed(self, boxes: Sequence[Box], key: Key, region: Region) -> list[Box]:
        """The boxes, with one more region."""
        narrowed = []
        for box in boxes:
            self._steps += 1
            shared = intersection([box[key], region]) if key in box else region
            shared = self._outcomes.trimmed(key, shared)
            if shared.is_whole:
                narrowed.append({name: part for name, part in box.items() if name != key})
            elif not shared.is_empty:
                narrowed.append({**box, key: shared})
        return narrowed

    def _both(self, box: Box, other: Box) -> list[Box]:
        boxes = [box]
        for key, region in other.items():
            boxes = self._narrowed(boxes, key, region)
        return boxes

    def _outside(self, box: Box, others: Sequence[Box]) -> list[Box]:
        """What is left of a box without the other boxes."""
        left = [box]
        for other in others:
            left = [part for one in left for part in self._difference(one, other)]
            self._check(left)
        return left

    def _difference(self, box: Box, other: Box) -> list[Box]:
        parts: list[Box] = []
        inside = [box]
        for key, region in other.items():
            parts += self._narrowed(inside, key, ~region)
            inside = self._narrowed(inside, key, region)
            if not inside:
                return [box]
        return parts

    def _merged(self, boxes: Sequence[Box]) -> list[Box]:
        """The same with all boxes of one variable alone in one box."""
        single: dict[Key, list[Region]] = {}
        rest = [box for box in boxes if len(box) > 1]
        for box in boxes:
            for key, region in box.items() if len(box) == 1 else ():
                single.setdefault(key, []).append(region)
        return [
            box for key, several in single.items() for box in self._narrowed([{}], key, union(several))
        ] + rest

    def _check(self, boxes: Sequence[Box]) -> None:
        if len(boxes) > _MOST_BOXES or self._steps > _MOST_STEPS:
            raise ValueError(bad_argument("event", f"a union of at most {_MOST_BOXES} boxes", "more"))


# ---- text


def question_text(target: str | Event, given: Event) -> str:
    """A question in the query language.

    >>> question_text("price", as_event({"carat": (0.5, None), "cut": ["Ideal", "Good"]}))
    'P(price | carat >= 0.5 and cut in {Ideal, Good})'
    """
    wanted = quoted_name(target) if isinstance(target, str) else str(target)
    return f"P({wanted} | {given})" if given != CERTAIN else f"P({wanted})"


def _joined(parts: Sequence[Event], word: str) -> str:
    if not parts:
        return "true" if word == " and " else "false"
    texts = [f"({part})" if isinstance(part, All | AnyOf) else str(part) for part in parts]
    return word.join(texts)
