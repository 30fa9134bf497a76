"""Text for people: single values, aligned columns, tables of rich."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any


def written(value: Any) -> str:
    """A value as text; of the first instant of a day, the date.

    >>> written(datetime.datetime(2024, 5, 1)), written(datetime.datetime(2024, 5, 1, 12))
    ('2024-05-01', '2024-05-01 12:00:00')
    """
    is_day = isinstance(value, datetime.datetime) and value.tzinfo is None and value.time() == datetime.time()
    return str(value.date() if is_day else value)


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
