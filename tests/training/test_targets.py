"""Conditional likelihoods of targets beside the joint one."""

from typing import Any

import pytest
import torch

import kdmkit as kdm
from kdmkit.training import Table, Targets, fit_tree, tree_options
from kdmkit.training.packing import Packing
from kdmkit.training.tree_objective import TreeObjective


def layer_and_table() -> tuple[kdm.nn.TreeLayer, Table]:
    generator = torch.Generator().manual_seed(0)
    variables = [
        kdm.nn.Variable("a", kdm.RBF(1.0), 1),
        kdm.nn.Variable("b", kdm.RBF(1.0), 1),
        kdm.nn.Variable("y", kdm.Levels(3), ()),
    ]
    a = torch.randn(40, 1, generator=generator)
    columns = {"a": a, "b": a + torch.randn(40, 1, generator=generator), "y": torch.arange(40) % 3}
    observed = {"b": torch.arange(40) % 4 > 0, "y": torch.arange(40) % 5 > 0}
    table = Table(columns, observed)
    layer = kdm.nn.TreeLayer(variables, 4, generator=generator)
    return layer.initialize(observed=observed, generator=generator, **columns), table


def objective_for(
    layer: kdm.nn.TreeLayer, table: Table, groups: list[list[str]], weight: float = 1.0, **settings: Any
) -> tuple[TreeObjective, tuple[torch.Tensor, ...]]:
    """The loss with targets, and the rows of the table."""
    packing = Packing(layer, table)
    rows = packing.rows(table)
    made = TreeObjective(layer, packing, rows, n_steps=10, targets=Targets(groups, weight), **settings)
    return made.eval(), rows.tensors


def test_the_loss_is_that_of_the_formula() -> None:
    layer, table = layer_and_table()
    objective, rows = objective_for(layer, table, [["y"]], 3.0)
    result = objective(*rows)
    tree, masks = layer.tree(), table.observed
    joint = tree.log_prob(observed=masks, **table.columns)
    others = {name: table.columns[name] for name in ("a", "b")}
    given = tree.infer(target="y", observed={"b": masks["b"]}, **others)
    conditional = torch.where(masks["y"], given.log_prob(table.columns["y"]), 0.0)
    torch.testing.assert_close(result, -joint - 3.0 * conditional, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_penalties_count_as_often_as_rows() -> None:
    layer, table = layer_and_table()
    settings = {"masking": 0.0, "fading": 0.0, "shrinkage": 2.0}
    objective, rows = objective_for(layer, table, [["y"]], 3.0, **settings)
    with_targets = objective.train()(*rows) - objective.eval()(*rows)
    objective, rows = objective_for(layer, table, [["y"]], 0.0, **settings)
    without = objective.train()(*rows) - objective.eval()(*rows)
    torch.testing.assert_close(with_targets, 4 * without, atol=1e-4, rtol=1e-4)


def test_training_lowers_the_loss_of_targets() -> None:
    layer, table = layer_and_table()
    objective, rows = objective_for(layer, table, [["y"]])
    before = float(objective(*rows).mean().detach())
    options = tree_options(40, steps=15, learning_rate=0.03)
    assert len(fit_tree(layer, table, options=options, targets=Targets([["y"]]))) == 15
    assert float(objective(*rows).mean().detach()) < before


def test_targets_of_several_variables_are_predicted_together() -> None:
    layer, table = layer_and_table()
    objective, rows = objective_for(layer, table, [["b", "y"], ["a"]], 2.0)
    result = objective(*rows)
    tree, masks = layer.tree(), dict(table.observed)
    joint = tree.log_prob(observed=masks, **table.columns)
    a = tree.marginal("a").log_prob(table.columns["a"])
    rest = tree.marginal("b", "y").log_prob(
        observed=masks, **{name: table.columns[name] for name in ("b", "y")}
    )
    torch.testing.assert_close(result, -5 * joint + 2 * a + 2 * rest, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_cells_of_targets_are_not_hidden() -> None:
    layer, table = layer_and_table()
    settings = {"masking": 0.99, "shrinkage": 0.0, "smoothing": 0.0}
    objective, rows = objective_for(layer, table, [["a"], ["b"], ["y"]], **settings)
    torch.testing.assert_close(objective.train()(*rows), objective.eval()(*rows))
    objective, rows = objective_for(layer, table, [["y"]], **settings)
    torch.manual_seed(0)
    hidden = objective.train()(*rows) != objective.eval()(*rows)
    assert hidden.float().mean() > 0.9


def test_a_tree_of_the_target_alone() -> None:
    table = Table({"y": torch.arange(12) % 3})
    layer = kdm.nn.TreeLayer([kdm.nn.Variable("y", kdm.Levels(3), ())], 4).initialize(**table.columns)
    objective, rows = objective_for(layer, table, [["y"]])
    expected = -2 * layer.log_prob(**table.columns)
    torch.testing.assert_close(objective(*rows), expected, atol=1e-5, rtol=1e-5)


def test_unknown_targets() -> None:
    layer, table = layer_and_table()
    with pytest.raises(ValueError, match="targets: expected variables among"):
        objective_for(layer, table, [["z"]])
