"""Cells removed by three mechanisms, and the report of what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kdmlab.missing import filling, summarize
from kdmlab.missing.run import OLD, tasks


@pytest.mark.parametrize("mechanism", filling.MECHANISMS)
def test_thirty_percent_of_the_cells_are_removed(mechanism: str) -> None:
    rng = np.random.default_rng(0)
    rows = {f"x{i}": rng.normal(size=3000) for i in range(6)} | {
        "y": rng.choice(["a", "b"], 3000).astype(object)
    }
    removed = filling.MECHANISMS[mechanism](rows, np.random.default_rng(1))
    assert np.mean([mask.mean() for mask in removed.values()]) == pytest.approx(0.3, abs=0.02)
    correlation = np.corrcoef(rows["x0"], removed["x0"])[0, 1] if removed["x0"].any() else 0.0
    assert (correlation > 0.3) == (mechanism == "not at random")


def errors(**by_column: float) -> dict[str, Any]:
    return {"nrmse_by_column": by_column, "accuracy_by_column": {}, "mean": 0.0}


def test_methods_are_compared_in_the_columns_that_all_of_them_fill_in(tmp_path: Path) -> None:
    key = {"dataset": "d", "settings": "defaults", "mechanism": "at random"}
    facts = {
        "machine": {},
        "versions": {},
        "seconds": 1.0,
        "finished": "2026-01-01T00:00:00+00:00",
        "format": 1,
    }
    lines = []
    for seed in range(5):
        noise = 0.01 * seed
        both = {"outcome": errors(a=0.5, b=0.0), "unknown": errors(a=0.7 + noise)}
        lines.append({**key, **facts, "measure": "imputation", "seed": seed, **both})
        lines.append({**key, **facts, "measure": OLD, "seed": seed, "0.2.0": errors(a=0.3 + noise)})
    path = tmp_path / "missing-development.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    summarize(tmp_path, part="development")
    text = path.with_suffix(".md").read_text()
    assert "| d | at random | 0.5000 | 0.7200 | 0.3200 |" in text
    assert "0 better, 0 equal, 1 worse" in text


def test_lists_of_tasks_do_not_overlap() -> None:
    names = {part: {task.key["dataset"] for task in tasks(part)} for part in ("development", "test")}
    seen = names["development"] & names["test"]
    for name in seen:  # a data set may be in both parts for different measures only
        kinds = [
            {t.key["measure"] for t in tasks(p) if t.key["dataset"] == name} for p in ("development", "test")
        ]
        assert not kinds[0] & kinds[1]
