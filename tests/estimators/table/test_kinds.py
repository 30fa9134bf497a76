"""What columns are taken for."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kdmkit.estimators.table import Schema
from kdmkit.estimators.table.codecs.kinds import decide, fit_codec
from kdmkit.estimators.table.frames.read import read_frame

RNG = np.random.default_rng(0)
N = 200


def kind_of(values: Any, name: str = "x") -> str:
    column = read_frame("X", pd.DataFrame({name: values})).columns[name]
    kind, _ = decide(column)
    assert fit_codec(column, kind).kind == kind
    return kind


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("float", RNG.normal(size=N)),
        ("float", RNG.normal(size=N).astype(np.float32)),
        ("integer", RNG.integers(-50, 50, N)),
        ("count", RNG.poisson(30, N)),
        ("count", RNG.poisson(30, N).astype(float)),  # as pandas keeps whole numbers with missing cells
        ("boolean", RNG.random(N) < 0.5),
        ("boolean", RNG.integers(0, 2, N)),
        ("category", RNG.choice(["red", "green"], N)),
        ("category", [f"city {i % 40}" for i in range(N)]),
        ("text", [f"city {i % 90}" for i in range(N)]),  # most cities have two rows
        ("text", [f"person{i % 50}@mail.org" for i in range(N)]),
        ("text", [f"+49 171 {i % 50:07}" for i in range(N)]),
        ("text", [f"{i % 50} left because the way to the work was too long" for i in range(N)]),
        ("category", pd.Categorical(RNG.choice([1, 2, 5], N))),
        ("ordinal", pd.Categorical(RNG.choice(["low", "high"], N), ["low", "mid", "high"], ordered=True)),
        ("date", pd.date_range("2020-01-01", periods=N)),
        ("date", [dt.date(2020, 1, 1) + dt.timedelta(i) for i in range(N)]),
        ("date", [f"2020-{i % 12 + 1:02}-{i % 28 + 1:02}" for i in range(N)]),
        ("date", [f"{i % 28 + 1}.{i % 12 + 1}.2020" for i in range(N)]),
        ("date", [f"{i % 12 + 1}/{i % 28 + 1}/2020" for i in range(N)]),  # only the month can be first
        ("category", [f"{i % 12 + 1}/{i % 12 + 1}/2020" for i in range(N)]),
        ("time", [dt.time(i % 24, i % 60) for i in range(N)]),
        ("duration", pd.to_timedelta(RNG.integers(1, 1000, N), unit="s")),
        ("constant", [3.5] * N),
        ("constant", ["only"] * N),
        ("identifier", np.arange(N)),
        ("identifier", np.arange(N) + 1.0),
        ("count", RNG.permutation(N) + 1),  # ranks
        ("identifier", [f"{i:05x}" for i in range(N)]),
        ("text", [f"remark {i if i % 3 else 0}" for i in range(N)]),
        ("empty", [None] * N),
        ("text", [[1, 2]] * N),
        ("count", 1950 + np.arange(N)),  # years in order are no identifier
    ],
)
def test_kind(kind: str, values: Any) -> None:
    assert kind_of(values) == kind


@pytest.mark.parametrize(
    ("name", "kind"), [("id", "identifier"), ("customerId", "identifier"), ("paid", "count")]
)
def test_numbers_named_as_identifiers(name: str, kind: str) -> None:
    assert kind_of(RNG.permutation(10 * N)[:N] + 17, name) == kind


def test_a_time_that_counts_rows_is_no_identifier() -> None:
    assert kind_of(np.arange(N), "day_of_year") == "count"


def test_numbers_of_things_are_levels() -> None:
    assert kind_of(RNG.integers(1000, 1020, N), "store_id") == "category"


def test_missing_cells_do_not_matter() -> None:
    values = pd.Series(RNG.choice(["a", "b"], N)).where(RNG.random(N) < 0.7)
    assert kind_of(values) == "category"


def test_types_are_the_callers() -> None:
    frame = pd.DataFrame({"zip": RNG.integers(10000, 10050, N), "grade": RNG.integers(1, 6, N)})
    schema = Schema.from_frame(frame, types={"zip": "category", "grade": "ordinal"})
    assert [column.kind for column in schema.columns.values()] == ["category", "ordinal"]
    assert schema.columns["zip"].why == "asked for"
    pd.testing.assert_frame_equal(schema.decode(schema.encode(frame).columns), frame)


def test_negative_zero_is_zero() -> None:
    codec = Schema.from_frame({"x": [-0.0, 0.0, 1.5] * 20}).columns["x"].codec
    assert codec.describe() == "2 values: 0, 1.5"


@pytest.mark.parametrize(
    ("values", "kind", "text"),
    [
        (["2020-01-01", "2020-01-40"] * 10, "date", "column 'x': expected dates.*'2020-01-40' in row 1"),
        (["01/02/2020", "03/04/2020"] * 10, "date", "both as"),
        (["a", "b"] * 10, "float", "column 'x': expected numbers, got 'a' in row 0"),
        (["a", "b"] * 10, "ordinal", "ordered values"),
        ([1, 2, 3] * 10, "boolean", "two values"),
        ([1, 2] * 10, "constant", "one value"),
        ([None] * 10, "float", "values for kind float, got none"),
        ([1, 2] * 10, "number", "one of 'float', 'integer'"),
    ],
)
def test_kinds_that_do_not_fit(values: Any, kind: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Schema.from_frame({"x": values}, types={"x": kind})


def test_types_of_unknown_columns() -> None:
    with pytest.raises(ValueError, match=r"types: expected columns of the table \(x\), got 'y'"):
        Schema.from_frame({"x": [1, 2]}, types={"y": "float"})


def test_empty_columns_are_left_out_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="column 'y' is left out: all cells are missing"):
        schema = Schema.from_frame({"x": [1, 2, 3], "y": [None] * 3})
    assert schema.columns["y"].variables == ()
