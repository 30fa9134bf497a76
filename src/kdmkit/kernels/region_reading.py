"""Regions from what people write, and regions of cells between numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kdmkit.kernels.regions import START, STOP, Interval, OneOf, Region, Span, region_of


def single_values(region: Region) -> list[Any] | None:
    """The outcomes of a region that has single values alone, without `Missing`; otherwise None."""
    points = [] if region.is_batch else region.points
    return None if region.is_batch or len(points) < len(region.spans) else points


def by_edges(region: Region, edge: Callable[[Any, bool], float]) -> Region:
    """The region with every cut as a number: outcomes are cells between neighbouring edges.

    Args:
        edge: the edge before a value, or after it; ends that are not in order raise a ValueError.

    >>> by_edges(Interval(1, 3, closed="right"), lambda value, after: value + (0.5 if after else -0.5))
    Interval(1.5, 3.5, closed='left')
    """
    edges: list[Span] = []
    for start, stop in region.spans:
        first = start if start == START else (0, edge(start[1], start[2]), False)
        last = stop if stop == STOP else (0, edge(stop[1], stop[2]), False)
        edges += [(first, last)] if first < last else []
    spans: list[Span] = []
    for first, last in sorted(edges):  # levels come in the order of their texts
        if spans and spans[-1][1] >= first:
            spans[-1] = (spans[-1][0], max(last, spans[-1][1]))
        else:
            spans.append((first, last))
    return region_of(tuple(spans), region.has_missing)


def as_region(value: Any) -> Region:
    """What people write for a set of outcomes, as a region.

    Args:
        value: a region; a pair, which is a closed range with None for an open end; a list or a set; or one
            value.

    >>> as_region((0, None)), as_region(["a", "b"]), as_region(3)
    (Interval(0, None), OneOf(['a', 'b']), OneOf([3]))
    """
    if isinstance(value, Region):
        return value
    if isinstance(value, tuple) and len(value) == 2:
        return Interval(*value)
    if isinstance(value, list | set | frozenset | tuple | range) or (hasattr(value, "ndim") and value.ndim):
        return OneOf(value)
    return OneOf([value])
