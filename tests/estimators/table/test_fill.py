"""Missing cells are filled in; the others stay as they are, bit by bit."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from estimators.table.frames_of_all_kinds import pandas_frame, polars_frame
from kdmkit.estimators.table.frames.read import RawFrame, read_frame
from kdmkit.estimators.table.frames.restore import fill_frame
from kdmkit.estimators.table.frames.storage import Storage


def filled(frame: Any) -> tuple[RawFrame, Any]:
    """The frame with the first known cell of a column in place of all missing ones."""
    raw = read_frame("X", frame)
    gaps = {name: column for name, column in raw.columns.items() if column.missing.any()}
    cells = {name: np.repeat(column.present[:1], column.missing.sum()) for name, column in gaps.items()}
    return raw, fill_frame(raw, cells, {name: column.storage for name, column in gaps.items()})


def exact_pandas() -> Any:
    """Cells that float64 and microseconds do not hold."""
    return pd.DataFrame(
        {
            "ns": pd.to_datetime(["2024-01-01 00:00:00.123456789", None]),
            "zone": pd.to_datetime(["2024-10-27 00:30:00.5", None], utc=True).tz_convert("Europe/Berlin"),
            "delta": pd.to_timedelta([1234567891, None], unit="ns"),
            "decimal": [decimal.Decimal("0.12345678901234567890123"), None],
            "Int64": pd.array([2**62 + 1, None], dtype="Int64"),
            "zero": [-0.0, None],
            "list": [[1, 2], [3]],
            "object": np.array([1, None], dtype=object),
        },
        index=["a", "a"],
    )


@pytest.mark.parametrize("frame", [pandas_frame(), exact_pandas()], ids=["all kinds", "exact"])
def test_pandas(frame: Any) -> None:
    raw, whole = filled(frame)
    assert not whole.isna().any(axis=None)
    assert whole.dtypes.equals(frame.dtypes)
    assert whole.index.equals(frame.index)
    for name in frame:
        known = ~raw.columns[name].missing
        assert [repr(cell) for cell in whole[name][known]] == [repr(cell) for cell in frame[name][known]]


def test_polars() -> None:
    exact = pl.DataFrame(
        {
            "ns": pl.Series([1234567891, None]).cast(pl.Datetime("ns")),
            "decimal": pl.Series(["0.123456789012345678901", None]).cast(pl.Decimal(30, 21)),
        }
    )
    for frame in (polars_frame(), exact):
        raw, whole = filled(frame)
        assert whole.schema == frame.schema
        assert whole.null_count().sum_horizontal().item() == 0
        for name, column in raw.columns.items():
            known = pl.Series(~column.missing)
            assert whole[name].filter(known).to_list() == frame[name].filter(known).to_list()


def test_arrow() -> None:
    frame = pa.table(
        {
            "ns": pa.array([1234567891, None], pa.timestamp("ns")),
            "zone": pa.array([1729988999, None], pa.timestamp("s", "Europe/Berlin")),
            "decimal": pa.array([decimal.Decimal("0.123456789012345678901"), None], pa.decimal128(30, 21)),
            "large": pa.array([2**62 + 1, None]),
            "levels": pa.array(["u", None]).dictionary_encode(),
            "time": pa.array([dt.time(3, 4), None]),
        }
    )
    _, whole = filled(frame)
    assert whole.schema == frame.schema
    assert whole.slice(0, 1) == frame.slice(0, 1)
    assert all(column.null_count == 0 for column in whole.columns)


def test_mappings_and_arrays() -> None:
    mapping = {
        "ns": np.array(["2024-01-01T00:00:00.123456789", "NaT"], "M8[ns]"),
        "masked": np.ma.MaskedArray([2**62 + 1, 0], [False, True]),
        "list": ["a", None],
        "float32": np.array([0.1, np.nan], np.float32),
    }
    _, whole = filled(mapping)
    assert whole["ns"][0] == mapping["ns"][0]
    assert not np.isnat(whole["ns"][1])
    assert whole["masked"].tolist() == [2**62 + 1] * 2
    assert list(whole["list"]) == ["a", "a"]
    assert whole["float32"].dtype == np.float32
    masked = np.ma.MaskedArray([[-0.0, 1.0], [5.0, 2.0]], [[False, False], [True, False]])
    assert np.signbit(filled(masked)[1][:, 0]).all()


@pytest.mark.parametrize(
    ("frame", "cell", "wanted"),
    [
        (pd.DataFrame({"c": [np.nan, np.nan]}), "u", ["u", "u"]),
        (pd.DataFrame({"c": [None, None]}), "u", ["u", "u"]),
        (pd.DataFrame({"c": pd.Categorical(["v", None])}), "u", ["v", "u"]),
        (pd.DataFrame({"c": pd.Categorical([None, None])}), "u", ["u", "u"]),
        (pl.DataFrame({"c": [None, None]}), "u", ["u", "u"]),
        (pl.DataFrame({"c": pl.Series(["v", None], dtype=pl.Enum(["v"]))}), "u", ["v", "u"]),
        (pa.table({"c": pa.nulls(2)}), "u", ["u", "u"]),
        ({"c": [None, None]}, "u", ["u", "u"]),
        (np.full((2, 1), np.nan), "u", ["u", "u"]),
    ],
)
def test_levels_that_the_frame_does_not_know(frame: Any, cell: Any, wanted: list[Any]) -> None:
    raw = read_frame("X", frame)
    ((name, column),) = raw.columns.items()
    cells = np.array([cell] * column.missing.sum(), dtype=object)
    whole = fill_frame(raw, {name: cells}, {name: Storage("string", "object")})
    found = whole[:, 0] if isinstance(whole, np.ndarray) else whole["c"]
    assert (found.to_pylist() if isinstance(whole, pa.Table) else list(found)) == wanted
