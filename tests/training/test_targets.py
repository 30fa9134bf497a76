"""Conditional likelihoods of targets beside the joint one."""

import pytest
import torch

import kdmkit as kdm
from kdmkit.training import Packing, Table, TargetObjective, fit_targets, tree_options


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


def test_the_loss_is_that_of_the_formula() -> None:
    layer, table = layer_and_table()
    packing = Packing(layer, table)
    objective = TargetObjective(layer, packing, [["y"]], weight=3.0).eval()
    found = objective(*packing.rows(table).tensors)
    tree, masks = layer.tree(), table.observed
    joint = tree.log_prob(observed=masks, **table.columns)
    others = {name: table.columns[name] for name in ("a", "b")}
    given = tree.infer(target="y", observed={"b": masks["b"]}, **others)
    conditional = torch.where(masks["y"], given.log_prob(table.columns["y"]), 0.0)
    torch.testing.assert_close(found, -joint - 3.0 * conditional, atol=1e-4, rtol=1e-4)


def test_training_lowers_the_loss_of_targets() -> None:
    layer, table = layer_and_table()
    packing = Packing(layer, table)
    objective = TargetObjective(layer, packing, [["y"]]).eval()
    before = float(objective(*packing.rows(table).tensors).mean().detach())
    options = tree_options(40, steps=15, learning_rate=0.03)
    assert len(fit_targets(layer, [["y"]], table, options=options)) == 15
    assert float(objective.eval()(*packing.rows(table).tensors).mean().detach()) < before


def test_targets_of_several_variables_are_predicted_together() -> None:
    layer, table = layer_and_table()
    packing = Packing(layer, table)
    rows = packing.rows(table).tensors
    found = TargetObjective(layer, packing, [["b", "y"], ["a"]], weight=2.0).eval()(*rows)
    tree, masks = layer.tree(), dict(table.observed)
    joint = tree.log_prob(observed=masks, **table.columns)
    a = tree.marginal("a").log_prob(table.columns["a"])
    rest = tree.marginal("b", "y").log_prob(
        observed=masks, **{name: table.columns[name] for name in ("b", "y")}
    )
    torch.testing.assert_close(found, -5 * joint + 2 * a + 2 * rest, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_half_of_the_rows_hide_no_cell_while_training() -> None:
    layer, table = layer_and_table()
    packing = Packing(layer, table)
    rows = [part.repeat(25, *[1] * (part.ndim - 1)) for part in packing.rows(table).tensors]
    objective = TargetObjective(layer, packing, [["y"]], masking=0.99)
    torch.manual_seed(0)
    hidden = objective.train()(*rows) != objective.eval()(*rows)
    # A row of the other half hides one of its two other cells, or both, with a probability of about 2/3.
    assert 0.25 < hidden.float().mean() < 0.4


def test_a_tree_of_the_target_alone() -> None:
    table = Table({"y": torch.arange(12) % 3})
    layer = kdm.nn.TreeLayer([kdm.nn.Variable("y", kdm.Levels(3), ())], 4).initialize(**table.columns)
    packing = Packing(layer, table)
    found = TargetObjective(layer, packing, [["y"]], weight=1.0).eval()(*packing.rows(table).tensors)
    torch.testing.assert_close(found, -2 * layer.log_prob(**table.columns), atol=1e-5, rtol=1e-5)


def test_weights_that_are_worse_on_validation_rows_are_dropped() -> None:
    layer, table = layer_and_table()
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    # The training rows have one level, the validation rows another: learning can only do harm.
    train, held = (
        Table({**table.columns, "y": torch.full((40,), level)}, table.observed) for level in (0, 1)
    )
    options = tree_options(40, steps=3, learning_rate=0.1)
    fit_targets(layer, [["y"]], train, held, options=options, weight=20.0)
    torch.testing.assert_close(dict(layer.state_dict()), before, rtol=0, atol=0)


def test_unknown_targets() -> None:
    layer, table = layer_and_table()
    with pytest.raises(ValueError, match="targets: expected variables among"):
        TargetObjective(layer, Packing(layer, table), [["z"]])
