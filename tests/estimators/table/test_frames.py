"""Frames go in and come back as they were."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from estimators.table.frames_of_all_kinds import pandas_frame, polars_frame
from kdmkit.estimators.table.frames.read import from_numpy, read_frame
from kdmkit.estimators.table.frames.restore import build_frame
from kdmkit.estimators.table.frames.storage import Storage


def round_trip(frame: Any, index: Any = None) -> Any:
    raw = read_frame("X", frame)
    for column in raw.columns.values():  # what a saved model keeps of a dtype is enough
        assert Storage.from_config(column.storage.config()) == column.storage
    return build_frame(list(raw.columns.values()), raw.backend, raw.labels, index)


def test_pandas_comes_back() -> None:
    frame = pandas_frame()
    pd.testing.assert_frame_equal(round_trip(frame, frame.index), frame)


def test_pandas_names_that_are_numbers_come_back() -> None:
    frame = pd.DataFrame(np.arange(6).reshape(2, 3))
    assert list(read_frame("X", frame).columns) == ["0", "1", "2"]
    assert list(round_trip(frame).columns) == [0, 1, 2]


def test_polars_comes_back() -> None:
    frame = polars_frame()
    back = round_trip(frame)
    assert back.schema == frame.schema
    assert back.equals(frame)


def test_lazy_frames_are_collected() -> None:
    assert round_trip(polars_frame().lazy()).equals(polars_frame())


def test_arrow_comes_back() -> None:
    table = polars_frame().drop("enum", "categorical").to_arrow()
    back = round_trip(table)
    assert back.schema == table.schema
    assert back.to_pylist() == table.to_pylist()
    assert round_trip(table.to_batches()[0]).to_pylist() == table.to_pylist()


@pytest.mark.parametrize("ordered", [False, True])
def test_arrow_dictionaries_come_back(ordered: bool) -> None:
    kind = pa.dictionary(pa.int8(), pa.string(), ordered=ordered)
    table = pa.table({"level": pa.array(["b", None, "a", "b"]).cast(kind)})
    column = read_frame("X", table).columns["level"]
    assert (set(column.storage.categories or ()), column.storage.ordered) == ({"a", "b"}, ordered)
    assert round_trip(table).schema == table.schema
    assert round_trip(table).to_pylist() == table.to_pylist()


def test_mappings_and_arrays_come_back() -> None:
    columns = {
        "int": np.array([1, 2], np.int32),
        "float": np.array([1, np.nan], np.float32),
        "text": np.array(["x", "yy"]),
        "list": ["x", None],
        "date": np.array(["2020-01-01", "NaT"], "M8[D]"),
        "flag": [True, None],
    }
    back = round_trip(columns)
    assert list(back) == list(columns)
    for name, values in columns.items():
        wanted = np.asarray(values)
        assert back[name].dtype == wanted.dtype
        np.testing.assert_array_equal(back[name], wanted)
    matrix = np.random.default_rng(0).normal(size=(4, 3))
    np.testing.assert_array_equal(round_trip(matrix), matrix)
    record = np.array([(1, 0.5), (2, 1.5)], dtype=[("a", int), ("b", float)])
    assert list(read_frame("X", record).columns) == ["a", "b"]


def test_masked_cells_are_missing() -> None:
    column = from_numpy("x", np.ma.masked_array([1, 2, 3], [False, True, False]))
    assert column.missing.tolist() == [False, True, False]


def test_local_times_are_read_as_the_clock_shows_them() -> None:
    zone = pandas_frame()[["zone"]]
    values = read_frame("X", zone).columns["zone"].values
    assert str(values[2]) == "2020-02-03T12:30:00.000000"
    utc = pl.from_pandas(zone.reset_index(drop=True))
    assert str(read_frame("X", utc).columns["zone"].values[2]) == "2020-02-03T12:30:00.000000"


def test_large_integers_with_missing_cells_keep_their_digits() -> None:
    value = 2**62 + 1
    frame = pd.DataFrame({"x": pd.array([value, None], dtype="Int64")})
    assert read_frame("X", frame).columns["x"].values[0] == value


@pytest.mark.parametrize(
    ("frame", "error", "text"),
    [
        ({"a": [1, 2], "b": [1]}, ValueError, "columns of one length, got 2 in 'a', 1 in 'b'"),
        ({"a": [[1, 2]]}, ValueError, "one dimension"),
        ({" ": [1]}, ValueError, "names for all columns, got ' ' for column 0"),
        ({None: [1]}, ValueError, "names for all columns"),
        ({}, ValueError, "got no columns"),
        (5, TypeError, "a data frame"),
        (np.zeros(3), ValueError, "array of shape"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), ValueError, "different names, got 'a' 2 times"),
        (pd.DataFrame([[1, 2]], columns=["1", 1]), ValueError, "different names, got '1' 2 times"),
        (
            pd.DataFrame([[1]], columns=pd.MultiIndex.from_tuples([("a", "b")])),
            ValueError,
            "one level of column names",
        ),
        ({"a": [1.0, np.inf]}, ValueError, "column 'a': expected finite numbers.*inf in row 1"),
        (
            {"a": np.array([1, None, "x", 2.0], object)},
            TypeError,
            "column 'a': expected values of one type, got int in row 0 .1., str in row 2 .'x'.",
        ),
    ],
)
def test_bad_frames(frame: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        read_frame("X", frame)


def test_mappings_need_no_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """They work where narwhals, pyarrow, pandas and polars are not installed."""
    frame = pd.DataFrame({"x": [1, 2]})
    for name in ("narwhals.stable.v2", "pyarrow", "pandas", "polars"):
        monkeypatch.setitem(sys.modules, name, None)
    columns = {"x": np.arange(100) * 0.37 + 0.001, "y": ["a", "b"] * 50}
    assert round_trip(columns)["y"].tolist() == columns["y"]
    raw = read_frame("X", columns)
    assert set(build_frame(list(raw.columns.values()), "pandas", raw.labels)) == {"x", "y"}
    with pytest.raises(ImportError, match=r"narwhals is needed.*kdmkit\[table\]"):
        read_frame("X", frame)
