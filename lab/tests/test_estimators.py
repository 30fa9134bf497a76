"""Claims about the estimators, and the tasks that measure them."""

from typing import Any

import numpy as np
import pytest

from kdmlab import estimators
from kdmlab.estimators import Measure

#: One value of everything that is measured, each meeting its target.
RESULTS = {
    "accuracy": 0.99,
    "threes": 1.0,
    "ece": 0.01,
    "auroc_noise": 1.0,
    "auroc_inverted": 1.0,
    "coverage": 0.9,
    "fit_seconds": 1.0,
    "memory_growth": 0.0,
}


def rows() -> list[dict[str, Any]]:
    """A line for every task."""
    return [{**task.key, **RESULTS} for make in estimators.TASKS.values() for task in make()]


def test_claims_take_the_lines_of_their_measure_and_data() -> None:
    some = [{**row, "accuracy": 0.1} if row["data"] == "iris" else row for row in rows()]
    missed = [claim.what for claim in estimators.claims(some) if not claim.met]
    assert missed == ["iris: accuracy, 5 folds"]


def test_a_claim_about_the_minimum() -> None:
    some = rows()
    next(row for row in some if row["measure"] == "encoder")["accuracy"] = 0.9
    missed = [claim.what for claim in estimators.claims(some) if not claim.met]
    assert missed == ["digits, encoder='mlp': accuracy, 10 splits, minimum"]


def test_report_shows_the_lowest_and_highest_run() -> None:
    some = [{"measure": "accuracy", "data": "iris", "accuracy": a} for a in (0.95, 0.97)]
    table = {what: cells for what, *cells in map(estimators._cells, estimators.claims(some))}
    assert table["iris: accuracy, 5 folds"] == ["≥ 0.95", "0.96", "0.95", "0.97", "yes"]
    assert table["wine: accuracy, 5 folds"] == ["≥ 0.97", "", "", "", "not run"]


@pytest.mark.parametrize("measure", Measure)
def test_every_task_serves_a_claim_and_every_claim_has_a_task(measure: Measure) -> None:
    keys = [str(task.key) for make in estimators.TASKS.values() for task in make()]
    assert len(set(keys)) == len(keys)
    assert all(claim.values for claim in estimators.claims(rows()))
    for data in {row["data"] for row in rows() if row["measure"] == measure.value}:
        others = [row for row in rows() if (row["measure"], row["data"]) != (measure.value, data)]
        assert not all(claim.values for claim in estimators.claims(others))


def test_two_branches_have_nothing_between_them() -> None:
    for problem in estimators.PROBLEMS.values():
        X, y = problem(np.random.default_rng(0), 500)
        assert X.shape == (500, 1)
        assert y.shape == (500,)
    assert (np.abs(y) > 0.1).all()
