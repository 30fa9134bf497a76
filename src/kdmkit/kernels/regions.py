"""Regions: sets of outcomes of one variable, closed under `&`, `|` and `~`.

Ends keep the form in which they were given, a float, an exact integer, a date, a text, until a kernel
measures it. A *cut* is the position just before or just after a value; the interval [a, b) goes from the cut
before a to the cut before b. Set operations are sweeps over sorted cuts.
"""

from __future__ import annotations

import datetime
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from kdmkit._core.checks import as_tensor, bad_argument, check_choice

Closed = Literal["both", "left", "right", "neither"]
_CLOSED = ("both", "left", "right", "neither")
#: The family of values that can be compared, the value, and whether the position lies after it.
Cut = tuple[int, Any, bool]
#: The outcomes from one cut to a later one.
Span = tuple[Cut, Cut]

START: Cut = (-1, 0, False)
STOP: Cut = (99, 0, True)
_EVERYTHING: tuple[Span, ...] = ((START, STOP),)
#: Values of one kind have an order; a date-time is a date, so it comes first.
_KINDS = (str, datetime.datetime, datetime.date, datetime.time, datetime.timedelta)
#: Ends that stay as they are.
_PLAIN = (type(None), int, str)
_has_missing = attrgetter("has_missing")


class Region(ABC):
    """A set of outcomes of one variable: numbers, levels, dates, and `Missing`.

    Regions are closed under `&`, `|` and `~`; the complement of a region without `Missing` contains it. Two
    regions are equal if they hold the same outcomes. `Interval` and `OneOf` may also hold tensors, one region
    for every element of a batch; then there are no set operations.

    >>> import kdmkit as kdm
    >>> ~kdm.Interval(0, 1) & kdm.Interval(None, 2)
    Union([Interval(None, 0, closed='left'), Interval(1, 2, closed='right')])
    >>> 0.5 in ~kdm.Interval(0, 1), kdm.OneOf(["a"]) == ~~kdm.OneOf(["a"])
    (False, True)
    """

    #: Whether `Missing` is among the outcomes.
    has_missing: bool = False
    #: Whether there is a region for every element of a batch.
    is_batch: bool = False

    @property
    @abstractmethod
    def spans(self) -> tuple[Span, ...]:
        """The outcomes other than `Missing`, as disjoint spans in ascending order."""

    @property
    def pieces(self) -> tuple[Interval, ...]:
        """The normal form: disjoint intervals in ascending order, without `Missing`."""
        return tuple([_interval(span) for span in self.spans])

    @property
    def points(self) -> list[Any]:
        """The outcomes that are single values."""
        return [stop[1] for start, stop in self.spans if is_point((start, stop))]

    def contains(self, numbers: np.ndarray) -> np.ndarray:
        """Which numbers lie in a region of numbers; NaN lies in none."""
        starts, above, stops, upto = self._ends
        if not len(starts):
            return np.zeros(numbers.shape, dtype=bool)
        place = np.maximum(np.searchsorted(starts, numbers, side="right") - 1, 0)
        over = np.where(above[place], numbers > starts[place], numbers >= starts[place])
        return over & np.where(upto[place], numbers <= stops[place], numbers < stops[place])

    @cached_property
    def _ends(self) -> tuple[np.ndarray, ...]:
        """The ends of the intervals as arrays, with whether they lie after their numbers."""
        starts = [-math.inf if start == START else float(start[1]) for start, _ in self.spans]
        stops = [math.inf if stop == STOP else float(stop[1]) for _, stop in self.spans]
        after = ([start[2] for start, _ in self.spans], [stop[2] for _, stop in self.spans])
        return np.array(starts), np.array(after[0], bool), np.array(stops), np.array(after[1], bool)

    @property
    def is_empty(self) -> bool:
        """Whether the region has no outcome."""
        return not self.spans and not self.has_missing

    @property
    def is_whole(self) -> bool:
        """Whether the region has all outcomes, `Missing` among them."""
        return self.has_missing and self.spans == _EVERYTHING

    def __and__(self, other: Any) -> Region:
        return intersection([self, other]) if isinstance(other, Region) else NotImplemented

    def __or__(self, other: Any) -> Region:
        return union([self, other]) if isinstance(other, Region) else NotImplemented

    def __invert__(self) -> Region:
        cuts = [START, *[cut for span in self.spans for cut in span], STOP]
        pairs = zip(cuts[::2], cuts[1::2], strict=True)
        return region_of(tuple([pair for pair in pairs if pair[0] < pair[1]]), not self.has_missing)

    def __contains__(self, value: Any) -> bool:
        if is_missing(value):
            return self.has_missing
        before = (*_family_and_value(value), False)
        return any(start <= before < stop for start, stop in self.spans)

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, Region):
            return NotImplemented
        return self.spans == other.spans and self.has_missing == other.has_missing

    def __hash__(self) -> int:
        return hash((self.spans, self.has_missing))


