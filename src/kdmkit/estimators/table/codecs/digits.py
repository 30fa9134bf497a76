"""Ranges of dates as boxes of digits."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kdmkit.kernels import Interval, OneOf, Region
from kdmkit.kernels.regions import union

#: Digits of dates: by the place of a digit, a region of its values.
Digits = dict[int, Region]


def digit_boxes(sizes: Sequence[int], ranges: Sequence[tuple[float | None, float | None]]) -> list[Digits]:
    """All dates in disjoint ranges of units as disjoint boxes of digits.

    Values of a digit with equal rests share a box: every morning of a year is one box.

    Args:
        sizes: how many values each digit has; 0 for the first one, which is not bounded.
        ranges: ends of units, halves of whole numbers; None is open.

    >>> for box in digit_boxes([0, 7], [(25.5, 35.5)]):
    ...     print(box)
    {0: Interval(3.5, 4.5, closed='left')}
    {0: OneOf([3]), 1: Interval(4.5, 6.5, closed='left')}
    {0: OneOf([5]), 1: Interval(-0.5, 0.5, closed='left')}
    """
    spans = [
        (-math.inf if low is None else round(low + 0.5), math.inf if high is None else round(high + 0.5))
        for low, high in ranges
    ]
    return _boxes_below(tuple(spans), tuple(sizes[1:]), 0)


def _boxes_below(spans: tuple[tuple[float, float], ...], sizes: tuple[int, ...], place: int) -> list[Digits]:
    """Boxes of half-open spans of units in the digits from a place on."""
    unit = math.prod(sizes)
    whole: list[Region] = []
    rests: dict[float, list[tuple[float, float]]] = {}
    for start, stop in spans:
        first, last = _floor(start / unit), _floor(stop / unit) if math.isinf(stop) else (stop - 1) // unit
        head = start if math.isinf(start) else (start + unit - 1) // unit
        tail = stop if math.isinf(stop) else stop // unit
        if head < tail:
            whole.append(_values(head, tail))
        for digit in {first, last} if head <= tail else {first}:
            if not head <= digit < tail and math.isfinite(digit):
                low, high = max(start - digit * unit, 0), min(stop - digit * unit, unit)
                rests.setdefault(digit, []).append((low, high))
    alike: dict[tuple[tuple[float, float], ...], list[float]] = {}
    for digit, rest in rests.items():
        alike.setdefault(tuple(rest), []).append(digit)
    boxes: list[Digits] = [{place: union(whole)}] if whole else []
    for spans_below, digits in alike.items():
        below = _boxes_below(spans_below, sizes[1:], place + 1)
        boxes += [{place: OneOf(digits), **box} for box in below]
    return boxes


def _floor(number: float) -> float:
    return number if math.isinf(number) else math.floor(number)


def _values(first: float, after_last: float) -> Region:
    """The whole numbers from the first one to the one before `after_last`."""
    low = None if math.isinf(first) else first - 0.5
    return Interval(low, None if math.isinf(after_last) else after_last - 0.5, "left")
