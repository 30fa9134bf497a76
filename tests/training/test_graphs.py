"""Steps that a CUDA graph can hold: nothing waits for the device, and nothing is copied from the host.

Tensors without data (device `meta`) take the way of every device but the CPU, and refuse to be read.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

import kdmkit as kdm
from helpers import normal, seeded
from kdmkit.nn import TreeLayer, Variable
from kdmkit.training import FlatObjective, Packing, Table, TreeObjective
from kdmkit.training.targets import Targets

from .test_flat import columns as flat_columns
from .test_flat import started as started_joint

COPIES = {torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy, torch.Tensor.new_tensor}


class NoCopies(TorchFunctionMode):
    """Refuses functions that copy numbers of the host to a device."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        assert function not in COPIES, function
        return function(*args, **(kwargs or {}))


def without_data(module: torch.nn.Module) -> torch.nn.Module:
    return copy.deepcopy(module).to_empty(device="meta")


def check_step(losses: torch.nn.Module, *arguments: torch.Tensor) -> None:
    module = without_data(losses)
    inputs = [argument.to("meta") for argument in arguments]
    with NoCopies():
        module(*inputs).sum().backward()
    assert any(parameter.grad is not None for parameter in module.parameters())


def mixed_tree() -> tuple[TreeLayer, dict[str, torch.Tensor]]:
    """A tree over kernels of many kinds, and its rows."""
    n, k = 80, 6
    spread = normal(n, 1, seed=1)
    data = {
        "age": (40 + 10 * spread).round().abs(),
        "gain": torch.where(spread > 0.5, spread.abs() * 1000, torch.zeros(())),
        "share": torch.sigmoid(normal(n, 1, seed=2)),
        "angle": normal(n, 1, seed=3).remainder(6.0),
        "kind": torch.randint(3, (n,), generator=seeded(4)),
        "kind2": torch.randint(3, (n,), generator=seeded(5)),
    }
    width = torch.ones(k, 1)
    inner = kdm.Transformed.affine(kdm.RBF(width), 40.0, 10.0)
    rest = data["gain"][data["gain"] > 0]
    variables = [
        Variable("age", kdm.Inflated(kdm.Rounded(inner, 1.0), torch.tensor([40.0])), 1),
        Variable(
            "gain",
            kdm.Inflated(kdm.Transformed.quantile_normal(kdm.RBF(width), rest), torch.tensor([0.0])),
            1,
        ),
        Variable("share", kdm.Truncated(kdm.RBF(width), 0.0, 1.0), 1),
        Variable("angle", kdm.Periodic(torch.ones(k, 1), 6.0), 1),
        Variable("kind", kdm.Levels(3, 0.01), ()),
        Variable("kind2", kdm.Levels(3, 0.01), ()),
    ]
    layer = TreeLayer(variables, k, generator=seeded(6))
    return layer.initialize(**data, generator=seeded(7)), data


def test_a_step_of_a_tree():
    layer, data = mixed_tree()
    packing = Packing(layer, Table(data))
    rows = packing.rows(Table(data))
    made = TreeObjective(layer, packing, rows, n_steps=10)
    check_step(made.losses, *rows.tensors, torch.tensor(0.5, dtype=torch.float64))


@pytest.mark.parametrize("targets", [[("kind",)], [("age",)], [("kind", "kind2")]])
def test_a_step_for_targets(targets):
    layer, data = mixed_tree()
    packing = Packing(layer, Table(data))
    rows = packing.rows(Table(data))
    made = TreeObjective(layer, packing, rows, n_steps=10, targets=Targets(targets, 2.0))
    check_step(made.losses, *rows.tensors, torch.tensor(0.5, dtype=torch.float64))


def test_a_step_of_a_flat_joint():
    data = flat_columns()
    layer = started_joint(data)
    packing = Packing(layer, Table(data))
    made = FlatObjective(layer, packing, has_missing=False, masking=0.0)
    check_step(made.losses, *packing.rows(Table(data)).tensors[:2])


def test_copies_are_refused():
    with NoCopies(), pytest.raises(AssertionError):
        torch.ones(2).new_tensor(1.0)
