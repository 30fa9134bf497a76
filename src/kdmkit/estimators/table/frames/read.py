"""Frames of any kind as columns of arrays: pandas, polars, Arrow through narwhals; mappings and arrays."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kdmkit._core.checks import bad_argument
from kdmkit.estimators.common.arrow import need
from kdmkit.estimators.common.csv_parquet import read_file
from kdmkit.estimators.table.frames.storage import (
    BASES,
    RawColumn,
    Storage,
    check_finite,
    from_objects,
    shortest,
)

#: What may hold a table.
WANTED = (
    "a data frame (pandas, polars, Arrow), a mapping of columns, a 2-d array, or a path to CSV or Parquet"
)


@dataclass(frozen=True)
class RawFrame:
    """A table as columns of arrays.

    Attributes:
        columns: by name, in the order of the frame.
        backend: pandas, polars, pyarrow, mapping or array: what a frame like this one is made with.
        labels: the names as the frame has them; pandas allows other types than text.
        native: the frame itself, with its index.
        numbers: if the rows are a sample of a larger table, their numbers in it.
        n_total: if the rows are a sample of a larger table, the number of its rows.
    """

    columns: dict[str, RawColumn]
    backend: str
    labels: tuple[Any, ...]
    native: Any
    numbers: np.ndarray | None = None
    n_total: int | None = None

    @property
    def n_rows(self) -> int:
        return next((len(column.values) for column in self.columns.values()), 0)

    def take(self, index: np.ndarray) -> RawFrame:
        """A sample of the rows."""
        columns = {
            name: replace(column, values=column.values[index], missing=column.missing[index])
            for name, column in self.columns.items()
        }
        return RawFrame(columns, self.backend, self.labels, None, index, self.n_rows)


def read_frame(argument: str, data: Any) -> RawFrame:
    """The columns of a table of any kind; `argument` names it in errors."""
    if isinstance(data, RawFrame):
        return data
    if isinstance(data, str | os.PathLike):
        return _from_narwhals(argument, read_file(data))
    if type(data).__module__.startswith("scipy.sparse"):
        raise TypeError(bad_argument(argument, WANTED, "a sparse matrix: use its `toarray()`"))
    if isinstance(data, Mapping):
        return _from_mapping(argument, data)
    if hasattr(data, "detach"):  # torch
        data = data.detach().cpu()
    if isinstance(data, list | tuple):
        data = _rows(argument, data)
    if not hasattr(type(data), "columns") and hasattr(data, "__array__"):
        return _from_array(argument, data if isinstance(data, np.ndarray) else np.asarray(data))
    return _from_narwhals(argument, data)


def with_target(frame: RawFrame, y: Any, names: Sequence[str] | None = None) -> RawFrame:
    """The columns of a table and those of y, as scikit-learn passes a target.

    Args:
        y: a series, an array or a list of one cell per row; or a frame of several columns.
        names: of the columns of y; None: its own, or "y".
    """
    target = _read_target(y)
    if names is not None:
        if len(names) != len(target.columns):
            raise ValueError(bad_argument("y", f"columns {list(names)}", f"{len(target.columns)} columns"))
        renamed = zip(names, target.columns.values(), strict=True)
        target = replace(target, columns={n: replace(c, name=n) for n, c in renamed}, labels=tuple(names))
    if target.n_rows != frame.n_rows:
        raise ValueError(bad_argument("y", f"as many rows as X has ({frame.n_rows})", target.n_rows))
    for name in target.columns:
        if name in frame.columns:
            wanted = "a column that X lacks (name a column of X in `targets`)"
            raise ValueError(bad_argument("y", wanted, repr(name)))
    columns = frame.columns | target.columns
    return RawFrame(columns, frame.backend, (*frame.labels, *target.labels), None)


def _read_target(y: Any) -> RawFrame:
    if isinstance(y, Mapping) or hasattr(y, "columns"):
        return read_frame("y", y)
    name = getattr(y, "name", None)
    name = "y" if name is None or not str(name).strip() else str(name)
    if hasattr(y, "to_frame"):  # a series of pandas or polars
        return read_frame("y", y.to_frame(name))
    if hasattr(y, "shape") and len(y.shape) == 2 and y.shape[1] == 1:
        y = np.asarray(y).ravel()
    return read_frame("y", {name: y})


# ---- mappings and arrays


def _from_mapping(argument: str, data: Mapping[Any, Any]) -> RawFrame:
    names = checked_names(argument, list(data))
    arrays = [_as_array(f"{argument}[{n!r}]", value) for n, value in zip(names, data.values(), strict=True)]
    lengths = {name: array.shape for name, array in zip(names, arrays, strict=True)}
    wrong = next((name for name, shape in lengths.items() if len(shape) != 1), None)
    if wrong is not None:
        raise ValueError(bad_argument(f"{argument}[{wrong!r}]", "one dimension", f"shape {lengths[wrong]}"))
    if len(set(lengths.values())) > 1:
        got = ", ".join(f"{shape[0]} in {name!r}" for name, shape in lengths.items())
        raise ValueError(bad_argument(argument, "columns of one length", got))
    columns = {name: from_numpy(name, array) for name, array in zip(names, arrays, strict=True)}
    return RawFrame(columns, "mapping", tuple(data), data)


def _as_array(argument: str, value: Any) -> np.ndarray:
    if isinstance(value, np.ma.MaskedArray):
        return value
    if isinstance(value, str | bytes) or not (hasattr(value, "__array__") or hasattr(value, "__iter__")):
        raise TypeError(bad_argument(argument, "an array or a list of cells", repr(value)))
    if hasattr(value, "__array__"):
        return np.asarray(value)
    cells = list(value)
    # Arrays of numbers and texts would be texts.
    mixed = any(isinstance(cell, str) for cell in cells) and not all(isinstance(c, str) for c in cells)
    try:
        return _objects(cells) if mixed else np.asarray(cells)
    except ValueError:  # lists of several lengths
        return _objects(cells)


def _objects(cells: list[Any]) -> np.ndarray:
    array = np.empty(len(cells), dtype=object)
    array[:] = cells
    return array


def _rows(argument: str, rows: Sequence[Any]) -> np.ndarray:
    """A list of rows as an array of objects: cells keep their types."""
    lengths = {len(row) if isinstance(row, Sequence) and not isinstance(row, str) else -1 for row in rows}
    if len(lengths) != 1 or lengths == {-1}:
        raise TypeError(bad_argument(argument, WANTED, "a list of something else than rows of one length"))
    return np.array(rows, dtype=object).reshape(len(rows), *lengths)


def _from_array(argument: str, data: np.ndarray) -> RawFrame:
    if data.dtype.names:
        return _from_mapping(argument, {name: data[name] for name in data.dtype.names})
    if data.ndim != 2:
        got = f"an array of shape {data.shape}. Reshape your data: rows × columns"
        raise ValueError(bad_argument(argument, WANTED, got))
    if not data.shape[1]:
        got = f"0 feature(s) (shape={data.shape}) while a minimum of 1 is required."
        raise ValueError(bad_argument(argument, "at least one column", got))
    names = [f"x{i}" for i in range(data.shape[1])]
    columns = {name: from_numpy(name, data[:, i]) for i, name in enumerate(names)}
    return RawFrame(columns, "array", tuple(names), data)


def from_numpy(name: str, array: np.ndarray, missing: np.ndarray | None = None) -> RawColumn:
    """A column of an array of any dtype; NaN, NaT, None and masked cells are missing."""
    mask = np.ma.getmaskarray(array) if isinstance(array, np.ma.MaskedArray) else np.zeros(len(array), bool)
    if missing is not None:
        mask = mask | missing
    array, native = np.asarray(array), str(array.dtype)
    match array.dtype.kind:
        case "b":
            return RawColumn(name, array, mask, Storage("boolean", native))
        case "i" | "u":
            return _integers(name, array, mask, native)
        case "f":
            return _floats(name, array, mask, native)
        case "M" | "m":
            return _instants(name, array, mask, native)
        case "U" | "S" | "O" | "T":
            return from_objects(name, array.astype(object), mask, native)
        case "c":
            got = "complex ones. Complex data not supported"
            raise ValueError(bad_argument(f"column {name!r}", "real numbers", got))
    return RawColumn(name, array.astype(object), mask, Storage("other", native))


def _integers(name: str, array: np.ndarray, mask: np.ndarray, native: str) -> RawColumn:
    if array.dtype == np.uint64 and len(array) and array.max() > np.iinfo(np.int64).max:
        return RawColumn(name, array.astype(np.float64), mask, Storage("float", native))
    return RawColumn(name, array.astype(np.int64), mask, Storage("integer", native, digits=18))


def _floats(name: str, array: np.ndarray, mask: np.ndarray, native: str) -> RawColumn:
    digits = min(int(np.finfo(array.dtype).precision), 15)
    values = shortest(array.astype(np.float64), digits)
    check_finite(name, values, mask)
    return RawColumn(name, values, mask | np.isnan(values), Storage("float", native, digits=digits))


def _instants(name: str, array: np.ndarray, mask: np.ndarray, native: str) -> RawColumn:
    """Date-times and durations in microseconds."""
    unit = np.datetime_data(array.dtype)[0]
    mask = mask | np.isnat(array)
    if array.dtype.kind == "M":
        values, base = array.astype(BASES["datetime"]), "datetime"
    else:
        values, base = array.astype("timedelta64[us]").astype(np.int64), "duration"
    return RawColumn(name, values, mask, Storage(base, native, unit=unit))


# ---- frames


def _from_narwhals(argument: str, data: Any) -> RawFrame:
    nw = need("narwhals.stable.v2")
    if type(data).__name__ == "RecordBatch":
        data = need("pyarrow").Table.from_batches([data])
    if hasattr(data, "collect"):
        data = nw.from_native(data).collect().to_native()
    labels = _labels(argument, data)
    names = checked_names(argument, labels)
    named = data if list(labels) == names else data.set_axis(names, axis=1)
    frame = nw.from_native(named, eager_only=True)
    raw = {name: _from_series(name, frame[name]) for name in names}
    backend = frame.implementation.value
    return RawFrame(raw, backend if backend in ("pandas", "polars") else "pyarrow", labels, data)


def _labels(argument: str, data: Any) -> tuple[Any, ...]:
    """The names of a frame's columns; only pandas has others than text."""
    labels = getattr(data, "column_names", None)  # Arrow's `columns` are the data
    labels = getattr(data, "columns", None) if labels is None else labels
    if labels is None or not hasattr(data, "__getitem__"):
        raise TypeError(bad_argument(argument, WANTED, type(data).__name__))
    if getattr(labels, "nlevels", 1) > 1:
        raise ValueError(bad_argument(argument, "one level of column names", f"{labels.nlevels} levels"))
    return tuple(labels)


