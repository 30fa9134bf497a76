"""Reports on synthetic rows: measured and written, on a small table in place of the real ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import kdmkit as kdm
from kdmlab import evaluate
from kdmlab.tables.data import PAPER, TableData

from .conftest import rows


@pytest.fixture
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adult is a small table, models are small, and scikit-learn stands in for XGBoost."""
    table = TableData("adult", rows(160, 0), rows(60, 1), "kind")
    monkeypatch.setitem(PAPER, "adult", lambda data_dir: table)
    small = {"n_components": 4, "max_epochs": 2}
    monkeypatch.setattr(evaluate.kdm, "KDMTable", lambda **options: kdm_table(**options, **small))
    monkeypatch.setattr("kdmlab.tables.detection.xgboost_classifier", None)
    monkeypatch.setattr(evaluate, "TIMED_ROWS", 50)


kdm_table = kdm.KDMTable


@pytest.mark.usefixtures("small_tables")
def test_reports_are_measured_once_and_written(tmp_path: Path) -> None:
    for _ in range(2):
        evaluate.run(tmp_path, tmp_path, datasets=["adult"], work_dir=tmp_path / "runs", verbose=False)
    lines = [json.loads(line) for line in (tmp_path / "evaluate.jsonl").read_text("utf-8").splitlines()]
    assert {line["part"] for line in lines} == {"report", "half", "time"}
    assert len(lines) == 3
    text = (tmp_path / "evaluate.md").read_text("utf-8")
    assert "| Adult, C2ST: evaluate less the laboratory | ≤ 0.01 | 0.0000 | yes |" in text
    assert "magic, membership inference, AUC | ≤ 0.53 |  | not run" in text
    assert "50 rows of adult with 4 columns" in text
