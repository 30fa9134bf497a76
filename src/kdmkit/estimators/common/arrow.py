"""Arrow tables: frames as such, files and iterators in batches, and columns as a matrix of features."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kdmkit._core.checks import bad_argument, did_you_mean
from kdmkit.estimators.common.checks import Array, CheckedRows
from kdmkit.estimators.common.files import read_batches
from kdmkit.estimators.common.optional import need


def is_streamed(data: Any) -> bool:
    """Whether data come in batches: a path, or an iterator."""
    return isinstance(data, str | os.PathLike | Iterator) or type(data).__name__ == "RecordBatchReader"


def batches_of(data: Any, n_rows: int | None = None) -> Iterable[Any]:
    """Arrow tables with the rows of a file, or of the frames that an iterable holds."""
    if isinstance(data, str | os.PathLike):
        return read_batches(data) if n_rows is None else read_batches(data, n_rows=n_rows)
    return map(as_arrow, data)


def as_arrow(frame: Any) -> Any:
    """A frame of any kind, or a mapping of arrays, as an Arrow table."""
    arrow = need("pyarrow")
    if isinstance(frame, arrow.Table):
        return frame
    if isinstance(frame, arrow.RecordBatch):
        return arrow.Table.from_batches([frame])
    if isinstance(frame, dict):
        columns = {str(name): np.asarray(values) for name, values in frame.items()}
        return arrow.table({name: arrow.array(_listed(values)) for name, values in columns.items()})
    frame = frame.reset_index(drop=True) if hasattr(frame, "reset_index") else frame
    return need("narwhals.stable.v2").from_native(frame, eager_only=True).to_arrow()


def _listed(values: np.ndarray) -> Any:
    return values.tolist() if values.dtype == object else values


def select_columns(argument: str, table: Any, names: Sequence[str]) -> Any:
    """Some columns of a table; a name that it lacks, or has twice, raises."""
    for name in names:
        found = table.column_names.count(name)
        if found != 1:
            got = (
                f"{found} of them"
                if found
                else f"{table.column_names}{did_you_mean(name, table.column_names)}"
            )
            raise ValueError(bad_argument(argument, f"one column {name!r}", got))
    return table.select(list(names))


@dataclass(frozen=True)
class Features:
    """Columns of numbers as the rows of a model.

    Args:
        names: the columns, in the order of the model's features; None takes all columns of a table.
        count: the number of features.

    >>> import pyarrow
    >>> Features(["b", "a"], 2).matrix(pyarrow.table({"a": [1, 2], "b": [3.5, 4.0], "c": ["x", "y"]}))
    array([[3.5, 1. ],
           [4. , 2. ]])
    """

    names: Sequence[str] | None
    count: int

    def rows(self, table: Any) -> CheckedRows:
        """The rows of a table."""
        return CheckedRows(self.matrix(table))

    def matrix(self, table: Any) -> Array:
        """The features of every row, float32 where all columns are; cells must be finite numbers.

        One column of lists, each with all features of a row, serves as well (embeddings).
        """
        names = table.column_names if self.names is None else self.names
        chosen = table if self.names is None else select_columns("batch", table, names)
        if len(names) == 1 and _is_list(chosen.column(0).type):
            return self._of_lists(names[0], chosen.column(0))
        if len(names) != self.count:
            wanted = f"{self.count} columns, the features of the model (`columns` chooses)"
            raise ValueError(bad_argument("batch", wanted, f"{len(names)}: {list(names)}"))
        arrays = [_numbers(name, column) for name, column in zip(names, chosen.columns, strict=True)]
        return np.stack(arrays, 1)

    def _of_lists(self, name: str, column: Any) -> Array:
        _check_present(name, column)
        cells = column.combine_chunks()
        lengths = np.asarray(need("pyarrow.compute").list_value_length(cells))
        if (lengths != self.count).any():
            wanted, other = f"lists of {self.count} numbers", lengths[lengths != self.count][0]
            raise ValueError(bad_argument(f"batch[{name!r}]", wanted, f"one of {other}"))
        return _numbers(name, cells.flatten()).reshape(-1, self.count)


def _is_list(kind: Any) -> bool:
    types = need("pyarrow").types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _numbers(name: str, column: Any) -> Array:
    """A column as finite floating-point numbers."""
    arrow = need("pyarrow")
    types, kind = arrow.types, column.type
    if types.is_boolean(kind):
        column = column.cast(arrow.uint8())
    elif not (
        types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_null(kind)
    ):
        raise ValueError(bad_argument(f"batch[{name!r}]", "numbers", f"cells of the type {kind}"))
    _check_present(name, column)
    values = np.asarray(
        column.cast(arrow.float32() if types.is_float32(kind) else arrow.float64(), safe=False)
    )
    finite = np.isfinite(values)
    if not finite.all():
        row = int(np.flatnonzero(~finite)[0])
        raise ValueError(bad_argument(f"batch[{name!r}]", "finite numbers", f"{values[row]} in row {row}"))
    return values


def _check_present(name: str, column: Any) -> None:
    if column.null_count:
        row = int(np.flatnonzero(np.asarray(column.is_null()))[0])
        got = f"{column.null_count} missing, the first in row {row}"
        raise ValueError(bad_argument(f"batch[{name!r}]", "no missing cells", got))
