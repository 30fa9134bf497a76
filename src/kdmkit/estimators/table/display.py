"""Values, tables and ranges of histograms as people read them."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
from torch import Tensor

from kdmkit._core.checks import bad_argument

# Levels that a printed answer shows.
SHOWN = 10


def written(value: Any) -> str:
    """A value as text; the first instant of a day as a date.

    >>> written(dt.datetime(2024, 5, 1)), written(dt.datetime(2024, 5, 1, 12))
    ('2024-05-01', '2024-05-01 12:00:00')
    """
    is_day = isinstance(value, dt.datetime) and value.tzinfo is None and value.time() == dt.time()
    return str(value.date() if is_day else value)


def scalar(value: Any) -> Any:
    """One value as Python has it."""
    value = np.asarray(value)[()] if isinstance(value, np.ndarray) else value
    if isinstance(value, np.datetime64 | np.timedelta64):
        value = value.astype(f"{value.dtype.kind}8[us]")
    return value.item() if isinstance(value, np.generic) else value


def listed(argument: str, values: Any) -> tuple[Any, bool]:
    """Values in a list or an array, and whether they are one value that stands alone."""
    values = values.tolist() if isinstance(values, Tensor) else values
    if not _is_listed(values):
        return [values[()] if isinstance(values, np.ndarray) else values], True
    values = values if hasattr(values, "__len__") else list(values)
    inside = next(filter(_is_listed, values), None)
    if inside is not None or isinstance(values, Set | Mapping):
        got = values if inside is None else inside
        raise ValueError(bad_argument(argument, "a value, or a list of values", type(got).__name__))
    return values, False


def _is_listed(value: Any) -> bool:
    return (
        isinstance(value, Iterable) and not isinstance(value, str | bytes) and getattr(value, "ndim", 1) > 0
    )


def plain(value: Any) -> Any:
    """A value in the types of JSON; keys become text, infinite numbers their name."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    value = scalar(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else written(value)


def shown(value: Any) -> str:
    """A value as text: four digits are enough to read.

    >>> shown((0.123456, 12345.678)), shown({"a": 0.25})
    ('(0.1235, 12346)', 'a 25.0%')
    """
    if isinstance(value, dict):
        first = list(value.items())[:SHOWN]
        more = f", … {len(value) - len(first)} more" if len(value) > len(first) else ""
        return ", ".join(f"{shown(key)} {share:.1%}" for key, share in first) + more
    if isinstance(value, tuple):
        return "(" + ", ".join(map(shown, value)) + ")"
    if isinstance(value, float):
        return f"{value:.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"
    return written(value)


def text_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Lines with aligned columns.

    >>> print(text_table(("name", "kind"), [("price", "float"), ("cut", "category")]))
    name   kind
    price  float
    cut    category
    """
    rows = [header, *lines]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def rich_table(header: Sequence[str], lines: Sequence[Sequence[str]], **options: Any) -> Any:
    """A table of rich; cells may look like markup."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(*header, **options)
    for line in lines:
        table.add_row(*map(escape, line))
    return table


def grid_bins(low: Any, high: Any, step: float, n: int) -> list[tuple[Any, Any]]:
    """Ranges of equally many numbers on a grid, with round first numbers if possible."""
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


def ranges_between(edges: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Ranges from edge to edge; those of times end a microsecond before the next one.

    >>> ranges_between([1.0, 2.0, 2.5])
    [(1.0, 2.0), (2.0, 2.5)]
    >>> ranges_between([dt.datetime(2024, 5, 1), dt.datetime(2024, 5, 2), dt.datetime(2024, 5, 3)])[0][1]
    datetime.datetime(2024, 5, 1, 23, 59, 59, 999999)
    """
    ends = [*map(_before, edges[1:-1]), edges[-1]]
    return list(zip(edges[:-1], ends, strict=True))


def _before(value: Any) -> Any:
    """The last instant before a time; other values as they are."""
    instant = dt.datetime.combine(dt.date.max, value) if isinstance(value, dt.time) else value
    if not isinstance(instant, dt.datetime):
        return value
    before = instant - dt.timedelta(microseconds=1)
    return before.time() if isinstance(value, dt.time) else before


def readable_end(low: Any, high: Any, after: Any) -> Any:
    """The upper end of a range as people write it, if the next range begins at `after`.

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
