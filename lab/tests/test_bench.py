"""The benchmark's parts at sizes that take no time: peers agree, records are whole, the table reads."""

import functools
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kdmkit import KDMRegressor
from kdmlab.bench import peers, whole_fits
from kdmlab.bench.cases import Case
from kdmlab.bench.fitting import EpochCase
from kdmlab.bench.history import compare, history_of, keep
from kdmlab.bench.measure import extra_memory, worst_error
from kdmlab.bench.peers import Inputs
from kdmlab.bench.run import run, summarize, tasks
from kdmlab.bench.whole_fits import FitCase, PredictCase, fit_cases
from kdmlab.common import read_rows, run_tasks
from kdmlab.common.lines import append_row

CPU = torch.device("cpu")


def test_ways_to_attend_agree() -> None:
    p = Inputs.random(20, 30, 5, 4, CPU)
    truth = peers.plain_attend(p.double())
    for attend in (peers.kdmkit_attend, peers.plain_attend, peers.sdpa_attend, peers.materialised_attend):
        assert worst_error(attend(p), truth) < 1e-5


def test_ways_to_class_probabilities_agree() -> None:
    case = Case("class probabilities", 20, 30, 5, 4, CPU)
    results = {name: case.measure(name, 0.0) for name in case.peers()}
    assert list(results) == ["kdmkit", "kdmkit, not prepared", "kdmkit, the reduction alone"]
    assert all(result["error"] < 1e-5 for result in results.values())


def test_heads_have_the_same_loss_and_gradient() -> None:
    p = Inputs.random(20, 30, 5, 4, CPU)
    heads = [peers.KdmkitHead(p), peers.PlainHead(p), peers.MaterialisedHead(p)]
    losses = [peers.training_step(head, p)() for head in heads]
    assert torch.stack(losses).std() < 1e-5
    ours = heads[0].layer.components["x"].grad
    assert torch.allclose(ours, heads[1].c.grad, atol=1e-6)
    assert torch.allclose(ours, heads[2].c.grad, atol=1e-6)


def test_densities_agree() -> None:
    p = Case("density", 20, 50, 3, 1, CPU).inputs()
    truth = peers.kdmkit_density(p.double())
    assert worst_error(peers.sklearn_density(p)(), truth) < 1e-4
    assert worst_error(peers.mixture_density(p), truth) < 1e-5
    for name, peer in Case("pruned density", 20, 50, 3, 1, CPU).peers().items():
        assert worst_error(peer(p)(), truth) < (1e-3 if "rtol" in name else 1e-5)


def test_lines_and_table(tmp_path: Path) -> None:
    path = tmp_path / "bench-cpu.jsonl"
    cases = [Case("attend", 8, 16, 4, 3, CPU), Case("attend", 8, 32, 4, 3, CPU)]
    run_tasks(tasks(cases[:1], 0.01) + tasks(cases, 0.01, growth=True), path, verbose=False)
    rows = read_rows(path)
    names = ["kdmkit", "plain torch", "torch SDPA", "materialised"]
    assert [(row["peer"], row["growth"]) for row in rows] == [
        (name, growth) for growth in (False, True, True) for name in names
    ]
    assert all(row["error"] < 1e-5 and row["median"] > 0 and row["versions"] for row in rows)
    written = summarize(tmp_path, "cpu")
    text = (tmp_path / "bench-cpu.md").read_text(encoding="utf-8")
    assert "## attend 8 × 16, d=4, 3 values" in text
    assert text.count("\n| ") == 5
    assert [file.name for file in written.files] == ["bench-cpu.jsonl", "bench-cpu.md", "bench-cpu.png"]
    assert (tmp_path / "bench-cpu.png").stat().st_size > 0


@pytest.mark.parametrize("peer", ["kdmkit", "materialised"])
def test_epochs_are_timed(peer: str) -> None:
    result = EpochCase(200, 20, components=16, repetitions=2).measure(peer, 0.0)
    assert result["repetitions"] == 2
    assert result["low"] <= result["median"] <= result["high"]


