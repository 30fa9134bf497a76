"""Float32 against float64 on the same numbers: random trees of up to 60 variables and 256 states."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import kdmkit as kdm
from distributions.random_inference import Draw

ROWS = 4


def variable(draw: Draw, k: int) -> tuple[kdm.Kernel, Tensor, Tensor]:
    """A kernel, components in float32, and values near some of them or up to 20 bandwidths away."""
    kind = draw.choose("rbf", "rbf", "cosine", "categorical")
    if kind == "cosine":
        n = draw.choose(2, 7, 40)
        return kdm.Cosine(), draw.weights(k, n).sqrt(), draw.integers(n, ROWS)
    if kind == "categorical":
        n = draw.choose(2, 7)
        return kdm.Categorical(n, draw.choose(0.001, 0.1)), draw.integers(n, k), draw.integers(n, ROWS)
    d, spread, offset = draw.choose(1, 1, 3), draw.power(-1, 2), draw.choose(0.0, draw.uniform(-100, 100))
    components = (spread * draw.normal(k, d) + offset).float()
    width = spread * draw.power(-2, 0.5)
    sigma = width * (0.5 * draw.normal(*draw.choose((), (d,), (k, 1)))).exp()
    far = width * draw.choose(0.3, 1.0, 10.0)
    values = components[draw.integers(k, ROWS)] + (far * draw.normal(ROWS, d)).float()
    return kdm.RBF(sigma.double()), components, values


def edge(draw: Draw, k_parent: int, k: int) -> Tensor:
    """Logarithms in float32: mild, sharp, or with zeros."""
    logits = draw.choose(1.0, 4.0, 30.0, 200.0) * draw.normal(k_parent, k)
    if draw.choose(True, False) and k > 1:
        zero = draw.integers(3, k_parent, k) > 0
        zero[torch.arange(k_parent), draw.integers(k, k_parent)] = False
        logits = logits.masked_fill(zero, -torch.inf)
    return torch.log_softmax(logits, -1).float()


def random_tree(seed: int, variables: int, states: int) -> tuple[kdm.TreeKDM, dict[str, Tensor]]:
    draw = Draw(seed)
    n = draw.count(variables)
    names = [f"v{i}" for i in range(n)]
    shape = draw.choose("random", "chain", "star")
    above = {"random": lambda i: int(draw.integers(i)), "chain": lambda i: i - 1, "star": lambda i: 0}[shape]
    parents = {name: None if i == 0 else names[above(i)] for i, name in enumerate(names)}
    sizes = {name: draw.count(states) for name in names}
    parts = {name: variable(draw, sizes[name]) for name in names}
    tree = kdm.TreeKDM(
        {name: part[1] for name, part in parts.items()},
        {name: part[0] for name, part in parts.items()},
        parents,
        draw.weights(sizes[names[0]]),
        log_edge_weights={n: edge(draw, sizes[up], sizes[n]) for n, up in parents.items() if up is not None},
    )
    return tree, {name: part[2] for name, part in parts.items()}


def answers(tree: Any, values: dict[str, Tensor], draw: Draw) -> dict[str, Tensor]:
    names = list(values)
    observed = {name: draw.integers(2, ROWS) == 1 for name in names}
    result = {"log_prob": tree.log_prob(**values), "observed": tree.log_prob(**values, observed=observed)}
    given = [name for name in names if draw.choose(True, False)][: len(names) - 1]
    if given:
        evidence = {name: values[name] for name in given}
        rest = [name for name in names if name not in given]
        rho = tree.infer(**evidence, target=rest[0])
        result |= {"log_evidence": rho.log_evidence, "one target": rho.log_prob(values[rest[0]])}
        if len(rest) > 1:
            several = tree.infer(**evidence).log_prob(**{name: values[name] for name in rest})
            result["several targets"] = several
    return result


def worst_error(seed: int, variables: int = 60, states: int = 256) -> float:
    """The largest error of one tree, in units of 1 + |log p|."""
    narrow, values = random_tree(seed, variables, states)
    wide = narrow.to(torch.float64)
    exact = {name: x.double() if x.is_floating_point() else x for name, x in values.items()}
    worst = 0.0
    with torch.no_grad():
        wanted = answers(wide, exact, Draw(seed))
        for name, actual in answers(narrow, values, Draw(seed)).items():
            assert actual.dtype == torch.float32
            assert not bool(actual.isnan().any()), (seed, name)
            other = wanted[name]
            assert torch.equal(torch.isneginf(actual), torch.isneginf(other)), (seed, name)
            error = (actual.double() - other).abs() / (1 + other.abs())
            worst = max(worst, float(torch.where(torch.isneginf(other), 0.0, error).max()))
    return worst


@pytest.mark.parametrize("seed", range(10))
def test_a_sample_of_random_trees(seed: int) -> None:
    assert worst_error(seed, variables=12, states=64) <= 1e-4


@pytest.mark.slow
def test_500_random_trees() -> None:
    assert max(worst_error(seed) for seed in range(500)) <= 1e-4
