"""Stacked scores of a fit: the kernels are their meaning, values and gradients."""

import math

import pytest
import torch
from torch import Tensor

import kdmkit as kdm
from helpers import normal, seeded
from kdmkit.kernels.calculus.normal import anchored_log_mass, cell_log_mass, composed_log_mass
from kdmkit.kernels.forms import NormalForm
from kdmkit.nn import TreeLayer, Variable
from kdmkit.nn.tree_cells import TreeCells
from kdmkit.ops.messages import Indexed

K, N = 6, 80
NAN = math.nan


def rbf() -> kdm.RBF:
    return kdm.RBF(torch.full((K, 1), 0.7))


def changed(inner: kdm.Kernel) -> kdm.Kernel:
    return kdm.Transformed.quantile_normal(inner, torch.linspace(-4, 4, 400).sinh(), 9)


KERNELS = {
    "plain": rbf,
    "cut": lambda: kdm.Truncated(rbf(), low=-3.0),
    "changed": lambda: changed(rbf()),
    "bounded": lambda: changed(kdm.Truncated(rbf(), -4.0, 4.5)),
    "repeats": lambda: kdm.Inflated(changed(rbf()), [0.5]),
    "atoms": lambda: kdm.Inflated(changed(rbf()), [0.0, 1.5]),
    "holes": lambda: kdm.Inflated(rbf(), [0.5, NAN]),
    "cells": lambda: kdm.Rounded(rbf(), 0.25),
    "fine": lambda: kdm.Rounded(changed(rbf()), 1e-7),
    "mixed": lambda: kdm.Inflated(kdm.Rounded(changed(kdm.Truncated(rbf(), -4.0, 4.5)), 0.5), [0.0, NAN]),
    "rough": lambda: kdm.Inflated(kdm.Rounded(rbf(), 1.0), [-1.0, 0.0, 2.0]),
    "circle": lambda: kdm.Periodic(torch.full((K, 1), 5.0), 24.0),
    "yes": lambda: kdm.Levels(2, 0.01),
    "few": lambda: kdm.Levels(3, 0.01),
    "free": lambda: kdm.Levels(3),
    "names": lambda: kdm.Levels(40, 0.05),
    "place": lambda: kdm.RBF(torch.ones(K, 1)),
}
COARSE = ("cells", "mixed", "rough", "repeats")


def layer() -> TreeLayer:
    shapes = {"place": 2, "yes": (), "few": (), "free": (), "names": ()}
    variables = [Variable(name, kernel(), shapes.get(name, 1)) for name, kernel in KERNELS.items()]
    made = TreeLayer(variables, K, dtype=torch.float64, generator=seeded(0))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, dtype=torch.float64, generator=seeded(1)))
    return made


def column(name: str, i: int) -> Tensor:
    sizes = {"yes": 2, "few": 3, "free": 3, "names": 40}
    if name in sizes:
        return torch.randint(sizes[name], (N,), generator=seeded(i))
    if name == "place":
        return normal(N, 2, seed=i)
    x = 1.2 * normal(N, 1, seed=i)
    step = {"cells": 0.25, "mixed": 0.5, "rough": 1.0, "fine": 1e-7, "repeats": 0.5}.get(name)
    x = x if step is None else (x / step).round() * step
    atoms = {"atoms": [0.0, 1.5], "holes": [0.5, NAN], "mixed": [0.0, NAN]}.get(name, [])
    for j, atom in enumerate(atoms):
        x[j::7] = atom
    return x.clamp(-2.5, 4.0)


def columns() -> dict[str, Tensor]:
    return {name: column(name, 10 + i) for i, name in enumerate(KERNELS)}


def masks(share: float) -> dict[str, Tensor]:
    return {name: torch.rand(N, generator=seeded(40 + i)) < share for i, name in enumerate(KERNELS)}


def stacked_log_prob(tree: TreeLayer, data: dict[str, Tensor], seen: dict[str, Tensor]) -> Tensor:
    cells = TreeCells(tree, data, seen)
    codes, numbers = cells.encode(data, seen)
    mask = torch.stack(list(seen.values()), 1)
    scores = cells(tree, codes, numbers, mask, cells.levels.tables(tree.components))
    return tree.row_log_prob(scores, edges=tree.edge_probs())


def gradients(value: Tensor, tree: TreeLayer) -> list[Tensor]:
    return list(torch.autograd.grad(value.sum(), [p for p in tree.parameters() if p.requires_grad]))


