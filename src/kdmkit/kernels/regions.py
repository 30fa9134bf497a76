"""Regions: sets of outcomes of one variable, closed under `&`, `|` and `~`.

Ends keep the form in which they were given, a float, an exact integer, a date, a text, until a kernel
measures it. The interval [a, b) goes from the cut before a to the cut before b (`cuts`); set operations are
sweeps over sorted cuts.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from kdmkit._core.checks import as_tensor, bad_argument, check_choice
from kdmkit.kernels.cuts import (
    EVERYTHING,
    START,
    STOP,
    Span,
    complement,
    family_and_value,
    is_point,
    merged_spans,
    plain_value,
)

Closed = Literal["both", "left", "right", "neither"]


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

    @property
    @abstractmethod
    def spans(self) -> tuple[Span, ...]:
        """The outcomes other than `Missing`, as disjoint spans in ascending order."""

    @property
    def has_missing(self) -> bool:
        """Whether `Missing` is among the outcomes."""
        return False

    @property
    def is_batch(self) -> bool:
        """Whether there is a region for every element of a batch."""
        return False

    @property
    def pieces(self) -> tuple[Interval, ...]:
        """The normal form: disjoint intervals in ascending order, without `Missing`."""
        return tuple(map(_interval, self.spans))

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
        return self.has_missing and self.spans == EVERYTHING

    def __and__(self, other: Any) -> Region:
        return intersection([self, other]) if isinstance(other, Region) else NotImplemented

    def __or__(self, other: Any) -> Region:
        return union([self, other]) if isinstance(other, Region) else NotImplemented

    def __invert__(self) -> Region:
        return region_of(complement(self.spans), missing=not self.has_missing)

    def __contains__(self, value: Any) -> bool:
        if is_missing(value):
            return self.has_missing
        before = (*family_and_value(value), False)
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

    >>> Interval(None, 0.5), 0.5 in Interval(0, 0.5, closed="left")
    (Interval(None, 0.5), False)
    """

    low: Any
    high: Any
    closed: Closed = "both"

    def __post_init__(self) -> None:
        check_choice("closed", self.closed, ("both", "left", "right", "neither"))
        for name in ("low", "high"):
            object.__setattr__(self, name, _end(name, getattr(self, name)))
        if self.is_batch:
            self._check_batch()
            return
        start, stop = self._cuts
        if start[0] == stop[0] == 0 and start[1] > stop[1]:  # texts are read later
            raise ValueError(bad_argument("low, high", "low ≤ high", f"{self.low} > {self.high}"))

    @property
    def is_batch(self) -> bool:
        return isinstance(self.low, Tensor) or isinstance(self.high, Tensor)

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
        low, high = (
            torch.as_tensor(open_end if end is None else end, dtype=torch.float64, device=device)
            for end, open_end in ((self.low, -math.inf), (self.high, math.inf))
        )
        return low, high

    @property
    def above(self) -> bool:
        """Whether outcomes are strictly above `low`."""
        return self.closed in ("right", "neither")

    @property
    def below(self) -> bool:
        """Whether outcomes are strictly below `high`."""
        return self.closed in ("left", "neither")

    @cached_property
    def _cuts(self) -> Span:
        low = START if self.low is None else (*family_and_value(self.low), self.above)
        high = STOP if self.high is None else (*family_and_value(self.high), not self.below)
        return low, high

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        if self.is_batch:
            raise TypeError(bad_argument("region", "one interval for a set operation", "a batch of tensors"))
        start, stop = self._cuts
        return () if start[:2] == stop[:2] and not start < stop else ((start, stop),)

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
            nested = any(isinstance(value, Iterable) and not isinstance(value, str) for value in values)
            values = as_tensor("values", values, wide=True) if nested else [_outcome(v) for v in values]
        if isinstance(values, list) and not values:
            raise ValueError(bad_argument("values", "one or more outcomes in a sequence", repr(self.values)))
        object.__setattr__(self, "values", values)

    @property
    def is_batch(self) -> bool:
        return isinstance(self.values, Tensor)

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        if self.is_batch:
            raise TypeError(bad_argument("region", "one set for a set operation", "a batch of tensors"))
        keys = sorted({family_and_value(value) for value in self.values if not is_missing(value)})
        return tuple([((*key, False), (*key, True)) for key in keys])

    @property
    def has_missing(self) -> bool:
        return not self.is_batch and any(map(is_missing, self.values))

    def __repr__(self) -> str:
        if self.is_batch:
            return f"OneOf({self.values!r})"
        return f"OneOf({[stop[1] for _, stop in self.spans] + [None] * self.has_missing})"


