"""What columns were taken for, as a mapping that prints as a table."""

from __future__ import annotations

from typing import Any

from kdmkit.estimators.table.printing import rich_table
from kdmkit.estimators.table.schema import COLUMN_HEADER, Column, Schema


class Columns(dict[str, Column]):
    """What columns were taken for, by name; prints as a table. `KDMTable.columns_` has it.

    Attributes:
        origin: which rows they were recognised by; empty where those are all rows.

    >>> import kdmkit as kdm
    >>> import numpy as np
    >>> x = np.linspace(0, 1, 200)
    >>> table = kdm.KDMTable(n_components=4, max_epochs=2, random_state=0).fit({"x": x, "big": x > 0.5})
    >>> {name: column.kind for name, column in table.columns_.items()}
    {'x': 'float', 'big': 'boolean'}
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