@pytest.mark.parametrize("share", [1.1, 0.6])
def test_stacked_scores_are_those_of_the_kernels(share: float):
    tree, data, seen = layer(), columns(), masks(share)
    wanted = tree.tree().log_prob(**data, observed=seen)
    result = stacked_log_prob(tree, data, seen)
    torch.testing.assert_close(result, wanted, rtol=1e-10, atol=1e-10)
    for one, other in zip(gradients(result, tree), gradients(wanted, tree), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_single_precision_rounds_and_does_not_cancel():
    """Every score sums a few numbers of its size: the error is that many roundings, also of narrow cells."""
    tree, data, seen = layer(), columns(), masks(0.8)
    wanted = tree.tree().log_prob(**data, observed=seen).detach()
    single = tree.float()
    result = stacked_log_prob(single, data, seen)
    assert result.dtype == torch.float32
    error = 16 * torch.finfo(torch.float32).eps * len(KERNELS) * (1 + wanted.abs())
    assert bool(((result.detach() - wanted).abs() <= error).all())


def test_every_kernel_but_one_is_stacked():
    cells = TreeCells(layer(), columns(), {})
    assert cells.others == ["place"]


def test_columns_with_few_values_have_one_table():
    tree, data, seen = layer(), columns(), masks(1.1)
    cells = TreeCells(tree, data, seen)
    codes, numbers = cells.encode(data, seen)
    scores = cells(tree, codes, numbers, None, cells.levels.tables(tree.components)).by_name
    indexed = {name for name, score in scores.items() if isinstance(score, Indexed)}
    assert indexed == {*COARSE, "yes", "few", "free", "names"}


def test_rows_of_another_table_have_the_same_codes():
    """Validation rows: a part of what the cells were made from."""
    tree, data, seen = layer(), columns(), masks(0.7)
    cells = TreeCells(tree, data, seen)
    whole = cells.encode(data, seen)
    some = slice(20, 45)
    part = cells.encode(
        {name: value[some] for name, value in data.items()}, {name: mask[some] for name, mask in seen.items()}
    )
    for one, other in zip(part, whole, strict=True):
        torch.testing.assert_close(one, other[some])


def test_an_impossible_event_is_left_to_the_kernel():
    kernel = kdm.Truncated(rbf(), low=0.0)
    form = NormalForm.of(kernel)
    assert form is not None
    assert form.cells(torch.tensor([[1.0], [-1.0]])) is None
    tree = TreeLayer([Variable("x", kernel, 1)], K, generator=seeded(0))
    assert TreeCells(tree, {"x": torch.tensor([[1.0], [-1.0]])}, {}).others == ["x"]


@pytest.mark.parametrize("kernel", [kdm.RBF(1.0), kdm.Tricube(torch.ones(K, 1)), kdm.Levels(3)])
def test_other_kernels_have_no_normal_form(kernel: kdm.Kernel):
    assert NormalForm.of(kernel) is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_masses_of_cells(dtype: torch.dtype):
    """The masses of intervals from narrow to wide, near and far, and their gradients."""
    middle, log_width = 3 * normal(200, 1, seed=1), -6 + 7 * torch.rand(200, 1, generator=seeded(2)).double()
    width = 10**log_width
    centre = (2 * normal(9, seed=3)).requires_grad_()
    scale = (10 ** (-1 + 1.5 * torch.rand(9, generator=seeded(4)).double())).requires_grad_()
    wanted = anchored_log_mass(middle - width / 2, middle + width / 2, centre, centre, scale)
    parts = [part.detach().to(dtype) for part in (middle, width, centre, scale)]
    leaves = [part.requires_grad_() for part in parts[2:]]
    result = cell_log_mass(*parts[:2], *leaves)
    # The middle is rounded, and the slope of the log mass is at most its distance in standard deviations.
    # The expected values lose digits of narrow widths, as differences of their ends.
    eps, unit = torch.finfo(dtype).eps, (middle - centre).abs() / scale
    bound = 8 * eps * (1 + wanted.abs() + unit * (1 + middle.abs() / scale))
    bound = bound + 8 * torch.finfo(torch.float64).eps * (1 + middle.abs()) / width
    assert bool(((result.double() - wanted).abs() <= bound).all())
    slopes = torch.autograd.grad(result.sum(), leaves)
    for one, other in zip(slopes, torch.autograd.grad(wanted.sum(), (centre, scale)), strict=True):
        tolerance = 1e-9 if dtype == torch.float64 else 1e-4
        assert float((one.double() - other).norm() / other.norm()) < tolerance


def test_masses_of_cells_where_nothing_may_be_chosen_by_values():
    middle, width = normal(50, 1, seed=1), torch.rand(50, 1, generator=seeded(2)).double()
    centre, scale = normal(7, seed=3), torch.rand(7, generator=seeded(4)).double() + 0.1
    wanted = composed_log_mass(middle - width / 2, middle + width / 2, centre, centre, scale)
    result = torch.func.vmap(lambda c, s: cell_log_mass(middle, width, c, s))(centre, scale)
    torch.testing.assert_close(result.squeeze(-1).mT, wanted, rtol=1e-10, atol=1e-10)
