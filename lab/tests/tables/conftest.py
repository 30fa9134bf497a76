"""A small mixed table in place of the real ones."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier

from kdmkit.metrics import boosting_score
from kdmlab.tables import detection, methods, parts
from kdmlab.tables.data import PAPER, Rows, TableData


def boosting(is_level: list[bool], max_iter: int = 10) -> Any:
    return HistGradientBoostingClassifier(categorical_features=is_level, max_iter=max_iter, random_state=0)


def rows(n: int, seed: int) -> Rows:
    """A size that depends on the kind, a column of noise, and a colour that depends on the kind."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, 2, n)
    colour = np.where(rng.random(n) < 0.9, kind, 1 - kind)
    return {
        "size": 4.0 * kind + rng.normal(size=n),
        "noise": rng.normal(size=n),
        "colour": np.array(["red", "blue"], dtype=object)[colour],
        "kind": np.array(["a", "b"], dtype=object)[kind],
    }


@pytest.fixture
def small_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAGIC is a small table, models are small, and scikit-learn stands in for XGBoost and sdmetrics."""
    small = {"n_components": 4, "max_epochs": 2}
    table = TableData("magic", rows(160, 0), rows(60, 1), "kind")
    monkeypatch.setitem(PAPER, "magic", lambda data_dir: table)
    for name, settings in methods.TABLES.items():
        monkeypatch.setitem(methods.TABLES, name, {**settings, **small})
    c2st = partial(detection.c2st, classifier=partial(boosting, max_iter=2))
    monkeypatch.setattr(parts, "c2st", c2st)
    monkeypatch.setattr(parts, "c2st_sdmetrics", lambda real, synthetic, codes: c2st(real, synthetic))

    def trained_auc(train: Rows, test: Rows, target: str, seed: int) -> float:
        return boosting_score(train, test, target, seed=seed)

    monkeypatch.setattr(parts, "trained_auc", trained_auc)
    monkeypatch.setattr("kdmlab.tables.answers.QUESTIONS", 6)
    monkeypatch.setattr("kdmlab.tables.answers._WARM_UP", 2)