def checked_names(argument: str, labels: Sequence[Any]) -> list[str]:
    """The names of columns as text; empty and equal ones raise."""
    names = [str(label) for label in labels]
    if not names:
        raise ValueError(bad_argument(argument, WANTED, "no columns"))
    for i, (label, name) in enumerate(zip(labels, names, strict=True)):
        if not name.strip() or label is None or label != label:
            raise ValueError(bad_argument(argument, "names for all columns", f"{label!r} for column {i}"))
        if not name.isascii() and name != name.encode(errors="replace").decode():
            raise ValueError(bad_argument(argument, "names in Unicode", f"{label!r} for column {i}"))
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise ValueError(bad_argument(argument, "columns with different names", f"{name!r} {count} times"))
    return names


def _from_series(name: str, series: Any) -> RawColumn:
    """A column of narwhals; see `Storage` for what is kept of its type."""
    nw = need("narwhals.stable.v2")
    plain = series.to_native()
    dtype, native_type = series.dtype, getattr(plain, "dtype", None) or plain.type
    native = str(native_type)
    # Objects are looked at one by one: a Decimal may refuse to be compared.
    missing = np.zeros(len(series), dtype=bool)
    if native != "object":
        missing = np.asarray(series.is_null().to_numpy(), dtype=bool)
    if type(dtype).__name__ in ("Categorical", "Enum"):
        return _from_categorical(name, series, missing, native)
    if isinstance(dtype, nw.Datetime):
        zone = dtype.time_zone or ""
        wall = series.dt.replace_time_zone(None) if zone else series
        column = from_numpy(name, wall.to_numpy(), missing)
        storage = Storage("datetime", native, unit=dtype.time_unit, zone=zone)
        return RawColumn(name, column.values, column.missing, storage)
    if isinstance(dtype, nw.Decimal):
        number = getattr(native_type, "pyarrow_dtype", native_type)  # pandas wraps Arrow's type
        storage = Storage("float", native, "Decimal", scale=number.scale, precision=number.precision)
        values = np.array([0.0 if cell is None else float(cell) for cell in series.to_list()])
        return RawColumn(name, values, missing, storage)
    fill = _FILLS.get(dtype.__class__.__name__.rstrip("0123456789"))
    if fill is not None and missing.any():
        series = series.fill_null(fill)
    array = series.to_numpy()
    if fill is not None and array.dtype == object:
        array = array.astype(type(fill))
    column = from_numpy(name, array, missing)
    return replace(column, storage=replace(column.storage, native=native))


