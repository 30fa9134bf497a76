"""What the KDM adds: pairs, signs, verdicts, figures."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kdmlab import adds
from kdmlab.adds import comparisons
from kdmlab.adds.pairs import Gain, gains
from kdmlab.cli import app


def split(method: str, number: int, nll: float, crps: float = 1.0) -> dict[str, Any]:
    line = {
        "dataset": "concrete",
        "method": method,
        "split": number,
        "nll": nll,
        "crps": crps,
        "settings": {},
    }
    return {"format": 1, **line}


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_losses_are_paired_by_split_and_turned_around() -> None:
    ours = [split("kdm-without-memory", n, 2.0 + n) for n in range(3)]
    theirs = [split("committee-dense", n, 2.5 + n) for n in (0, 2, 3)]
    measured = gains(comparisons.REGRESSION, [*ours, *theirs])
    assert [(gain.heads, gain.measure) for gain in measured] == [
        ("against a dense head", "NLL"),
        ("against a dense head", "CRPS"),
    ]
    # Split 1 has no partner and split 3 no KDM; a lower NLL is a gain.
    assert measured[0].values == [0.5, 0.5]


def test_shares_keep_their_sign_and_bags_their_cell() -> None:
    def trial(method: str, size: int, auc: float) -> dict[str, Any]:
        line = {"dataset": "magic", "interval": [0, 0.5], "bag_size": size, "trial": 0, "method": method}
        return {**line, "auc": auc}

    rows = [trial("kdm-encoder", size, 0.9) for size in (8, 32)]
    rows += [trial("network-likelihood", 8, 0.8), trial("network-likelihood", 32, 0.95)]
    measured = gains(comparisons.PROPORTIONS, rows)
    assert len(measured[-1].values) == 2
    assert {gain.subject: gain.values[0] for gain in measured} == {
        "MAGIC, bags of 8": pytest.approx(0.1),
        "MAGIC, bags of 32": pytest.approx(-0.05),
        "all cells": pytest.approx(0.1),
    }


def test_novelty_is_compared_with_the_best_rival_of_either_model() -> None:
    def line(model: str, **areas: float) -> dict[str, Any]:
        scores = {f"{name.replace('_', ' ')}, all layers": {"noise": area} for name, area in areas.items()}
        return {"dataset": "cifar10", "model": model, "seed": 0, "novelty_auroc": scores}

    kdm = line("kdm-alone", KDM=0.9, Mahalanobis=0.95, nearest_neighbour=0.7)
    dense = line("dense-alone", energy=0.6, KDM=0.99)
    measured = {gain.heads: gain.values[0] for gain in gains(comparisons.HEADS, [kdm, dense])}
    assert measured == {
        "against the dense head's scores": pytest.approx(0.3),
        "against distances": pytest.approx(-0.05),
    }


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([0.1, 0.11, 0.12], "KDM"),
        ([-0.1, -0.11, -0.12], "other"),
        ([0.1, -0.1, 0.05], "neither"),
        ([1.0], "one pair"),
    ],
)
def test_a_head_is_better_where_the_interval_says_so(values: list[float], verdict: str) -> None:
    assert Gain("data", "heads", "NLL", values).cells()[-1] == verdict


def test_the_command_writes_what_lines_there_are(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [split("kdm-without-memory", n, 2.0 + n % 2) for n in range(4)]
    # A head whose settings changed: the newest lines count.
    old = [split("committee-dense", 0, 9.0) | {"settings": {"members": 1}}]
    rows += [*old, *(split("committee-dense", n, 2.1 + n % 2) for n in range(4))]
    write(tmp_path / "uci-regression.jsonl", rows)
    result = CliRunner().invoke(app, ["reproduce", "adds", "--output", str(tmp_path)])
    assert result.exit_code == 0, result.output
    text = (tmp_path / "adds.md").read_text(encoding="utf-8")
    assert "| concrete | against a dense head | NLL | 4 | +0.1000 | +0.1000 to +0.1000 | KDM |" in text
    assert text.count("Not measured yet.") == 4
    assert (tmp_path / "adds-regression.png").stat().st_size > 5000
    assert [path.name for path in adds.summarize(tmp_path, figures=False).files] == ["adds.md"]
