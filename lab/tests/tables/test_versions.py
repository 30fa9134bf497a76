"""This version and an earlier one on the second list of tables."""

from __future__ import annotations

import json

import numpy as np
import pytest

import kdmkit
from kdmlab.tables import versions
from kdmlab.tables.data import TableData

from .conftest import rows


def test_both_versions_score_the_same_rows(tmp_path, monkeypatch):
    train, test = rows(80, 0), rows(40, 1)
    train["noise"][::5] = np.nan
    monkeypatch.setattr(versions, "CHECK", ["small"])
    monkeypatch.setattr(versions, "read", lambda name: TableData(name, train, test, "kind"))
    report = versions.run(tmp_path, before=versions.this_source(), verbose=False)
    text = (tmp_path / "tables-versions.jsonl").read_text("utf-8")
    lines = {row["method"]: row for row in map(json.loads, text.splitlines())}
    now, before = lines["now"], lines["before"]
    assert now["missing"] == "unknown"
    assert "missing" not in before
    assert now["version"] == before["version"] == kdmkit.__version__
    # Where empty cells are outcomes, whether a cell is there has a probability, too.
    assert now["test_log_prob"] == pytest.approx(before["test_log_prob"], abs=1.0)
    assert now["test_log_prob"] != before["test_log_prob"]
    assert "| small | 80 |" in report.markdown()
    assert versions.summarize(tmp_path).markdown() == report.markdown()