def test_fits_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole fits of all estimators that the table names."""
    case = FitCase("KDMRegressor()", CPU, 40)
    few = functools.partial(KDMRegressor, max_epochs=1, n_members=3, device="cpu")
    monkeypatch.setattr(FitCase, "peers", lambda self: {"kdmkit": few})
    result = case.measure("kdmkit", 0.0)
    assert result["repetitions"] == 3
    assert 0 < result["low"] <= result["median"] <= result["high"]
    assert [case.key["case"] for case in fit_cases(CPU)] == [
        "KDMClassifier(n_components=256).fit, 50,000 × 30",
        "KDMClassifier().fit, digits",
        "KDMRegressor().fit, 8,192 × 8",
    ]


def test_predictions_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    case = PredictCase(50, fitted=40, features=4)
    monkeypatch.setattr(
        whole_fits, "KDMRegressor", functools.partial(KDMRegressor, max_epochs=1, n_members=3)
    )
    assert case.key["case"] == "KDMRegressor().predict, 50 × 4, fitted to 40"
    for peer in case.peers():
        result = case.measure(peer, 0.0)
        assert 0 < result["low"] <= result["median"] <= result["high"]
    X, y = whole_fits.made_regression(40, 4)
    wide, narrow = (model().predict(X) for model in list(case.peers().values())[1:3])
    plain = case._regressor(memory=False).predict(X)
    # A narrow memory repeats half of the residuals of its rows, beside a background of weight 1.
    np.testing.assert_allclose(narrow, (plain + y) / 2, rtol=1e-3, atol=1e-3)
    assert not np.allclose(wide, narrow)


def test_memory_is_what_a_call_takes() -> None:
    megabytes = extra_memory(lambda: torch.ones(64, 1 << 20).sum(), CPU) / 2**20
    assert 200 < megabytes < 400


def test_a_result_that_is_not_a_number_has_infinite_error() -> None:
    assert worst_error(torch.tensor([math.nan]), torch.tensor([1.0])) == math.inf


@pytest.mark.parametrize("kind", ["training step", "attend, forward and backward"])
def test_every_kind_runs(kind: str) -> None:
    case = Case(kind, 4, 6, 3, 2, CPU)
    results = {name: peer for name, peer in case.peers().items() if "compile" not in name}
    assert len(results) >= 2
    assert all(bool(torch.isfinite(peer(case.inputs())()).all()) for peer in results.values())


def _line(case: str, median: float, *, threads: int = 2) -> dict[str, Any]:
    timing = {"median": median, "low": 0.95 * median, "high": 1.05 * median}
    where = {"machine": {"cpu": "one", "threads": threads}, "versions": {"kdmkit": "0"}}
    return {"format": 1, "case": case, "peer": "kdmkit", "growth": False, **timing, **where}


def test_history_and_comparison(tmp_path: Path) -> None:
    path = tmp_path / "bench-cpu.jsonl"
    for lines in ([("a", 9.0), ("b", 1.0)], [("a", 1.0), ("b", 1.0), ("c", 1.0)], [("a", 2.0), ("b", 1.1)]):
        keep(path, {"a", "b", "c", "other machine"})
        for case, median in lines:
            append_row(path, _line(case, median))
        append_row(path, _line("other machine", 1.0, threads=len(lines)))
    assert len(read_rows(history_of(path))) == 7
    keep(path, {"none"})
    assert len(read_rows(path)) == 3
    report = compare(tmp_path, "cpu")
    assert [(row[0], *row[2:]) for row in report.rows] == [
        ("a", "1,000", "2,000", "2.00", "slower"),
        ("b", "1,000", "1,100", "1.10", "same"),
        ("other machine", "1,000", "1,000", "1.00", "same"),
    ]
    assert "| a | kdmkit |" in (tmp_path / "bench-cpu-compared.md").read_text(encoding="utf-8")


def test_some_cases_are_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [Case("attend", 8, 16, 4, 3, CPU), Case("pruned density", 8, 16, 4, 3, CPU)]
    module = sys.modules["kdmlab.bench.run"]
    monkeypatch.setattr(module, "cpu_cases", lambda: cases)
    monkeypatch.setattr(module, "epoch_cases", list)
    monkeypatch.setattr(module, "fit_cases", lambda device: [])
    for text in ("attend", "density", "density"):
        run(tmp_path, device="cpu", seconds=0.01, growth=False, only=text, verbose=False)
    kinds = [row["kind"] for row in read_rows(tmp_path / "bench-cpu.jsonl")]
    assert kinds == ["attend"] * kinds.count("attend") + ["pruned density"] * 3
    earlier = read_rows(tmp_path / "bench-cpu-history.jsonl")
    assert [row["kind"] for row in earlier] == ["pruned density"] * 3
    with pytest.raises(ValueError, match="only: expected part of the name of a case"):
        run(tmp_path, device="cpu", only="nothing")
