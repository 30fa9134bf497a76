"""One column of a table: how its cells are events of variables."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kdmkit.estimators.table.codecs.base import Codec
from kdmkit.estimators.table.codecs.kinds import decide, fit_codec
from kdmkit.estimators.table.frames.storage import BASES, RawColumn, Storage

#: Above the lines of columns in a printed table.
COLUMN_HEADER = ("column", "kind", "missing", "details", "why")


@dataclass(frozen=True)
class Column:
    """One column of a table: an entry of `Columns`.

    Attributes:
        name: the column's name.
        kind: float, integer, count, duration, boolean, category, ordinal, date, time, constant, identifier,
            text or empty.
        why: the reason in a few words.
        details: levels, range, resolution, atoms.
        variables: names of the column's variables in the model, one for each part; () if it is left out.
        codec: turns its cells into events and back.
        missing: the share of missing cells in the rows it was fitted to.
        storage: how the frame stores the column.

    With `table` as in the example of `KDMTable`:

    >>> table.columns_["size"].kind
    'category'
    """

    name: str
    kind: str
    why: str
    details: str
    variables: tuple[str, ...]
    codec: Codec
    missing: float
    storage: Storage

    @property
    def reason(self) -> str:
        """The kind, and why."""
        return f"{self.kind}: {self.why}"

    @property
    def line(self) -> tuple[str, ...]:
        """The line of the column in a printed table, below `COLUMN_HEADER`."""
        return (self.name, self.kind, f"{self.missing:.1%}", self.details, self.why)


def fit_column(i: int, raw: RawColumn, types: Mapping[str, str], numbers: np.ndarray | None) -> Column:
    kind, why = (types[raw.name], "asked for") if raw.name in types else decide(raw, numbers)
    codec = fit_codec(raw, kind)
    if kind == "empty":
        warnings.warn(f"column {raw.name!r} is left out: all cells are missing", stacklevel=4)
    names = (f"c{i}" if not part else f"c{i}_{part}" for part in codec.part_names)
    return Column(
        name=raw.name,
        kind=kind,
        why=why,
        details=codec.describe(),
        variables=tuple(names) if codec.modelled else (),
        codec=codec,
        missing=float(raw.missing.mean()),
        storage=raw.storage,
    )


def absent_cells(column: Column, n_rows: int) -> RawColumn:
    """A column with missing cells only."""
    values = np.zeros(n_rows, dtype=BASES[column.storage.base])
    return RawColumn(column.name, values, np.ones(n_rows, dtype=bool), column.storage)
