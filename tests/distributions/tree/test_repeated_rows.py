"""Many rows that repeat values: scored once, with the same answers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import kdmkit as kdm
from helpers import close, normal, seeded

N = 1500
K = 6


def tree() -> kdm.TreeKDM:
    kernels = {
        "level": kdm.Levels(5, 0.0),
        "whole": kdm.Rounded(kdm.RBF(torch.full((K, 1), 2.0, dtype=torch.float64)), step=1.0),
        "free": kdm.Truncated(kdm.RBF(torch.full((K, 1), 0.7, dtype=torch.float64)), -8.0, 8.0),
        "size": kdm.Inflated(kdm.RBF(torch.full((K, 1), 0.5, dtype=torch.float64)), [0.0]),
        "other": kdm.Levels(40, 0.01),
    }
    components = {
        "level": normal(K, 5, seed=1),
        "whole": 9 * normal(K, 1, seed=2),
        "free": normal(K, 1, seed=3),
        "size": normal(K, 3, seed=4),
        "other": normal(K, 40, seed=5),
    }
    parents = {"level": None, "whole": "level", "free": "whole", "size": "level", "other": "whole"}
    edges = {name: normal(K, K, seed=10 + i).softmax(-1) for i, name in enumerate(parents) if i}
    return kdm.TreeKDM(components, kernels, parents, normal(K, seed=9).softmax(-1), edges)


def rows() -> dict[str, Tensor]:
    generator = seeded(7)
    free = normal(N, 1, seed=6)
    free[::100] = 9.0  # impossible
    size = normal(N, 1, seed=8)
    size[::3] = 0.0
    return {
        "level": torch.randint(5, (N,), generator=generator),
        "whole": torch.randint(-5, 20, (N, 1), generator=generator).double(),
        "free": free,
        "size": size,
        "other": torch.randint(40, (N,), generator=generator),
    }


def masks() -> dict[str, Tensor]:
    return {name: torch.rand(N, generator=seeded(20 + i)) < 0.8 for i, name in enumerate(rows())}


@pytest.mark.parametrize("observed", [None, masks()], ids=["all", "some"])
@pytest.mark.parametrize("size", [N, 1 << 22], ids=["blocks", "together"])
def test_log_prob(observed: dict[str, Tensor] | None, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With gradients every row is scored by itself."""
    plain = tree().log_prob(observed=observed, **rows())
    monkeypatch.setattr("kdmkit.distributions.tree.sources._NUMBERS_OF_MANY", size)
    with torch.no_grad():
        fast = tree().log_prob(observed=observed, **rows())
    close(fast, plain, rtol=1e-12, atol=1e-12)
    assert bool(torch.isneginf(fast[::100]).any())
    few = tree().log_prob(
        observed=None if observed is None else {n: m[:50] for n, m in observed.items()},
        **{name: value[:50] for name, value in rows().items()},
    )
    close(fast[:50], few, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("target", ["level", "whole", "free", "other"])
@pytest.mark.parametrize("observed", [False, True])
def test_infer(target: str, observed: bool) -> None:
    given = {name: value for name, value in rows().items() if name != target}
    seen = {name: mask for name, mask in masks().items() if name != target} if observed else None
    plain = tree().infer(observed=seen, target=target, **given)
    weights, evidence = plain.log_weights, plain.log_evidence
    with torch.no_grad():
        fast = tree().infer(observed=seen, target=target, **given)
        close(fast.log_weights.exp(), weights.exp(), rtol=1e-11, atol=1e-13)
        close(fast.log_evidence, evidence, rtol=1e-12, atol=1e-12)
        at = tree().infer(observed=seen, target=target, **given).log_prob(rows()[target])
    close(at, plain.log_prob(rows()[target]), rtol=1e-11, atol=1e-12)


def test_repeated_values_are_scored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty-five whole numbers and forty levels in place of 1,500 rows."""
    scored = []
    whole = kdm.Rounded.term
    monkeypatch.setattr(kdm.Rounded, "term", lambda self, x, c: scored.append(len(x)) or whole(self, x, c))
    with torch.no_grad():
        tree().log_prob(**rows())
    assert scored == [25]
