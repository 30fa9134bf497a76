"""Rows become events and come back; schemas are described and saved."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from estimators.table.frames_of_all_kinds import mixed_frame, pandas_frame, polars_frame
from kdmkit.estimators.table import Schema

FRAME = mixed_frame()


@pytest.fixture(scope="module")
def schema() -> Schema:
    return Schema.from_frame(FRAME)


def test_kinds_and_variables(schema: Schema) -> None:
    kinds = {name: column.kind for name, column in schema.columns.items()}
    assert kinds == {
        "positive": "float",
        "income": "float",
        "age": "count",
        "children": "count",
        "city": "category",
        "member": "boolean",
        "day": "date",
        "visit": "date",
        "month": "date",
        "clock": "time",
        "score": "count",
        "large": "count",
        "tiny": "float",
    }
    assert schema.columns["day"].variables == ("c6_week", "c6_weekday")
    assert schema.columns["visit"].variables == ("c7_season", "c7_week", "c7_weekday", "c7_time")
    assert schema.columns["month"].variables == ("c8_year", "c8_month")
    names = [variable.name for variable in schema.variables()]
    assert names == [name for column in schema.columns.values() for name in column.variables]


def test_rows_come_back(schema: Schema) -> None:
    rows = schema.encode(FRAME)
    assert all(bool(mask.all()) for mask in rows.observed.values())
    back = schema.decode(rows.columns, index=FRAME.index)
    exact = [name for name in FRAME if name not in ("positive", "tiny")]
    pd.testing.assert_frame_equal(back[exact], FRAME[exact])
    np.testing.assert_allclose(back["positive"], FRAME["positive"], rtol=1e-6)
    np.testing.assert_allclose(back["tiny"], FRAME["tiny"], rtol=1e-5)


@pytest.mark.parametrize("frame", [pandas_frame(), polars_frame(), polars_frame().to_arrow()])
def test_frames_of_every_dtype_come_back(frame: Any) -> None:
    schema = Schema.from_frame(frame)
    back = schema.decode(schema.encode(frame).columns)
    assert type(back) is type(frame)
    if isinstance(frame, pd.DataFrame):
        assert [str(dtype) for dtype in back.dtypes] == [str(dtype) for dtype in frame.dtypes]
        frame, back = frame.reset_index(drop=True).to_dict("list"), back.to_dict("list")
    elif isinstance(frame, pl.DataFrame):
        assert back.schema == frame.schema
        frame, back = frame.to_dict(as_series=False), back.to_dict(as_series=False)
    else:
        assert back.schema == frame.schema
        frame, back = frame.to_pydict(), back.to_pydict()
    for name, column in frame.items():
        for wanted, got in zip(column, back[name], strict=True):
            missing = wanted is None or wanted is pd.NA or wanted is pd.NaT or wanted != wanted
            assert missing or got == wanted or got == pytest.approx(wanted), name


def test_a_description_makes_an_equal_schema(schema: Schema) -> None:
    config = schema.config()
    again = Schema.from_config(json.loads(json.dumps(config, allow_nan=False)))
    assert again.config() == config
    assert str(again) == str(schema)
    rows, other = schema.encode(FRAME), again.encode(FRAME)
    for name, value in rows.columns.items():
        assert torch.equal(value, other.columns[name])
    pd.testing.assert_frame_equal(again.decode(rows.columns), schema.decode(rows.columns))


def test_kernels_have_densities_of_all_rows(schema: Schema) -> None:
    rows = schema.encode(FRAME)
    for variable in schema.variables(5):
        kernel, value = variable.kernel, rows.columns[variable.name]
        components = kernel.components_from(value[:5])
        assert components.shape == (5, *kernel.component_shape(variable.shape))
        x = value.reshape(len(value), 1, *variable.shape)
        found = kernel.log_overlap(x, components)
        assert bool(torch.isfinite(found).all()), variable.name


def test_the_table_of_columns(schema: Schema) -> None:
    lines = str(schema).splitlines()
    assert lines[0].split() == ["column", "kind", "missing", "details", "why"]
    assert len(lines) == 1 + len(FRAME.columns)
    assert "step 0.01; 1 frequent value: 0" in lines[2]


# ---- other rows than the fitted ones


def test_missing_cells_are_masked(schema: Schema) -> None:
    frame = FRAME.head(4).astype({"age": "Int64"})
    frame.loc[1, "age"] = pd.NA
    frame.loc[2, "city"] = None
    frame.loc[3, "visit"] = pd.NaT
    rows = schema.encode(frame)
    assert rows.observed["c2"].tolist() == [True, False, True, True]
    assert rows.observed["c4"].tolist() == [True, True, False, True]
    assert rows.observed["c7_time"].tolist() == [True, True, True, False]


def test_absent_columns_are_missing_and_unknown_ones_ignored(schema: Schema) -> None:
    frame = FRAME.head(3).drop(columns="age").assign(new=1, other="x")
    with pytest.warns(UserWarning, match="fitted to are ignored: 'new', 'other'"):
        rows = schema.encode(frame)
    assert not rows.observed["c2"].any()
    assert rows.observed["c1"].all()


def test_unseen_levels_are_rare() -> None:
    fitted = {"city": ["Bonn"] * 50 + ["Köln"] * 48 + ["Ulm", "Jena"]}
    schema = Schema.from_frame(fitted)
    with pytest.warns(UserWarning, match="1 in 'city' \\('Rom'\\)"):
        rows = schema.encode({"city": ["Bonn", "Rom", None]})
    assert rows.observed["c0"].tolist() == [True, False, False]
    share = 2.5 / 101  # two levels with one row each
    # A missing cell is as rare as a new level in a column that had none.
    assert rows.log_offset.tolist() == pytest.approx([math.log1p(-share), math.log(share), math.log(share)])
    with pytest.warns(UserWarning, match="1 in 'city'"):
        unknown = schema.encode({"city": ["Rom", None]}, missing="unknown").log_offset
    assert unknown.tolist() == pytest.approx([math.log(share), 0.0])


def test_declared_levels_are_known() -> None:
    frame = pd.DataFrame({"size": pd.Categorical(["S", "L"] * 10, ["S", "M", "L"], ordered=True)})
    schema = Schema.from_frame(frame)
    other = pd.DataFrame({"size": pd.Categorical(["M"], ["S", "M", "L"], ordered=True)})
    rows = schema.encode(other)
    assert rows.columns["c0"].tolist() == [1]
    assert rows.log_offset.tolist() == [0.0]


def test_numbers_that_a_column_cannot_have() -> None:
    schema = Schema.from_frame({"price": np.random.default_rng(0).gamma(2, 3, 99)})
    rows = schema.encode({"price": [1.0, -1.0]})
    assert rows.observed["c0"].tolist() == [True, False]
    assert rows.log_offset.tolist() == pytest.approx([math.log1p(-0.005), math.log(0.005)])


def test_later_dates_are_dates() -> None:
    schema = Schema.from_frame({"day": pd.date_range("2024-01-01", periods=100)})
    later = pd.DataFrame({"day": pd.to_datetime(["2025-03-05"])})
    rows = schema.encode(later)
    assert all(bool(mask.all()) for mask in rows.observed.values())
    assert schema.decode(rows.columns)["day"].astype("datetime64[D]").astype(str).tolist() == ["2025-03-05"]


def test_other_frames_hold_the_same_rows(schema: Schema) -> None:
    rows = schema.encode(FRAME.drop(columns=["clock"]))
    other = schema.encode(pl.from_pandas(FRAME.drop(columns=["clock"])))
    for name, value in rows.columns.items():
        assert torch.equal(value, other.columns[name]), name


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        ({"age": ["old"]}, "column 'age': expected numbers, got 'old' in row 0"),
        ({"day": [3]}, "column 'day': expected dates, got 3"),
        ({"city": [3]}, "column 'city': expected values like 'Bonn', got"),
        ({"clock": ["noon"]}, "column 'clock': expected times of day, got 'noon'"),
    ],
)
def test_columns_of_another_type(schema: Schema, frame: Any, text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        schema.encode(frame)


# ---- columns that take no part


def test_constants_come_back_and_identifiers_are_left_out() -> None:
    frame = pd.DataFrame(
        {
            "id": np.arange(50),
            "x": np.random.default_rng(0).normal(size=50),
            "unit": ["kg"] * 50,
            "since": pd.to_datetime(["2020-01-01"] * 50),
        }
    )
    schema = Schema.from_frame(frame)
    assert [column.kind for column in schema.columns.values()] == [
        "identifier",
        "float",
        "constant",
        "constant",
    ]
    schema = Schema.from_config(json.loads(json.dumps(schema.config())))
    back = schema.decode({"c1": torch.zeros(3, 1)})
    pd.testing.assert_frame_equal(back[["unit", "since"]], frame[["unit", "since"]].head(3))
    assert list(back) == ["x", "unit", "since"]
    with pytest.raises(ValueError, match=r"'id' \(identifier, left out\)"):
        schema.decode({"c1": torch.zeros(3, 1)}, columns=["id"])


def test_frames_without_rows() -> None:
    with pytest.raises(ValueError, match="at least one row"):
        Schema.from_frame(pd.DataFrame({"x": []}))
