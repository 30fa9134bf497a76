"""Missing cells of a frame, filled in. All other cells stay as they are, bit by bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from kdmkit.estimators.common.arrow import need
from kdmkit.estimators.table.frames.read import RawFrame
from kdmkit.estimators.table.frames.restore import (
    arrow_array,
    numpy_values,
    pandas_series,
    polars_series,
    to_objects,
)
from kdmkit.estimators.table.frames.storage import BASES, RawColumn, Storage


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
    values[raw.missing] = _as_base(cells, storage.base, raw.storage.base)
    return replace(raw, values=values, missing=np.zeros(len(values), bool))


def _as_base(cells: np.ndarray, base: str, wanted: str) -> np.ndarray:
    if base != wanted and wanted == "string":
        return np.array([str(cell) for cell in cells.tolist()], dtype=object)
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
    """The column with all of its values among its categories, where it has categories."""
    known = column.storage.categories
    if known is None:
        return column
    new = tuple(dict.fromkeys(value for value in column.values.tolist() if value not in set(known)))
    return replace(column, storage=replace(column.storage, categories=known + new))


def _fill_polars(frame: RawFrame, filled: Mapping[str, RawColumn]) -> Any:
    pl = need("polars")
    columns = []
    for name, raw in frame.columns.items():
        column = frame.native[name]
        if name in filled:
            whole = polars_series(name, _declared(filled[name]))
            known = pl.Series(~raw.missing)
            new = _is_new(raw, filled[name])
            column = whole if new else column.cast(whole.dtype).zip_with(known, whole)
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
    known = np.array(np.ma.getdata(column))
    known[raw.missing] = to_cells(filled, raw.missing, known.dtype)
    return known


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
