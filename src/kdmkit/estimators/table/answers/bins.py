"""Ranges of histograms, with round ends."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any


def grid_bins(low: Any, high: Any, step: float, n: int) -> list[tuple[Any, Any]]:
    """Ranges of equally many numbers on a grid, with round first numbers where that is possible."""
    width = _round_up((high - low + step) / n / step) * step
    first = math.floor(low / width) * width if _divides(step, low) else low
    starts = [first + i * width for i in range(math.ceil((high - first + step / 2) / width))]
    return [(_like(low, a), _like(low, a + width - step)) for a in starts]


def _divides(step: float, value: float) -> bool:
    return abs(value / step - round(value / step)) < 1e-6


def _round_up(x: float) -> int:
    """The next of 1, 2, 4, 5, 10, 20, 40, 50, …

    >>> [_round_up(x) for x in (0.3, 2, 3.1, 12)]
    [1, 2, 4, 20]
    """
    power = 10 ** max(0, math.floor(math.log10(max(x, 1.0))))
    return int(next(m for m in (1, 2, 4, 5, 10) if m * power >= x - 1e-9) * power)


def round_edges(low: Any, high: Any, n: int) -> list[Any]:
    """Values from `low` to `high`, n + 1 at most: round numbers, times of a whole day, whole days."""
    if isinstance(low, dt.time):
        return [*((dt.datetime.min + dt.timedelta(days=i / n)).time() for i in range(n)), dt.time.max]
    if isinstance(low, dt.datetime):
        edges = [low + (high - low) * (i / n) for i in range(n + 1)]
        if high - low < dt.timedelta(days=n):
            return edges
        return [low, *(dt.datetime.combine(edge, dt.time.min, edge.tzinfo) for edge in edges[1:-1]), high]
    unit = 10.0 ** math.floor(math.log10((high - low) / n))
    width = _round_up((high - low) / n / unit) * unit
    first, last = math.ceil(low / width), math.floor(high / width)
    inner = [float(f"{i * width:.12g}") for i in range(first, last + 1)]
    return [low, *(edge for edge in inner if low < edge < high), high]


def readable_end(low: Any, high: Any, after: Any) -> Any:
    """The upper end of a range as people write it, where the next range begins at `after`.

    >>> readable_end(0.2, 0.39999998, 0.4)
    0.4
    >>> midnight = dt.datetime(2024, 5, 3)
    >>> readable_end(dt.datetime(2024, 5, 1), midnight - dt.timedelta(microseconds=1), midnight)
    datetime.date(2024, 5, 2)
    """
    if isinstance(high, dt.datetime) and high.time() == dt.time.max:
        return high.date()
    if isinstance(high, dt.datetime | dt.time):
        return high.replace(microsecond=0)
    return after if isinstance(high, float) and after - high < 1e-5 * (high - low) else high


def _like(value: Any, number: float) -> Any:
    """A number of the type of a value, without the noise of floating-point sums."""
    return round(number) if isinstance(value, int) else float(f"{number:.12g}")