#: Values in place of missing cells: integers with gaps would come as floats, booleans as objects.
_FILLS: dict[str, Any] = {"Boolean": False, "Int": 0, "UInt": 0}


def _from_categorical(name: str, series: Any, missing: np.ndarray, native: str) -> RawColumn:
    plain = series.to_native()
    accessor: Any = getattr(plain, "cat", None)
    if hasattr(accessor, "codes"):  # pandas: categories of any type
        categories, codes = from_numpy(name, np.asarray(accessor.categories)), np.asarray(accessor.codes)
        cells = categories.values
        values = cells[np.where(codes < 0, 0, codes)] if len(cells) else codes.astype(object)
        return _categorical(categories, values, missing, native, ordered=bool(accessor.ordered))
    if hasattr(plain, "unify_dictionaries"):  # Arrow
        whole = plain.unify_dictionaries()
        listed = whole.chunk(0).dictionary.to_pylist() if whole.num_chunks else []
        ordered = bool(plain.type.ordered)
    else:
        listed = list(getattr(series.dtype, "categories", ()))
        ordered = bool(listed)
    values = np.array(series.to_list(), dtype=object)
    source = np.array(listed, dtype=object) if listed else values
    categories = from_objects(name, source, np.array([cell is None for cell in source], bool), "")
    if not listed:
        return RawColumn(name, categories.values, missing, replace(categories.storage, native=native))
    return _categorical(categories, values, missing, native, ordered=ordered)


def _categorical(
    declared: RawColumn, values: np.ndarray, missing: np.ndarray, native: str, *, ordered: bool
) -> RawColumn:
    """A column with declared categories, which `declared` holds. Categories such as intervals are texts."""
    categories, storage = tuple(declared.present.tolist()), declared.storage
    if storage.base == "other":
        categories, storage = tuple(map(str, categories)), replace(storage, base="string")
        values = np.array([str(value) for value in values], dtype=object)
    storage = replace(storage, native=native, ordered=ordered, categories=categories)
    return RawColumn(declared.name, values, missing, storage)
