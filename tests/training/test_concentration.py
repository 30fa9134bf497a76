"""Concentrations of the edges of a tree."""

from __future__ import annotations

import pytest
import torch

import kdmkit as kdm
from kdmkit.training import Table, fit_tree, tree_options
from kdmkit.training.packing import packed_rows
from kdmkit.training.tree_fit import edge_concentrations
from kdmkit.training.tree_objective import TreeObjective

LEVELS = 6


def layer() -> kdm.nn.TreeLayer:
    kernel = kdm.Categorical(LEVELS, 0.1)
    variables = [kdm.nn.Variable(name, kernel, ()) for name in "abc"]
    return kdm.nn.TreeLayer(variables, 4, parents={"a": None, "b": "a", "c": "b"})


def drawn(concentration: float, rows: int = 40_000) -> dict[str, torch.Tensor]:
    """b given a by rows of a Dirichlet distribution; c on its own."""
    generator = torch.Generator().manual_seed(0)
    a, c = (torch.randint(LEVELS, (rows,), generator=generator) for _ in range(2))
    mean = torch.full((LEVELS, LEVELS), concentration / LEVELS)
    table = torch._sample_dirichlet(mean, generator)
    b = torch.multinomial(table[a], 1, generator=generator).squeeze(-1)
    return {"a": a, "b": b, "c": c}


@pytest.mark.parametrize("concentration", [1.0, 10.0, 100.0])
def test_the_concentration_that_rows_were_drawn_with_is_found(concentration: float) -> None:
    result = edge_concentrations(layer(), Table(drawn(concentration)))
    assert concentration / 2.5 < result["b"] < concentration * 2.5
    assert result["c"] > 1000  # independent of its parent


def test_missing_values_do_not_count() -> None:
    columns = drawn(1.0)
    spoiled = {**columns, "b": torch.where(torch.arange(40_000) % 3 == 0, 0, columns["b"])}
    seen = {"b": torch.arange(40_000) % 3 != 0}
    only = {name: value[seen["b"]] for name, value in columns.items()}
    assert edge_concentrations(layer(), Table(spoiled, seen)) == edge_concentrations(layer(), Table(only))
    nothing = {"b": torch.zeros(40_000, dtype=torch.bool)}
    assert edge_concentrations(layer(), Table(columns, nothing))["b"] == pytest.approx(10_000)


def test_weights_count_as_repeated_rows_of_the_effective_number() -> None:
    columns = drawn(3.0, 500)
    even = Table(columns, weights=torch.full((500,), 7.0))
    assert edge_concentrations(layer(), even) == edge_concentrations(layer(), Table(columns))
    half = torch.arange(500) < 250
    some = Table(columns, weights=half.float())
    first = Table({name: value[half] for name, value in columns.items()})
    assert edge_concentrations(layer(), some) == edge_concentrations(layer(), first)


def test_shrinkage_by_edge_is_that_of_each_edge() -> None:
    tree, table = layer(), Table(drawn(3.0, 200))
    packing, rows, _ = packed_rows(tree, table, None)

    def loss(shrinkage: float | dict[str, float]) -> torch.Tensor:
        objective = TreeObjective(tree, packing, rows, n_steps=10, shrinkage=shrinkage, masking=0.0)
        return objective(*rows.tensors).mean()

    none, both = loss(0.0), loss(2.0)
    torch.testing.assert_close(loss({"b": 2.0, "c": 2.0}), both)
    one, other = loss({"b": 2.0, "c": 0.0}), loss({"c": 2.0, "b": 0.0})
    torch.testing.assert_close(one + other - none, both)
    assert one > none


def test_shrinkage_needs_a_number_for_every_edge() -> None:
    table = Table(drawn(3.0, 20))
    options = tree_options(20, steps=1)
    with pytest.raises(ValueError, match=r"shrinkage: expected a number for each of \['b', 'c'\]"):
        fit_tree(layer(), table, options=options, shrinkage={"b": 1.0})
    with pytest.raises(ValueError, match=r"shrinkage\['c'\]: expected a finite number"):
        fit_tree(layer(), table, options=options, shrinkage={"b": 1.0, "c": -1.0})
