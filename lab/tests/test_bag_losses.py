"""Label proportions with defaults: bags, fits and the report."""

from pathlib import Path

import numpy as np
import pytest

from kdmlab import bag_losses
from kdmlab.bag_losses import ENCODER, KINDS, METHODS, NETWORK, PARTS, PLAIN


@pytest.mark.parametrize("kind", KINDS)
def test_bags_hold_every_row_at_most_once(kind: str) -> None:
    y = np.random.default_rng(0).integers(3, size=200)
    bags = bag_losses.draw_bags(y, kind, np.random.default_rng(1))
    assert bags.shape == (200 // 16, 16)
    assert len(np.unique(bags)) == bags.size
    # Proportions of random bags scatter as counts do, those of varied bags by more.
    spread = np.std([(y[bag] == 0).mean() for bag in bags])
    assert (spread > 0.2) == (kind == "varied")


def test_a_run_measures_every_method_and_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a set of scikit-learn, cut to 300 rows."""
    X, y = bag_losses.load("breast cancer")
    monkeypatch.setattr(bag_losses, "load", lambda name: (X[:300], y[:300]))
    monkeypatch.setattr(bag_losses, "SEEDS", (0,))
    monkeypatch.setattr(bag_losses, "PARTS", {"development": ("breast cancer",), "test": ()})
    report = bag_losses.run(tmp_path, verbose=False)
    assert [row[2] for row in report.rows] == list(KINDS)
    accuracies = np.array([row[4:] for row in report.rows], dtype=float)
    assert accuracies.shape == (2, len(METHODS))
    assert accuracies.min() > 0.8
    lines = (tmp_path / "bag-losses.jsonl").read_text()
    assert bag_losses.run(tmp_path, verbose=False).rows == report.rows
    assert (tmp_path / "bag-losses.jsonl").read_text() == lines


def test_claims_are_differences_from_the_network() -> None:
    data, where = PARTS["development"][0], {"accelerator": "none", "cpu": "x", "cores": 1, "threads": 1}
    accuracy = {PLAIN: 0.9, ENCODER: 0.75, NETWORK: 0.8}
    rows = [
        {
            "part": "development",
            "data": data,
            "kind": kind,
            "method": method,
            "seed": seed,
            "accuracy": accuracy[method],
            "machine": where,
            "versions": {},
            "seconds": 1.0,
            "finished": "2026-01-01T00:00:00+00:00",
        }
        for kind in KINDS
        for method in METHODS
        for seed in bag_losses.SEEDS
    ]
    claims = str(bag_losses.report(rows).notes[0])
    assert f"{PLAIN}, mean accuracy less the network's | ≥ 0 | 0.100 | yes" in claims
    assert f"{ENCODER}, least difference | ≥ -0.01 | -0.050 | no" in claims
