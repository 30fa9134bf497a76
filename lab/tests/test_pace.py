"""The pace of fits: lists of tables, folds, and the report of what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kdmlab import classifiers
from kdmlab.pace import data, summarize
from kdmlab.pace.measure import OLD, _scores, measure
from kdmlab.pace.run import tasks


@pytest.mark.parametrize("kind", data.TABLES)
def test_lists_do_not_overlap(kind: data.Kind) -> None:
    parts = data.TABLES[kind]
    size = {"classifier": 20, "regressor": 10}[kind]
    assert {len(names) for names in parts.values()} == {size}
    assert len({name for names in parts.values() for name in names}) == 2 * size


def test_no_table_is_one_of_the_other_experiment() -> None:
    others = {name for names in classifiers.TABLES.values() for name in names}
    here = {name.split("/")[1] for names in data.TABLES["classifier"].values() for name in names}
    assert not others & here


def test_methods_of_a_fold_are_measured_in_turns() -> None:
    keys = [task.key for task in tasks("test", old=Path("old"))]
    methods = [key["method"] for key in keys[:7]]
    assert methods == ["fast", "default", "best", "boosting", "forest", "linear", OLD]
    assert {(key["table"], key["fold"]) for key in keys[:7]} == {(keys[0]["table"], 0)}


def test_columns_become_numbers() -> None:
    np.testing.assert_array_equal(data._numbers(["b", "a", "b"]), [[0, 1], [1, 0], [0, 1]])
    assert data._numbers(["1.5", "2", "2"]).ravel().tolist() == [1.5, 2.0, 2.0]
    assert data._numbers([3, 1, 2]) is None
    assert data._numbers([f"row {i}" for i in range(40)]) is None


def test_probabilities_of_unseen_classes_are_small() -> None:
    y = np.array([0, 1, 2, 0])
    answers = {"classes": np.array([0, 1]), "probs": np.array([[1.0, 0.0], [0.5, 0.5]])}
    scores = _scores("classifier", y, {"y_test": np.array([0, 1])}, answers)
    assert scores["log_loss"] == pytest.approx(-np.log(0.5) / 2, abs=1e-5)


def test_a_fit_is_measured() -> None:
    answer = measure("regressor", "sklearn/diabetes", 0, "linear")
    assert 0.6 < answer["rmse"] < 0.8
    assert answer["shape"] == [442, 10]


def test_0_2_0_needs_its_source() -> None:
    with pytest.raises(ValueError, match="old: expected the folder with the source"):
        measure("regressor", "sklearn/diabetes", 0, OLD)


def test_differences_are_paired(tmp_path: Path) -> None:
    facts: dict[str, Any] = {
        "machine": {},
        "versions": {},
        "seconds": 1.0,
        "finished": "2026-01-01T00:00:00+00:00",
        "format": 1,
        "settings": "defaults",
        "seed": 0,
        "kind": "classifier",
    }
    lines = []
    for place, table in enumerate(data.TABLES["classifier"]["test"][:4]):
        of_method = {"default": (0.2 + place, 3.0), "boosting": (0.5, 1.0), OLD: (0.1 + place, 9.0)}
        for method, (loss, fit) in {**of_method, "forest": (0.6, 1.0), "linear": (9.0, 0.1)}.items():
            line = {
                "table": table,
                "fold": 0,
                "method": method,
                "log_loss": loss,
                "accuracy": 1.0,
                "fit": fit,
            }
            lines.append({**facts, **line})
    path = tmp_path / "pace-test.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    summarize(tmp_path, part="test")
    text = path.with_suffix(".md").read_text()
    assert "| classifier, default: median ratio of seconds to boosting, 4 tables | ≤ 5 | 3 | yes |" in text
    assert "less that of 0.2.0 (± 0.0000) | ≤ 0.002 | 0.1 | no, of 4 runs |" in text
    assert "more than 5 % behind a linear model in log-loss | ≤ 0 | 0 | yes |" in text
