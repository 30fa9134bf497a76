"""Sequences beside hmmlearn, and regression heads behind networks: lines, choices and reports."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kdmlab import sequences
from kdmlab.common import append_row
from kdmlab.regression import behind_networks
from kdmlab.regression.data import Split


def test_log_p_of_later_steps_is_a_density(monkeypatch: pytest.MonkeyPatch) -> None:
    """In other units the log-density changes by the logarithm of the unit."""
    fit = partial(sequences.kdm.KDMSequence, max_epochs=2)
    monkeypatch.setattr(sequences.kdm, "KDMSequence", fit)
    rng = np.random.default_rng(0)
    x = np.where(np.arange(200) // 20 % 2, 3.0, 0.0) + rng.normal(size=200).round(1)
    one, ten = (
        sequences._measure(partial(pd.DataFrame, {"x": (unit * x).round(1)}), "KDMSequence", 2)["log_prob"]
        for unit in (1, 10)
    )
    assert one == pytest.approx(ten + np.log(10), abs=0.05)


def test_the_table_of_sequences(tmp_path: Path) -> None:
    for name in ("geyser", "DAX, daily returns"):
        for method in sequences.METHODS:
            key = {"dataset": name, "states": 3, "method": method}
            row: Any = {"format": 1, **key, "log_prob": -1.5, "seconds": 1.0, "versions": {}, "machine": {}}
            append_row(tmp_path / "sequences.jsonl", row)
    report = sequences.report(sequences.read_rows(tmp_path / "sequences.jsonl"))
    assert [cells[:3] for cells in report.rows] == [
        ["geyser", "test", "3"],
        ["DAX, daily returns", "test", "3"],
    ]


def test_heads_learn_and_settings_are_those_of_development(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(behind_networks, "_STEPS", 120)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    y = 100 + 20 * X[:, 0] + rng.normal(size=300)
    split = Split(X[:240], y[:240], X[240:], y[240:])
    rows = []
    for method in behind_networks.METHODS:
        for rate in (1e-6, 1e-2):
            settings = {"rate": rate, "batch": 32}
            measured = behind_networks.measure(method, settings, lambda: split, 0)
            rows.append({"dataset": "ISLR/Auto", "method": method, "settings": settings, **measured})
    assert all(best["rate"] == 1e-2 for best in behind_networks.best_settings(rows).values())
    learned = [row for row in rows if row["settings"]["rate"] == 1e-2]
    assert all(row["rmse"] < 0.5 * y.std() and row["nll"] < np.log(y.std()) + 1 for row in learned)
    with pytest.raises(ValueError, match="expected lines of the development list"):
        behind_networks.best_settings([])
