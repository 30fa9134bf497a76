"""Tables with one hard point each, made small."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kdmlab.tables import points


def days() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    date = pd.date_range("2012-01-01", periods=90)
    warmth = np.where(date.month == 1, 0.0, 20.0)
    return pd.DataFrame(
        {"date": date, "temp_max": warmth + rng.normal(size=90), "temp_min": warmth + rng.normal(size=90)}
    )


def houses() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    size = rng.integers(50, 200, 120)
    return pd.DataFrame(
        {
            "size": size,
            "heating": np.where(size > 120, "gas", "none"),
            "sold": pd.date_range("2020-01-01", periods=120).strftime("%Y-%m-%d"),
            "price": 1000 * size + rng.normal(0, 5000, 120).round(),
        }
    )


def test_every_point_is_measured_and_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(points, "_weather", days)
    monkeypatch.setattr(points, "_frame", lambda name: houses())
    monkeypatch.setitem(points.POINTS, "252 × 200", points.Point(partial(points.wide, 40, 4)))
    chosen = [points.WEATHER, "252 × 200", "mosaicData/SaratogaHouses"]
    report = points.run(tmp_path, datasets=chosen, seeds=1, verbose=False)
    text = report.markdown()
    assert "| seattle-weather: monthly means are off by, °C | ≤ 0.7 |" in text
    assert "| 252 × 200: processor seconds of a fit | ≤ 20 |" in text
    assert "| mosaicData/SaratogaHouses: the same over that of boosting | ≤ 1.1 |" in text
    rows = {row["dataset"]: row for row in points.read_rows(tmp_path / "tables-points.jsonl")}
    assert rows[points.WEATHER]["months"] == 3
    assert rows[points.WEATHER]["off"] < 8  # without the date: 13
    errors: Any = rows["mosaicData/SaratogaHouses"]["rmse"]
    assert max(errors.values()) < houses()["price"].std()
    assert points.summarize(tmp_path).markdown() == text


def test_trees_take_texts_as_categories_and_dates_as_numbers():
    frame = houses()
    x = points._for_trees(frame[:60].drop(columns="price"), frame)
    assert str(x["heating"].dtype) == "category"
    assert x["sold"].is_monotonic_increasing
    assert x["sold"].dtype.kind == "i"


def test_unknown_tables_are_refused(tmp_path):
    with pytest.raises(ValueError, match="dataset: expected some of seattle-weather"):
        points.run(tmp_path, datasets=["iris"])
