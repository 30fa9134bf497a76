"""Tables of text: aligned columns, or a table of rich."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


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
