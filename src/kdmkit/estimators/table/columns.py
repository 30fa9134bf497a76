"""What columns were taken for, as a mapping that prints as a table."""

from __future__ import annotations

from typing import Any

from kdmkit.estimators.table.printing import rich_table
from kdmkit.estimators.table.schema import COLUMN_HEADER, Column, Schema


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
        return rich_table(
            COLUMN_HEADER, [column.line for column in self.values()], caption=self.origin or None
        )