@dataclass(frozen=True, eq=False, repr=False)
class Interval(Region):
    """The outcomes between two ends; of events with several dimensions, in every dimension.

    Args:
        low, high: values, or tensors `(*lead, *event)` for a batch. None, −∞ and +∞ are open ends.
        closed: which ends belong to the interval.

    Attributes:
        above, below: whether outcomes are strictly above `low`, strictly below `high`.

    >>> Interval(None, 0.5), 0.5 in Interval(0, 0.5, closed="left")
    (Interval(None, 0.5), False)
    """

    low: Any
    high: Any
    closed: Closed = "both"
    above: bool = field(init=False)
    below: bool = field(init=False)

    def __post_init__(self) -> None:
        if self.closed not in _CLOSED:
            check_choice("closed", self.closed, _CLOSED)
        low, high = self.low, self.high
        low = low if type(low) in _PLAIN else _end("low", low)
        high = high if type(high) in _PLAIN else _end("high", high)
        above, below = self.closed in ("right", "neither"), self.closed in ("left", "neither")
        is_batch = isinstance(low, Tensor) or isinstance(high, Tensor)
        self.__dict__.update(low=low, high=high, above=above, below=below, is_batch=is_batch)
        if is_batch:
            self._check_batch()
            return
        start = START if low is None else (*_family_and_value(low), above)
        stop = STOP if high is None else (*_family_and_value(high), not below)
        if start[0] == stop[0] == 0 and start[1] > stop[1]:  # texts are read later
            raise ValueError(bad_argument("low, high", "low ≤ high", f"{self.low} > {self.high}"))
        is_nothing = start[:2] == stop[:2] and not start < stop
        self.__dict__["spans"] = () if is_nothing else ((start, stop),)

    def _check_batch(self) -> None:
        try:
            low, high = torch.broadcast_tensors(*self.tensors())
        except RuntimeError as error:
            shapes = " and ".join(str(tuple(end.shape)) for end in self.tensors())
            raise ValueError(bad_argument("low, high", "shapes that broadcast", shapes)) from error
        if bool((low > high).any()):
            got = f"{low[low > high][0].item():g} > {high[low > high][0].item():g}"
            raise ValueError(bad_argument("low, high", "low ≤ high", got))

    def tensors(self, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
        """Both ends in float64, on one device."""
        like = next((end for end in (self.low, self.high) if isinstance(end, Tensor)), None)
        device = device or (None if like is None else like.device)
        low, high = [
            torch.as_tensor(open_end if end is None else end, dtype=torch.float64, device=device)
            for end, open_end in ((self.low, -math.inf), (self.high, math.inf))
        ]
        return low, high

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        raise TypeError(bad_argument("region", "one interval for a set operation", "a batch of tensors"))

    def __repr__(self) -> str:
        closed = "" if self.closed == "both" else f", closed={self.closed!r}"
        return f"Interval({self.low!r}, {self.high!r}{closed})"


@dataclass(frozen=True, eq=False, repr=False)
class OneOf(Region):
    """One of finitely many outcomes; a value that is listed twice counts once, NaN and None are `Missing`.

    Args:
        values: a sequence, or a tensor `(k,)` of codes or numbers, or `(*lead, k)` for a batch of sets.

    >>> OneOf([2, 0, 2])
    OneOf([0, 2])
    """

    values: Any

    def __post_init__(self) -> None:
        values: Any = self.values
        if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
            values = []
        elif isinstance(values, Tensor) and values.ndim and (values.ndim > 1 or values.requires_grad):
            values = values if values.shape[-1] else []
        else:
            values = values.reshape(-1).tolist() if isinstance(values, Tensor) else list(values)
            special = [value for value in values if type(value) not in _PLAIN]
            if any(isinstance(value, Iterable) and not isinstance(value, str) for value in special):
                values = as_tensor("values", values, wide=True)
            elif special:
                values = [_outcome(value) for value in values]
        if isinstance(values, list) and not values:
            raise ValueError(bad_argument("values", "one or more outcomes in a sequence", repr(self.values)))
        is_batch = isinstance(values, Tensor)
        self.__dict__.update(values=values, is_batch=is_batch, has_missing=not is_batch and None in values)

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        if self.is_batch:
            raise TypeError(bad_argument("region", "one set for a set operation", "a batch of tensors"))
        keys = sorted({_family_and_value(value) for value in self.values if value is not None})
        return tuple([((*key, False), (*key, True)) for key in keys])

    def __repr__(self) -> str:
        if self.is_batch:
            return f"OneOf({self.values!r})"
        return f"OneOf({self.points + [None] * self.has_missing})"


class Union(Region):
    """The outcomes of several regions, in normal form. Set operations return it.

    Args:
        regions: intervals, sets, `Missing`, unions.

    >>> Union([Interval(1, 2), Interval(0, 1), OneOf([5])]), Union([Missing])
    (Union([Interval(0, 2), OneOf([5])]), Missing)
    """

    spans: tuple[Span, ...] = ()

    def __init__(self, regions: Sequence[Region]) -> None:
        self.spans = _merged([region.spans for region in regions], 1)
        self.has_missing = any(map(_has_missing, regions))

    @classmethod
    def _made(cls, spans: tuple[Span, ...], missing: bool) -> Union:
        made = cls.__new__(cls)
        made.spans, made.has_missing = spans, missing
        return made

    def __repr__(self) -> str:
        if self.has_missing and not self.spans:
            return "Missing"
        parts = [region_of((span,)) for span in self.spans] + [Missing] * self.has_missing
        return f"Union({parts})"


#: The outcome that there is no value; all outcomes; and none.
Missing, WHOLE, NOTHING = Union._made((), True), Union._made(_EVERYTHING, True), Union._made((), False)


def region_of(spans: tuple[Span, ...], missing: bool = False) -> Region:
    """The simplest region of these outcomes."""
    if missing or not spans:
        return Union._made(spans, missing) if spans or not missing else Missing
    if all(map(is_point, spans)):
        return OneOf([stop[1] for _, stop in spans])
    return _interval(spans[0]) if len(spans) == 1 else Union._made(spans, False)


def union(regions: Sequence[Region]) -> Region:
    """The outcomes of at least one of some regions.

    >>> union([Interval(0, 1, closed="left"), Interval(1, 2)])
    Interval(0, 2)
    """
    spans = _merged([region.spans for region in regions], 1)
    return region_of(spans, any(map(_has_missing, regions)))


def intersection(regions: Sequence[Region]) -> Region:
    """The outcomes of all of some regions.

    >>> intersection([Interval(0, 1), Interval(1, 2), ~OneOf([7])])
    OneOf([1])
    """
    if len(regions) < 2:
        return regions[0] if regions else WHOLE
    spans = shared_spans([region.spans for region in regions])
    return region_of(spans, all(map(_has_missing, regions)))


def shared_spans(groups: Sequence[Sequence[Span]]) -> tuple[Span, ...]:
    """The outcomes that lie in all of some sets of disjoint spans."""
    return _merged(groups, len(groups))


def _merged(groups: Sequence[Sequence[Span]], least: int) -> tuple[Span, ...]:
    """The outcomes that lie in at least `least` of some sets of disjoint spans."""
    if len(groups) == 1:
        return tuple(groups[0])
    starts_and_stops = []
    for group in groups:
        for start, stop in group:
            starts_and_stops += [(start, 0), (stop, 1)]
    spans: list[Span] = []
    depth, first = 0, START
    for cut, is_stop in sorted(starts_and_stops):  # starts come first: spans that touch are one
        depth += -1 if is_stop else 1
        if not is_stop and depth == least:
            first = cut
        elif is_stop and depth == least - 1 and first < cut:
            spans.append((first, cut))
    return tuple(spans)


def is_point(span: Span) -> bool:
    """Whether a span is a single value."""
    (family, value, after), stop = span
    return not after and stop == (family, value, True) and family >= 0


def _interval(span: Span) -> Interval:
    """The interval between two cuts, without checks."""
    start, stop = span
    made = object.__new__(Interval)
    low, high = None if start == START else start[1], None if stop == STOP else stop[1]
    above, below = start[2], not stop[2]
    made.__dict__.update(low=low, high=high, above=above, below=below, spans=(span,))
    made.__dict__["closed"] = ("neither" if below else "right") if above else ("left" if below else "both")
    return made


def interval(low: Any, high: Any, *, above: bool, below: bool) -> Interval:
    """The values strictly above (or from) `low` and strictly below (or up to) `high`.

    >>> interval(0, 1, above=True, below=False)
    Interval(0, 1, closed='right')
    """
    return Interval(low, high, ("neither" if below else "right") if above else ("left" if below else "both"))


def is_missing(value: Any) -> bool:
    """Whether a value stands for `Missing`: None, NaN, NaT."""
    return value is None or value is Missing or type(value).__name__ == "NAType" or bool(value != value)


def _family_and_value(value: Any) -> tuple[int, Any]:
    """The family of values that a value is comparable with, 0 for numbers, and the value."""
    if type(value) in (int, float):
        return 0, value
    family = next((i for i, kind in enumerate(_KINDS, 1) if isinstance(value, kind)), 0)
    # Those with a time zone cannot be compared with those without.
    return family + len(_KINDS) * (getattr(value, "tzinfo", None) is not None), value


def _plain(value: Any) -> Any:
    """A number of Python in place of one of NumPy or torch."""
    kind = getattr(getattr(value, "dtype", None), "kind", None)
    return value.item() if isinstance(value, Tensor) or kind in ("b", "i", "f", "u") else value


def _end(name: str, value: Any) -> Any:
    """A value of Python, or a tensor of a batch; infinite ends are None."""
    if type(value) is float and math.isfinite(value):
        return value
    if (hasattr(value, "ndim") and value.ndim) or isinstance(value, list | tuple):
        value = as_tensor(name, value, wide=True)
    if isinstance(value, Tensor) and (value.ndim or value.requires_grad):
        if bool(value.isnan().any()):
            raise ValueError(bad_argument(name, "a number, ±∞ or None", "NaN"))
        return value
    value = _plain(value)
    if value is not None and is_missing(value):
        raise ValueError(bad_argument(name, "a number, ±∞ or None", "NaN"))
    return None if isinstance(value, float) and math.isinf(value) else value


def _outcome(value: Any) -> Any:
    """A value of Python; None is `Missing`."""
    value = _plain(value)
    if isinstance(value, float) and math.isinf(value):
        raise ValueError(bad_argument("values", "finite values", value))
    return None if is_missing(value) else value
