"""TreeLayer with latent nodes and shared parts, beside ChainLayer and sums over all states."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

import kdmkit as kdm
from helpers import close, normal, seeded
from kdmkit.nn import ChainLayer, TreeLayer, Variable
from kdmkit.training import Table, fit_tree, tree_options

STEPS, K = 4, 3
PARENTS = {
    "z0": None,
    **{f"z{t}": f"z{t - 1}" for t in range(1, STEPS)},
    **{f"x{t}": f"z{t}" for t in range(STEPS)},
}
SHARED: dict[str, Any] = {
    "shared_edges": {
        **{f"z{t}": "z1" for t in range(2, STEPS)},
        **{f"x{t}": "x0" for t in range(1, STEPS)},
    },
    "shared_variables": {f"x{t}": "x0" for t in range(1, STEPS)},
}


def markov() -> TreeLayer:
    """A hidden Markov model of four steps as a tree."""
    variables = [Variable(f"x{t}", kdm.RBF(0.7), 1) for t in range(STEPS)]
    layer = TreeLayer(variables, K, parents=PARENTS, **SHARED, dtype=torch.float64, generator=seeded(0))
    layer.initialize(**columns(30), generator=seeded(1))
    with torch.no_grad():
        layer.edge_logits.copy_(2 * normal(2, K, K, seed=2))
        layer.root_logits.copy_(normal(K, seed=3))
    return layer


def columns(n: int) -> dict[str, torch.Tensor]:
    return {f"x{t}": normal(n, 1, seed=10 + t) for t in range(STEPS)}


def by_enumeration(layer: TreeLayer, data: dict[str, torch.Tensor]) -> torch.Tensor:
    """p(x, z0, …, z3) of every row, `(rows, k, k, k, k)`: emissions are mixtures."""
    named = dict(zip(list(layer.parents)[1:], layer.edge_probs(), strict=True))
    emission = {name: _densities(layer, name, x) @ named[name].mT for name, x in data.items()}
    start = torch.softmax(layer.root_logits, -1)
    n = len(next(iter(data.values())))
    joint = torch.zeros(n, *[K] * STEPS, dtype=torch.float64)
    for states in itertools.product(range(K), repeat=STEPS):
        p = start[states[0]] * torch.ones(n, dtype=torch.float64)
        for t, z in enumerate(states):
            p = p * (emission[f"x{t}"][:, z] if f"x{t}" in emission else 1.0)
            p = p * (named[f"z{t}"][states[t - 1], z] if t else 1.0)
        joint[:, *states] = p
    return joint.detach()


def _densities(layer: TreeLayer, name: str, x: torch.Tensor) -> torch.Tensor:
    parts = layer.components[name].split(1)
    return torch.stack([kdm.KDM(c, None, layer.kernel(name)).log_prob(x).exp() for c in parts], -1)


def test_answers_are_those_of_enumeration() -> None:
    layer, data = markov(), columns(6)
    joint = by_enumeration(layer, data)
    close(layer.log_prob(**data), joint.flatten(1).sum(1).log())
    tree = layer.tree()
    posterior = joint / joint.flatten(1).sum(1).reshape(-1, *[1] * STEPS)
    for t in range(STEPS):
        others = [i + 1 for i in range(STEPS) if i != t]
        close(tree.node_probs(f"z{t}", **data), posterior.sum(others))
    some = {name: data[name] for name in ("x0", "x3")}
    joint = by_enumeration(layer, some)
    close(tree.node_probs("z1", **some), joint.sum((1, 3, 4)) / joint.sum((1, 2, 3, 4)).unsqueeze(1))
    seen = {"x1": torch.zeros(6, dtype=torch.bool), "x2": torch.zeros(6, dtype=torch.bool)}
    close(tree.node_probs("z1", **data, observed=seen), tree.node_probs("z1", **some))
    close(tree.node_probs("z0"), torch.softmax(layer.root_logits, -1))
    with pytest.raises(ValueError, match="node: expected"):
        tree.node_probs("y")


def test_a_tree_with_shared_parts_is_a_chain() -> None:
    """Emissions with one component for each state: the edge to a variable is the identity."""
    layer, data = markov(), columns(5)
    chain = ChainLayer([Variable("x", kdm.RBF(0.7), 1)], K, dtype=torch.float64, generator=seeded(0))
    chain.initialize(x=normal(20, 1, seed=1))
    with torch.no_grad():
        chain.components["x"].copy_(layer.components["x0"])
        chain.kernel("x").load_state_dict(layer.kernel("x0").state_dict())
        chain.start_logits.copy_(layer.root_logits)
        chain.transition_logits.copy_(layer.edge_logits[0])
        layer.edge_logits[1] = 200 * torch.eye(K)
    together = chain.log_prob(x=torch.stack([data[f"x{t}"] for t in range(STEPS)], 1))
    close(layer.log_prob(**data), together, rtol=1e-4, atol=1e-4)  # the floor of the table


def test_shared_parts_are_one_parameter() -> None:
    layer = markov()
    assert set(layer.latent_nodes) == {f"z{t}" for t in range(STEPS)}
    assert layer.edge_logits.shape == (2, K, K)
    assert {name for name, _ in layer.components.named_parameters()} == {"x0"}
    assert layer.components["x3"] is layer.components["x0"]
    assert layer.kernel("x3") is layer.kernel("x0")
    named = dict(zip(list(layer.parents)[1:], layer.edge_probs(), strict=True))
    assert torch.equal(named["z3"], named["z1"])
    assert torch.equal(named["x2"], named["x0"])
    assert not torch.equal(named["x0"], named["z1"])
    layer.log_prob(**columns(5)).sum().backward()
    apart = [value.clone().requires_grad_() for value in layer.edge_probs().detach().unbind(0)]
    layer_gradient = layer.edge_logits.grad
    assert layer_gradient is not None
    layer.tree(edges=torch.stack(apart)).log_prob(**columns(5)).sum().backward()
    probs = torch.softmax(layer.edge_logits.detach().requires_grad_(), -1)
    assert all(part.grad is not None for part in apart)
    named = dict(zip(list(layer.parents)[1:], apart, strict=True))
    total: Any = sum(named[f"z{t}"].grad for t in range(1, STEPS))
    weighted = probs[0].detach() * (total - (probs[0].detach() * total).sum(-1, keepdim=True))
    close(layer_gradient[0], weighted, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("unchecked")
def test_the_same_loop_trains_latent_trees(tmp_path: Path) -> None:
    """Rows of two clusters that no column shows alone: a latent class explains their dependence."""
    generator = seeded(4)
    hidden = torch.rand(400, generator=generator) < 0.5
    data = {
        name: torch.where(hidden, 1.5, -1.5).unsqueeze(-1) + torch.randn(400, 1, generator=generator)
        for name in "abc"
    }
    variables = [Variable(name, kdm.RBF(1.0), 1) for name in "abc"]
    parents = {"class": None, "a": "class", "b": "class", "c": "class"}
    layer = TreeLayer(variables, 2, parents=parents, generator=generator)
    layer.initialize(**data, generator=generator)
    before = float(layer.log_prob(**data).mean().detach())
    fit_tree(layer, Table(data), options=tree_options(400, steps=150, device="cpu", learning_rate=0.05))
    assert float(layer.log_prob(**data).mean().detach()) > before + 0.2
    posterior = layer.tree().node_probs("class", **data).argmax(-1) == 1
    share = float((posterior == hidden).double().mean())
    assert max(share, 1 - share) > 0.95
    kdm.save(layer, tmp_path / "layer")
    loaded: Any = kdm.load(tmp_path / "layer")
    assert loaded.latent_nodes == ("class",)
    close(loaded.log_prob(**data), layer.log_prob(**data))
    markov_layer = markov()
    kdm.save(markov_layer, tmp_path / "markov")
    again: Any = kdm.load(tmp_path / "markov")
    close(again.log_prob(**columns(3)), markov_layer.log_prob(**columns(3)))
    fit_tree(markov_layer, Table(columns(60)), options=tree_options(60, steps=10, device="cpu"))
    assert markov_layer.edge_logits.shape == (2, K, K)
    assert markov_layer.components["x3"] is markov_layer.components["x0"]


def test_bad_shares() -> None:
    variables = [Variable("a", kdm.RBF(1.0), 1), Variable("b", kdm.Levels(3, 0.1), ())]
    parents = {"a": None, "b": "a"}
    for options, message in (
        ({"shared_edges": {"b": "c"}}, "shared_edges: expected pairs"),
        ({"shared_edges": {"b": "b"}}, "shared_edges: expected pairs"),
        ({"shared_variables": {"b": "a"}}, "shared_variables: expected variables with equal kernels"),
        ({"parents": {"a": None}}, "parents: expected a parent"),
    ):
        with pytest.raises(ValueError, match=message):
            TreeLayer(variables, 2, **{"parents": parents, **options})
    with pytest.raises(ValueError, match="exact_counts: expected False"):
        fit_tree(markov(), Table(columns(20)), exact_counts=True)
