"""Cuts: positions just before or just after a value, between which the outcomes of a region lie."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from torch import Tensor

#: The family of values that can be compared, the value, and whether the position lies after it.
Cut = tuple[int, Any, bool]
#: The outcomes from one cut to a later one.
Span = tuple[Cut, Cut]

START: Cut = (-1, 0, False)
STOP: Cut = (99, 0, True)
EVERYTHING: tuple[Span, ...] = ((START, STOP),)


def merged_spans(groups: Sequence[Sequence[Span]], least: int) -> tuple[Span, ...]:
    """The outcomes that lie in at least `least` of some sets of disjoint spans."""
    if len(groups) == 1:
        return tuple(groups[0])
    starts_and_stops = [
        event for group in groups for start, stop in group for event in ((start, 0), (stop, 1))
    ]
    spans: list[Span] = []
    depth, first = 0, START
    for cut, is_stop in sorted(starts_and_stops):  # starts come first: spans that touch are one
        depth += -1 if is_stop else 1
        if not is_stop and depth == least:
            first = cut
        elif is_stop and depth == least - 1 and first < cut:
            spans.append((first, cut))
    return tuple(spans)


def complement(spans: Sequence[Span]) -> tuple[Span, ...]:
    cuts = [START, *(cut for span in spans for cut in span), STOP]
    pairs = zip(cuts[::2], cuts[1::2], strict=True)
    return tuple([(start, stop) for start, stop in pairs if start < stop])


def is_point(span: Span) -> bool:
    (family, value, after), stop = span
    return not after and stop == (family, value, True) and family >= 0


#: Values of one kind have an order; a date-time is a date, so it comes first.
_KINDS = (str, datetime.datetime, datetime.date, datetime.time, datetime.timedelta)


def family_and_value(value: Any) -> tuple[int, Any]:
    """The family of values that a value is comparable with, 0 for numbers, and the value."""
    family = next((i for i, kind in enumerate(_KINDS, 1) if isinstance(value, kind)), 0)
    # Those with a time zone cannot be compared with those without.
    return family + len(_KINDS) * (getattr(value, "tzinfo", None) is not None), value


def plain_value(value: Any) -> Any:
    """A number of Python in place of one of NumPy or torch."""
    kind = getattr(getattr(value, "dtype", None), "kind", None)
    return value.item() if isinstance(value, Tensor) or kind in ("b", "i", "f", "u") else value
