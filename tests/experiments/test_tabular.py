"""Claims, and what counts as meeting them."""

import numpy as np
import pytest

from kdmkit.experiments import tabular
from kdmkit.experiments.tabular import Claim, Measure


def row(measure: str, data: str, **result: float) -> dict:  # type: ignore[type-arg]
    return {"task": {"measure": measure, "data": data}, "result": result}


def test_claim_takes_the_mean_of_its_rows() -> None:
    claim = Claim("accuracy", Measure.accuracy, "iris", "accuracy", 0.9)
    rows = [row("accuracy", "iris", accuracy=a) for a in (0.85, 0.97)] + [
        row("accuracy", "wine", accuracy=0.1)
    ]
    assert claim.cells(rows) == ["accuracy", "≥ 0.9", "0.91", "0.85", "0.97", "yes"]


def test_claim_may_take_the_minimum() -> None:
    claim = Claim("worst", Measure.encoder, "digits", "accuracy", 0.9, summary="minimum")
    rows = [row("encoder", "digits", accuracy=a) for a in (0.85, 0.97)]
    assert claim.cells(rows)[2:] == ["0.85", "0.85", "0.97", "no"]


@pytest.mark.parametrize(("value", "met"), [(0.86, False), (0.87, True), (0.93, True), (0.94, False)])
def test_claim_between_two_ends(value: float, met: bool) -> None:
    claim = Claim("coverage", Measure.intervals, "bimodal", "coverage", 0.87, 0.93)
    assert claim.target == "0.87 … 0.93"
    assert claim.met(value) is met


def test_claim_without_rows_is_not_met() -> None:
    assert tabular.CLAIMS[0].cells([])[-1] == "not run"


def test_every_claim_has_a_task() -> None:
    keys = [task.key for make in tabular.TASKS.values() for task in make()]
    assert len({str(key) for key in keys}) == len(keys)
    measured = {(key["measure"], key["data"]) for key in keys}
    assert {(claim.measure.value, claim.data) for claim in tabular.CLAIMS} == measured


def test_two_branches_have_nothing_between_them() -> None:
    for problem in tabular.PROBLEMS.values():
        X, y = problem(np.random.default_rng(0), 500)
        assert X.shape == (500, 1)
        assert y.shape == (500,)
    assert (np.abs(y) > 0.1).all()
