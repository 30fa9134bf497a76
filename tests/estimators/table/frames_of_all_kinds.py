"""Frames with columns of every type, for the tests of tables."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl


def pandas_frame() -> Any:
    """Every dtype of pandas that a table reads, with missing cells and an index of its own."""
    frame = pd.DataFrame(
        {
            "float": [1.5, np.nan, 2.25, 0.5],
            "float32": np.array([0.1, 0.2, np.nan, 0.4], np.float32),
            "int": [3, 1, 2, 2],
            "uint8": np.array([1, 2, 3, 255], np.uint8),
            "Int64": pd.array([1, None, 3, 4], dtype="Int64"),
            "arrow int": pd.array([1, None, 2, 2], dtype="int64[pyarrow]"),
            "bool": [True, False, True, True],
            "boolean": pd.array([True, None, False, True], dtype="boolean"),
            "object bool": [True, None, False, True],
            "text": ["x", None, "y", "x"],
            "string": pd.array(["x", None, "y", "x"], dtype="string"),
            "category": pd.Categorical(["u", "v", None, "u"], categories=["v", "u", "never"]),
            "ordered": pd.Categorical([2, 1, 2, None], categories=[2, 1], ordered=True),
            "datetime": pd.to_datetime(["2020-01-01 00:00", None, "2020-02-03 12:30", "2021-07-01 06:00"]),
            "date": [dt.date(2020, 1, 1), None, dt.date(2021, 1, 1), dt.date(2021, 1, 2)],
            "time": [dt.time(1, 2), None, dt.time(3), dt.time(4)],
            "timedelta": pd.to_timedelta([1, 2, None, 3], unit="h"),
            "decimal": [decimal.Decimal("1.20"), None, decimal.Decimal("2.35"), decimal.Decimal("2.00")],
        },
        index=pd.Index([7, 5, 3, 1], name="row"),
    )
    frame["zone"] = frame["datetime"].dt.tz_localize("Europe/Berlin")
    return frame


def polars_frame() -> Any:
    """Every dtype of polars that a table reads, with missing cells."""
    instants = [dt.datetime(2020, 1, 1), None, dt.datetime(2020, 6, 1, 12, 30)]
    return pl.DataFrame(
        {
            "float": [1.0, None, 2.5],
            "float32": pl.Series([1, None, 2], dtype=pl.Float32),
            "int": [1, None, 3],
            "uint16": pl.Series([1, 2, None], dtype=pl.UInt16),
            "text": ["x", None, "y"],
            "categorical": pl.Series(["u", None, "v"], dtype=pl.Categorical),
            "enum": pl.Series(["u", None, "v"], dtype=pl.Enum(["v", "u"])),
            "datetime": instants,
            "milliseconds": pl.Series(instants, dtype=pl.Datetime("ms")),
            "zone": pl.Series(instants).dt.replace_time_zone("Europe/Berlin"),
            "date": [dt.date(2020, 1, 1), None, dt.date(2021, 1, 1)],
            "duration": [dt.timedelta(hours=1), None, dt.timedelta(1)],
            "decimal": pl.Series([decimal.Decimal("1.20"), None, decimal.Decimal("2.30")]),
            "time": [dt.time(1), None, dt.time(2, 30)],
            "boolean": [True, None, False],
        }
    )


def mixed_frame(n: int = 600, seed: int = 0) -> Any:
    """Rows with columns of every kind."""
    rng = np.random.default_rng(seed)
    start = pd.Timestamp("2023-01-01")
    return pd.DataFrame(
        {
            "positive": rng.gamma(2.0, 3.0, n),
            "income": np.where(rng.random(n) < 0.4, 0.0, np.round(rng.lognormal(3.0, 1.0, n), 2)),
            "age": rng.integers(18, 91, n),
            "children": rng.integers(0, 5, n),
            "city": rng.choice(["Bonn", "Köln", "Ulm"], n, p=[0.6, 0.3, 0.1]),
            "member": rng.random(n) < 0.3,
            "day": start + pd.to_timedelta(rng.integers(0, 200, n), unit="D"),
            "visit": start + pd.to_timedelta(rng.integers(0, 1000 * 1440, n), unit="min"),
            "month": rng.choice(pd.date_range("2010-01-01", "2020-12-01", freq="MS"), n),
            "clock": [dt.time(int(m) // 60, int(m) % 60) for m in rng.integers(0, 1440, n)],
            "score": np.minimum(np.round(rng.normal(80, 15, n)), 100),
            "large": 1_600_000_000 + rng.integers(0, 10**6, n),
            "tiny": rng.normal(0, 1e-9, n),
        }
    )