@dataclass(frozen=True, eq=False, repr=False)
class MissingOutcome(Region):
    """The outcome that there is no value. `kdmkit.Missing` is the only object of this class.

    >>> import kdmkit as kdm
    >>> kdm.Missing, None in ~kdm.Missing
    (Missing, False)
    """

    @property
    def spans(self) -> tuple[Span, ...]:
        return ()

    @property
    def has_missing(self) -> bool:
        return True

    def __repr__(self) -> str:
        return "Missing"


Missing = MissingOutcome()


class Union(Region):
    """The outcomes of several regions, in normal form. Set operations return it.

    Args:
        regions: intervals, sets, `Missing`, unions.

    >>> Union([Interval(1, 2), Interval(0, 1), OneOf([5])])
    Union([Interval(0, 2), OneOf([5])])
    """

    def __init__(self, regions: Sequence[Region]) -> None:
        self._spans = merged_spans([region.spans for region in regions], 1)
        self._missing = any(region.has_missing for region in regions)

    @classmethod
    def _made(cls, spans: tuple[Span, ...], missing: bool) -> Union:
        made = cls.__new__(cls)
        made._spans, made._missing = spans, missing
        return made

    @property
    def spans(self) -> tuple[Span, ...]:
        return self._spans

    @property
    def has_missing(self) -> bool:
        return self._missing

    def __repr__(self) -> str:
        parts = [region_of((span,)) for span in self.spans] + [Missing] * self.has_missing
        return f"Union({parts})"


def region_of(spans: tuple[Span, ...], missing: bool = False) -> Region:
    """The simplest region of these outcomes."""
    if missing:
        return Missing if not spans else Union._made(spans, True)
    if spans and all(map(is_point, spans)):
        return OneOf([stop[1] for _, stop in spans])
    return _interval(spans[0]) if len(spans) == 1 else Union._made(spans, False)


#: All outcomes, and none.
WHOLE, NOTHING = Union._made(EVERYTHING, True), Union._made((), False)


def union(regions: Sequence[Region]) -> Region:
    """The outcomes of at least one of some regions.

    >>> union([Interval(0, 1, closed="left"), Interval(1, 2)])
    Interval(0, 2)
    """
    spans = merged_spans([region.spans for region in regions], 1)
    return region_of(spans, any(region.has_missing for region in regions))


def intersection(regions: Sequence[Region]) -> Region:
    """The outcomes of all of some regions.

    >>> intersection([Interval(0, 1), Interval(1, 2), ~OneOf([7])])
    OneOf([1])
    """
    if not regions:
        return WHOLE
    spans = merged_spans([region.spans for region in regions], len(regions))
    return region_of(spans, all(region.has_missing for region in regions))


def _interval(span: Span) -> Interval:
    """The interval between two cuts, without checks."""
    start, stop = span
    made = object.__new__(Interval)
    low, high = None if start == START else start[1], None if stop == STOP else stop[1]
    parts = {"low": low, "high": high, "closed": _closed(start[2], not stop[2])}
    made.__dict__.update(parts, _cuts=span, spans=(span,))
    return made


def interval(low: Any, high: Any, *, above: bool, below: bool) -> Interval:
    """The values strictly above (or from) `low` and strictly below (or up to) `high`.

    >>> interval(0, 1, above=True, below=False)
    Interval(0, 1, closed='right')
    """
    return Interval(low, high, _closed(above, below))


def _closed(above: bool, below: bool) -> Closed:
    return ("neither" if below else "right") if above else ("left" if below else "both")


def is_missing(value: Any) -> bool:
    """Whether a value stands for `Missing`: None, NaN, NaT."""
    return value is None or value is Missing or type(value).__name__ == "NAType" or bool(value != value)


def _end(name: str, value: Any) -> Any:
    """A value of Python, or a tensor of a batch; infinite ends are None."""
    if value is None or type(value) in (int, str) or (type(value) is float and math.isfinite(value)):
        return value
    if (hasattr(value, "ndim") and value.ndim) or isinstance(value, list | tuple):
        value = as_tensor(name, value, wide=True)
    if isinstance(value, Tensor) and (value.ndim or value.requires_grad):
        if bool(value.isnan().any()):
            raise ValueError(bad_argument(name, "a number, ±∞ or None", "NaN"))
        return value
    value = plain_value(value)
    if value is not None and is_missing(value):
        raise ValueError(bad_argument(name, "a number, ±∞ or None", "NaN"))
    return None if isinstance(value, float) and math.isinf(value) else value


def _outcome(value: Any) -> Any:
    """A value of Python; None is `Missing`."""
    value = plain_value(value)
    if isinstance(value, float) and math.isinf(value):
        raise ValueError(bad_argument("values", "finite values", value))
    return None if is_missing(value) else value
