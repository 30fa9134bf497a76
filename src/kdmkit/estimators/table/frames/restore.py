"""Columns of arrays as a frame of the kind that they came from; missing cells of a frame filled in."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kdmkit.estimators.common.arrow import need
from kdmkit.estimators.table.frames.read import RawFrame
from kdmkit.estimators.table.frames.storage import BASES, RawColumn, Storage, time_of_day


def build_frame(columns: Sequence[RawColumn], backend: str, labels: Sequence[Any], index: Any = None) -> Any:
    """A frame with the given columns, each in the dtype that its storage names.

    Args:
        backend: pandas, polars, arrow (or pyarrow), mapping, array; or file: pandas if it is installed.
            Without that package it is a mapping of arrays.
        labels: the names in the frame, one for each column.
        index: the index of a frame of pandas; None counts from 0.
    """
    if backend == "array":
        return _array(columns)
    try:
        return _MAKERS.get(backend, _mapping)(columns, labels, index)
    except ImportError:
        return _mapping(columns, labels, index)


# ---- values as Python and numpy have them


def to_objects(column: RawColumn) -> list[Any]:
    """Python values, None for missing cells."""
    values = _python_values(column.values, column.storage)
    return [None if gone else value for value, gone in zip(values, column.missing, strict=True)]


def _python_values(values: np.ndarray, storage: Storage) -> list[Any]:
    if storage.writing is not None:
        return [storage.writing.write(value) for value in values.tolist()]
    if storage.base == "time":
        return [time_of_day(int(value)) for value in values]
    if storage.base == "duration":
        return [datetime.timedelta(microseconds=int(value)) for value in values]
    if storage.base == "datetime":
        instants = values.astype("datetime64[us]").tolist()
        return [value and value.date() for value in instants] if storage.unit == "D" else instants
    if storage.objects == "Decimal":
        return [_decimal(value, storage.scale or 0) for value in values.tolist()]
    return list(values.tolist())


def _decimal(value: float, scale: int) -> decimal.Decimal | None:
    return None if value != value else decimal.Decimal(f"{value:.{scale}f}")


def numpy_values(column: RawColumn) -> np.ndarray:
    """An array of the dtype that the column came in; missing cells are NaN, NaT or None."""
    storage, missing = column.storage, column.missing
    native = _numpy_dtype(storage.native)
    if storage.base in ("datetime", "duration"):
        letter = "M" if storage.base == "datetime" else "m"
        values = column.values.astype(f"{letter}8[us]")
        values[missing] = np.array("NaT", values.dtype)
        return values.astype(native) if native is not None and native.kind == letter else values
    if storage.base in ("boolean", "integer", "float") and storage.objects in ("", "int", "float", "bool"):
        if missing.any() and (native is None or native.kind not in "fO"):
            native = np.dtype(np.float64 if storage.base != "boolean" else object)
        if native is None or native.kind != "O":
            values = column.values.astype(np.float64) if missing.any() else column.values
            values = np.where(missing, np.nan, values) if missing.any() else values
            return values.astype(native) if native is not None else values
    objects = np.empty(len(missing), dtype=object)
    objects[:] = to_objects(column)
    if native is not None and native.kind in "US" and not missing.any():
        return objects.astype(native.kind)
    return objects


def _numpy_dtype(name: str) -> np.dtype[Any] | None:
    """The dtype of that name, None if numpy has none."""
    try:
        return np.dtype(name) if name else None
    except TypeError:
        return None


def _mapping(columns: Sequence[RawColumn], labels: Sequence[Any], index: Any) -> dict[Any, np.ndarray]:
    return {label: numpy_values(column) for label, column in zip(labels, columns, strict=True)}


def _array(columns: Sequence[RawColumn]) -> np.ndarray:
    return np.stack([numpy_values(column) for column in columns], axis=1)


# ---- pandas


def _pandas(columns: Sequence[RawColumn], labels: Sequence[Any], index: Any) -> Any:
    pd = need("pandas")
    series = {i: pandas_series(column, index) for i, column in enumerate(columns)}
    frame = pd.DataFrame(series, index=index)
    return frame.set_axis(list(labels), axis=1)


def pandas_series(column: RawColumn, index: Any) -> Any:
    pd = need("pandas")
    storage, missing = column.storage, column.missing
    if storage.native == "category":
        categories = _pandas_categories(storage)
        named = dict(zip(storage.categories or (), categories, strict=True))
        plain = [None if cell is None else named.get(cell, cell) for cell in to_objects(column)]
        return pd.Series(pd.Categorical(plain, categories, storage.ordered), index=index)
    if storage.base == "datetime" and not storage.objects:
        wall = pd.Series(column.values.astype("datetime64[us]"), index=index).mask(missing)
        if storage.zone:
            summer = np.ones(len(wall), dtype=bool)  # of an hour that comes twice, the first
            wall = wall.dt.tz_localize(storage.zone, ambiguous=summer, nonexistent="shift_forward")
        return _cast(wall, storage.native)
    if storage.base == "duration" and not storage.objects:
        spans = pd.Series(column.values.astype("timedelta64[us]"), index=index).mask(missing)
        return _cast(spans, storage.native)
    if storage.base in ("boolean", "integer", "float") and not storage.objects:
        masked = {"boolean": "boolean", "integer": "Int64", "float": "float64"}[storage.base]
        whole = pd.Series(column.values, index=index)
        return _cast(whole.astype(masked).mask(missing) if missing.any() else whole, storage.native)
    return _cast(pd.Series(to_objects(column), index=index, dtype=object), storage.native)


def _pandas_categories(storage: Storage) -> list[Any]:
    if storage.objects == "Interval":
        return list(map(_interval, storage.categories or ()))
    values = np.array(storage.categories, dtype=object)
    return to_objects(RawColumn("", values, np.zeros(len(values), bool), storage))


def _interval(text: str) -> Any:
    """The interval of pandas that a text such as `(0.5, 1.0]` names; other texts are as they are."""
    closed = {"[]": "both", "[)": "left", "(]": "right", "()": "neither"}[text[0] + text[-1]]
    try:
        low, high = map(float, text[1:-1].split(","))
    except ValueError:
        return text
    return need("pandas").Interval(low, high, closed)


def _cast(series: Any, native: str) -> Any:
    """The series in the named dtype, or as it is if pandas does not make that dtype from its name."""
    if not native or native == "object":
        return series
    try:
        return series.astype(native)
    except (TypeError, ValueError, NotImplementedError):
        return series


# ---- polars


def _polars(columns: Sequence[RawColumn], labels: Sequence[Any], index: Any) -> Any:
    pl = need("polars")
    return pl.DataFrame([polars_series(str(label), c) for label, c in zip(labels, columns, strict=True)])


def polars_series(name: str, column: RawColumn) -> Any:
    pl, storage = need("polars"), column.storage
    if storage.zone:
        wall = pl.Series(name, to_objects(column), dtype=pl.Datetime(storage.unit))
        options = {"ambiguous": "earliest", "non_existent": "null"}
        # In spring an hour is missing: its times are an hour later.
        later = wall.dt.offset_by("1h").dt.replace_time_zone(storage.zone, **options)
        local = wall.dt.replace_time_zone(storage.zone, **options)
        return local.zip_with(local.is_not_null(), later)
    return pl.Series(name, to_objects(column), dtype=_polars_type(storage), strict=False)


def _polars_type(storage: Storage) -> Any:
    pl = need("polars")
    name = storage.native.partition("(")[0]
    if name in ("Datetime", "Duration"):
        return getattr(pl, name)(storage.unit)
    if name == "Decimal":
        return pl.Decimal(storage.precision, storage.scale)
    if name == "Enum":
        return pl.Enum(list(storage.categories or ()))
    return getattr(pl, name, None)


# ---- Arrow


def _arrow(columns: Sequence[RawColumn], labels: Sequence[Any], index: Any) -> Any:
    pa = need("pyarrow")
    return pa.table({str(label): arrow_array(c) for label, c in zip(labels, columns, strict=True)})


def arrow_array(column: RawColumn) -> Any:
    pa, pc, storage = need("pyarrow"), need("pyarrow.compute"), column.storage
    if storage.base in ("boolean", "integer", "float") and not storage.objects and not storage.categories:
        array = pa.array(column.values, mask=column.missing)
    elif storage.zone:
        wall = pa.array(to_objects(column), type=pa.timestamp(storage.unit or "us"))
        array = pc.assume_timezone(wall, storage.zone, ambiguous="earliest", nonexistent="latest")
    else:
        array = pa.array(to_objects(column))
    wanted = _arrow_type(storage)
    try:
        return array if wanted is None else array.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return array


def _arrow_type(storage: Storage) -> Any:
    pa = need("pyarrow")
    if storage.native.startswith("dictionary<"):
        fields = _dictionary_fields(storage.native)
        parts = (pa.type_for_alias(fields[part]) for part in ("indices", "values"))
        return pa.dictionary(*parts, ordered=storage.ordered)
    if storage.native.startswith("decimal"):
        return pa.decimal128(storage.precision, storage.scale)
    if storage.base == "datetime" and storage.unit != "D":
        return pa.timestamp(storage.unit, storage.zone or None)
    try:
        return pa.type_for_alias(storage.native)
    except ValueError:
        return None


def _dictionary_fields(native: str) -> Mapping[str, str]:
    inside = native.removeprefix("dictionary<").removesuffix(">")
    return dict(field.split("=", 1) for field in inside.split(", "))


def _of_file(columns: Sequence[RawColumn], labels: Sequence[Any], index: Any) -> Any:
    """A frame of pandas, or an Arrow table, in which files are read, where pandas is not installed."""
    try:
        return _pandas(columns, labels, index)
    except ImportError:
        return _arrow(columns, labels, index)


_MAKERS = {"pandas": _pandas, "polars": _polars, "arrow": _arrow, "pyarrow": _arrow, "file": _of_file}


def fill_frame(frame: RawFrame, cells: Mapping[str, np.ndarray], types: Mapping[str, Storage]) -> Any:
    """The frame with missing cells filled in.

    Args:
        frame: the frame.
        cells: values of all missing cells, by column.
        types: what these values are, by column. A column that has missing cells only takes this type.
    """
    filled = {name: _filled(frame.columns[name], cells[name], types[name]) for name in cells}
    return _FILLERS[frame.backend](frame, filled)


def _filled(raw: RawColumn, cells: np.ndarray, storage: Storage) -> RawColumn:
    """The whole column; cells that were not missing are only as exact as arrays of `BASES`."""
    untyped = raw.storage.base != storage.base or raw.storage.native.lower() == "null"
    if raw.missing.all() and untyped:
        return RawColumn(raw.name, cells, np.zeros(len(cells), bool), storage)
    values = raw.values.copy()
    values[raw.missing] = _as_base(cells, storage, raw.storage.base)
    return replace(raw, values=values, missing=np.zeros(len(values), bool))


def _as_base(cells: np.ndarray, storage: Storage, wanted: str) -> np.ndarray:
    if storage.base != wanted and wanted == "string":
        write = str if storage.writing is None else storage.writing.write
        return np.array([write(cell) for cell in cells.tolist()], dtype=object)
    return cells.astype(BASES[wanted])


def _is_new(raw: RawColumn, filled: RawColumn) -> bool:
    """Whether a column has another type than it had: all of its cells were missing."""
    return raw.storage is not filled.storage


# ---- frames


def _fill_pandas(frame: RawFrame, filled: Mapping[str, RawColumn]) -> Any:
    native = frame.native.copy()
    for i, (name, raw) in enumerate(frame.columns.items()):
        if name in filled:
            whole = pandas_series(_declared(filled[name]), native.index)
            new = _is_new(raw, filled[name])
            native.isetitem(i, whole if new else _put_pandas(native.iloc[:, i], raw.missing, whole))
    return native


def _put_pandas(column: Any, missing: np.ndarray, whole: Any) -> Any:
    if str(column.dtype) == "category":
        column = column.cat.add_categories(whole.cat.categories.difference(column.cat.categories, sort=False))
    column = column.copy()
    column.iloc[np.flatnonzero(missing)] = whole.iloc[np.flatnonzero(missing)].array
    return column


def _declared(column: RawColumn) -> RawColumn:
    """The column with all of its values among its categories, if it has categories."""
    categories = column.storage.categories
    if categories is None:
        return column
    new = tuple(dict.fromkeys(value for value in column.values.tolist() if value not in set(categories)))
    return replace(column, storage=replace(column.storage, categories=categories + new))


def _fill_polars(frame: RawFrame, filled: Mapping[str, RawColumn]) -> Any:
    pl = need("polars")
    columns = []
    for name, raw in frame.columns.items():
        column = frame.native[name]
        if name in filled:
            whole = polars_series(name, _declared(filled[name]))
            present = pl.Series(~raw.missing)
            new = _is_new(raw, filled[name])
            column = whole if new else column.cast(whole.dtype).zip_with(present, whole)
        columns.append(column)
    return pl.DataFrame(columns)


def _fill_arrow(frame: RawFrame, filled: Mapping[str, RawColumn]) -> Any:
    pa, pc = need("pyarrow"), need("pyarrow.compute")
    native = frame.native
    columns = []
    for i, (name, raw) in enumerate(frame.columns.items()):
        column = native.column(i)
        if name in filled:
            whole = arrow_array(filled[name])
            keep = _is_new(raw, filled[name]) or pa.types.is_dictionary(column.type)
            column = whole if keep else pc.if_else(pa.array(~raw.missing), column, whole.cast(column.type))
        columns.append(column)
    return pa.table(columns, names=list(frame.labels))


# ---- mappings and arrays


def _fill_mapping(frame: RawFrame, filled: Mapping[str, RawColumn]) -> Any:
    columns = {}
    for label, (name, raw) in zip(frame.labels, frame.columns.items(), strict=True):
        column = frame.native[label]
        columns[label] = _put_numpy(column, raw, filled[name]) if name in filled else column
    return columns


def _put_numpy(column: Any, raw: RawColumn, filled: RawColumn) -> np.ndarray:
    if _is_new(raw, filled) or not isinstance(column, np.ndarray):
        return numpy_values(filled)
    cells = np.array(np.ma.getdata(column))
    cells[raw.missing] = to_cells(filled, raw.missing, cells.dtype)
    return cells


def to_cells(filled: RawColumn, rows: np.ndarray, dtype: np.dtype[Any]) -> Any:
    """Some cells of a column, for an array of a dtype."""
    if dtype.kind == "O":
        part = replace(filled, values=filled.values[rows], missing=filled.missing[rows])
        return np.fromiter(to_objects(part), dtype=object, count=int(rows.sum()))
    return numpy_values(filled)[rows]


def _fill_array(frame: RawFrame, filled: Mapping[str, RawColumn]) -> Any:
    whole = np.array(np.ma.getdata(frame.native))
    for i, (name, raw) in enumerate(frame.columns.items()):
        if name not in filled:
            continue
        if _is_new(raw, filled[name]) and whole.dtype.kind != "O":
            whole = whole.astype(object) if filled[name].storage.base in ("string", "datetime") else whole
        whole[raw.missing, i] = to_cells(filled[name], raw.missing, whole.dtype)
    return whole


_FILLERS = {
    "pandas": _fill_pandas,
    "polars": _fill_polars,
    "pyarrow": _fill_arrow,
    "mapping": _fill_mapping,
    "array": _fill_array,
}
