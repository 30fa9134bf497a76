"""A step of expectation maximisation after the fit of a tree."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import kdmkit as kdm
from kdmkit.training import Table, fit_tree, tree_options
from kdmkit.training.packing import packed_rows
from kdmkit.training.tree_fit import maximise_expectation
from kdmkit.training.tree_objective import TreeObjective


def rows(n: int = 400) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    a = torch.randint(3, (n,), generator=generator)
    return {
        "a": a,
        "b": (a + (torch.rand(n, generator=generator) < 0.1)) % 3,
        "c": (a == 1).long(),
        "x": a.unsqueeze(1) + 0.3 * torch.randn(n, 1, generator=generator),
    }


def layer(columns: dict[str, torch.Tensor], smoothing: float = 0.0) -> Any:
    kernels = [kdm.Levels(3, smoothing), kdm.Levels(3, smoothing), kdm.Levels(2, smoothing), kdm.RBF(0.5)]
    variables = [
        kdm.nn.Variable(name, kernel, columns[name].shape[1:])
        for name, kernel in zip(columns, kernels, strict=True)
    ]
    generator = torch.Generator().manual_seed(0)
    return kdm.nn.TreeLayer(variables, 5, generator=generator).initialize(**columns, generator=generator)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("gaps", [False, True])
def test_a_step_never_lowers_the_likelihood(weighted: bool, gaps: bool) -> None:
    """Without penalties and smoothing this is a theorem."""
    columns = rows()
    tree = layer(columns)
    observed = {"b": torch.arange(400) % 3 > 0} if gaps else {}
    weights = torch.rand(400, generator=torch.Generator().manual_seed(1)) + 0.1 if weighted else None
    packing, packed, _ = packed_rows(tree, Table(columns, observed, weights), None)
    objective = TreeObjective(tree, packing, packed, n_steps=1, shrinkage=0.0, smoothing=0.0).eval()
    each = torch.ones(400) if packed.weights is None else packed.weights

    @torch.no_grad()
    def loss() -> float:
        return float((objective(*packed.tensors) * each).sum())

    before = loss()
    for _ in range(3):
        maximise_expectation(objective, packed)
        after = loss()
        assert after < before - 1e-3
        before = after


def test_what_no_row_has_together_becomes_improbable() -> None:
    columns = rows()
    broken = {}
    for exact in (False, True):
        tree, options = layer(columns, smoothing=1e-4), tree_options(400, steps=30, learning_rate=0.2)
        fit_tree(tree, Table(columns), options=options, shrinkage=0.01, exact_counts=exact)
        with torch.no_grad():
            probs = tree.tree().infer(a=torch.arange(3), target="c").probs
        broken[exact] = float(probs[[0, 1, 2], [1, 0, 1]].max())
    assert broken[True] < 1e-3 < broken[False]


def test_steps_for_some_variables_leave_the_others_and_go_on() -> None:
    columns = rows()
    tree = layer(columns)
    packing, packed, _ = packed_rows(tree, Table(columns), None)
    objective = TreeObjective(tree, packing, packed, n_steps=1, shrinkage=0.0, smoothing=0.0).eval()
    maximise_expectation(objective, packed)
    before = {name: value.detach().clone() for name, value in tree.components.items()}
    edges = tree.edge_probs().detach().clone()

    @torch.no_grad()
    def loss() -> float:
        return float(objective(*packed.tensors).mean())

    first = loss()
    repeated = [name for name in list(tree.parents)[1:] if tree.kernel(name).discrete][:1]
    once = layer(columns)
    packing, packed, _ = packed_rows(once, Table(columns), None)
    again = TreeObjective(once, packing, packed, n_steps=1, shrinkage=0.0, smoothing=0.0).eval()
    maximise_expectation(again, packed, repeated)
    with torch.no_grad():
        assert float(again(*packed.tensors).mean()) < first - 1e-3
    for name, value in once.components.items():
        assert torch.equal(value, before[name]) == (name not in repeated)
    for child, edge, old in zip(list(once.parents)[1:], once.edge_probs(), edges, strict=True):
        touched = {child, once.parents[child]} & set(repeated)
        assert torch.equal(edge, old) == (not touched)
