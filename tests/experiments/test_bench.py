"""The benchmark's parts at sizes that take no time: peers agree, records are whole, the table reads."""

import math
from pathlib import Path

import pytest
import torch

from kdmkit.experiments.bench import peers
from kdmkit.experiments.bench.cases import Case
from kdmkit.experiments.bench.measure import extra_memory, worst_error
from kdmkit.experiments.bench.peers import Problem
from kdmkit.experiments.bench.report import plot_growth, table
from kdmkit.experiments.bench.run import hardware, measure

CPU = torch.device("cpu")


def test_ways_to_attend_agree() -> None:
    p = Problem.random(20, 30, 5, 4, CPU)
    truth = peers.plain_attend(p.double())
    for attend in (peers.kdmkit_attend, peers.plain_attend, peers.sdpa_attend, peers.materialised_attend):
        assert worst_error(attend(p), truth) < 1e-5


def test_heads_have_the_same_loss_and_gradient() -> None:
    p = Problem.random(20, 30, 5, 4, CPU)
    heads = [peers.KdmkitHead(p), peers.PlainHead(p), peers.MaterialisedHead(p)]
    losses = [peers.training_step(head, p)() for head in heads]
    assert torch.stack(losses).std() < 1e-5
    ours = heads[0].layer.components["x"].grad
    assert torch.allclose(ours, heads[1].c.grad, atol=1e-6)
    assert torch.allclose(ours, heads[2].c.grad, atol=1e-6)


def test_densities_agree() -> None:
    p = Case("density", 20, 50, 3, 1, CPU).problem()
    truth = peers.kdmkit_density(p.double())
    assert worst_error(peers.sklearn_density(p)(), truth) < 1e-4
    assert worst_error(peers.mixture_density(p), truth) < 1e-5


def test_records_and_table(tmp_path: Path) -> None:
    records = measure(Case("attend", 8, 16, 4, 3, CPU), 0.01)
    assert [record["peer"] for record in records] == ["kdmkit", "plain torch", "torch SDPA", "materialised"]
    assert all(record["error"] < 1e-5 and record["median"] > 0 for record in records)
    text = table(records, hardware("cpu"))
    assert "## attend 8 × 16, d=4, 3 values" in text
    assert text.count("\n| ") == 5
    plot_growth(records, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").stat().st_size > 0


def test_memory_is_what_a_call_takes() -> None:
    megabytes = extra_memory(lambda: torch.ones(64, 1 << 20).sum(), CPU) / 2**20
    assert 200 < megabytes < 400


def test_a_result_that_is_not_a_number_has_infinite_error() -> None:
    assert worst_error(torch.tensor([math.nan]), torch.tensor([1.0])) == math.inf


@pytest.mark.parametrize("kind", ["training step", "attend, forward and backward"])
def test_every_kind_runs(kind: str) -> None:
    case = Case(kind, 4, 6, 3, 2, CPU)
    calls = {name: call for name, call in case.calls(case.problem()).items() if "compile" not in name}
    assert len(calls) >= 2
    assert all(bool(torch.isfinite(call()).all()) for call in calls.values())
