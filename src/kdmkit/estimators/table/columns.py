"""What columns were taken for, as a mapping that prints as a table."""

from __future__ import annotations

from typing import Any

from kdmkit.estimators.table.schema import Column, Schema


class Columns(dict[str, Column]):
    """The columns of a schema by name.

    Attributes:
        origin: which rows they were recognised by; empty where those are all rows.
    """

    def __init__(self, schema: Schema) -> None:
        super().__init__(schema.columns)
        self._text, self.origin = str(schema), schema.origin

    def __repr__(self) -> str:
        return self._text

    def __rich__(self) -> Any:
        from rich.markup import escape
        from rich.table import Table

        table = Table("column", "kind", "missing", "details", "why", caption=self.origin or None)
        for column in self.values():
            cells = (column.name, column.kind, f"{column.missing:.1%}", column.details, column.why)
            table.add_row(*map(escape, cells))
        return table
