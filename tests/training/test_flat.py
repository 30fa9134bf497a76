"""Fits of flat joint KDMs to tables with missing cells."""

import pytest
import torch

import kdmkit as kdm
from helpers import close, normal, seeded
from kdmkit.nn import JointLayer, Variable
from kdmkit.training import Table, tree_options
from kdmkit.training.flat import FlatObjective, fit_joint
from kdmkit.training.packing import Packing

VARIABLES = [Variable("x", kdm.RBF(1.0), 1), Variable("y", kdm.Levels(3, 0.01), ())]


def columns(n: int = 90, seed: int = 0) -> dict[str, torch.Tensor]:
    y = torch.randint(3, (n,), generator=seeded(seed))
    return {"x": 2.0 * y[:, None] + 0.3 * normal(n, 1, seed=seed + 1), "y": y}


def started(data: dict[str, torch.Tensor]) -> JointLayer:
    layer = JointLayer.from_variables(VARIABLES, 6, inputs=["x"], dtype=torch.float64, generator=seeded(0))
    return layer.initialize(**data, generator=seeded(1))


def test_missing_cells_are_integrated_out():
    data = columns()
    layer, seen = started(data), {"x": torch.rand(90, generator=seeded(3)) < 0.5}
    packing = Packing(layer, Table(data, seen))
    rows = packing.rows(Table({**data, "x": torch.where(seen["x"][:, None], data["x"], torch.nan)}, seen))
    made = FlatObjective(layer, packing, has_missing=True, masking=0.0)
    close(made(*rows.tensors), -layer.joint().log_prob(**data, observed=seen))


def test_a_fit_raises_the_likelihood():
    data, held = columns(), columns(seed=5)
    layer = started(data)
    before = float(layer.joint().log_prob(**held).mean().detach())
    options = tree_options(90, steps=20, batch_size=45, device="cpu")
    history = fit_joint(layer, Table(data), Table(held), options=options, masking=0.1)
    after = float(layer.joint().log_prob(**held).mean().detach())
    assert after > before
    assert min(entry["validation_loss"] for entry in history) == pytest.approx(-after)
