"""The table of models that learn from chunks."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

import kdmkit as kdm
from kdmlab import streams


def test_run_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(streams.TABLES, "test", ("moons",))
    monkeypatch.setattr(streams, "_MOST_ROWS", 200)
    monkeypatch.setattr(streams, "SEEDS", {"KDMDensity": 1, "KDMClassifier": 1})
    monkeypatch.setattr(streams, "KDMClassifier", partial(kdm.KDMClassifier, "nonparametric", sigma=0.3))
    report = streams.run(tmp_path, part="test", verbose=False)
    assert [row[:2] for row in report.rows] == [
        ["KDMDensity", "moons"],
        ["KDMDensity", "mean"],
        ["KDMClassifier", "moons"],
        ["KDMClassifier", "mean"],
    ]
    # One call of a classifier is not measured.
    assert report.rows[2][3] == ""
    lines = (tmp_path / "streams-test.jsonl").read_text()
    assert len(lines.splitlines()) == 8 + 6
    assert streams.run(tmp_path, part="test", verbose=False).rows == report.rows
    assert (tmp_path / "streams-test.jsonl").read_text() == lines


def test_shares_of_the_gain() -> None:
    key = {"dataset": "moons", "model": "KDMDensity", "seed": 0}
    scores = {("first", 1.0): -3.0, ("whole", 1.0): -1.0, ("chunks", 0.5): -1.5}
    rows = [{**key, "way": way, "budget": b, "score": score} for (way, b), score in scores.items()]
    assert streams.shares(rows, "moons", "KDMDensity", "chunks", 0.5) == 0.75
    assert np.isnan(streams.shares(rows, "moons", "KDMDensity", "chunks", 0.25))


def test_halves_of_the_tables() -> None:
    assert not set(streams.TABLES["development"]) & set(streams.TABLES["test"])
    X, y, X_test, y_test = streams.split("mixture", 0)
    assert X.shape == (4900, 5)
    assert X_test.shape == (2000, 5)
    assert set(y) == set(y_test) == {0, 1, 2}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["moons", "mixture"])
def test_chunks_reach_the_fit(name: str) -> None:
    first, whole = (streams.measure(name, "KDMDensity", way, 1.0, 0)["score"] for way in ("first", "whole"))
    for budget in streams.BUDGETS:
        score = streams.measure(name, "KDMDensity", "chunks", budget, 0)["score"]
        assert score > first + 0.95 * (whole - first)
