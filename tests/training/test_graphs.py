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
from kdmkit.estimators.classification.logits import Offsets
from kdmkit.estimators.common.clusters import Clusters
from kdmkit.estimators.common.cross_fit import CrossFitting, held_out
from kdmkit.estimators.common.member_losses import label_losses, target_errors
from kdmkit.estimators.density.maximum_likelihood import Likelihood, kernel_of
from kdmkit.estimators.regression.residuals import LeaveOneOut, layer_of_residuals
from kdmkit.nn import DensityLayer, JointLayer, MLPEnsemble, TreeLayer, Variable
from kdmkit.training import ConditionalObjective, Table, Targets
from kdmkit.training.objectives import DenseObjective
from kdmkit.training.packing import Packing
from kdmkit.training.tree_objective import TreeObjective

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


ROWS, LABELS = normal(40, 4, seed=1, dtype=torch.float32), torch.arange(40) % 3


def _clusters(outputs: int) -> tuple[Clusters, torch.Tensor]:
    r = normal(40, outputs, seed=2, dtype=torch.float32)
    return Clusters.of(ROWS, r, None, 8, 0), r


def _cross_fitting(outputs: int, loss: Any, y: torch.Tensor) -> tuple[torch.nn.Module, Any]:
    ensemble = MLPEnsemble([4, 8, outputs], n_members=5, generator=seeded(0))
    return CrossFitting(ensemble, loss), (ROWS, y, held_out(40, 5, seeded(0)))


def _offsets() -> tuple[torch.nn.Module, Any]:
    clusters, r = _clusters(3)
    layer = clusters.layer(kdm.RBF(torch.full((4,), 3.0), sigma_min=1.0))
    return Offsets(layer, n_rows=40, generative_weight=1.0), (ROWS, r, LABELS, *clusters.without_row())


def _leave_one_out(loss: str) -> tuple[torch.nn.Module, Any]:
    clusters, r = _clusters(2)
    member_of, x, weight = clusters.without_row()
    layer = layer_of_residuals(clusters, torch.ones(2), sigma=1.0, min_sigma=0.1)
    objective = LeaveOneOut(layer, n_rows=40, generative_weight=0.5, loss=loss)
    return objective, (ROWS, r, member_of, x, clusters.r_without, weight)


def _conditional(alpha: float, encoder: torch.nn.Module | None) -> tuple[torch.nn.Module, Any]:
    layer = JointLayer(4, 3, 6, in_kernel=kdm.RBF(torch.ones(4)), generator=seeded(0))
    return ConditionalObjective(encoder, layer, generative_weight=alpha, noise=0.1), (ROWS, LABELS)


def _dense() -> tuple[torch.nn.Module, Any]:
    linear = torch.nn.Linear
    return DenseObjective(linear(4, 2), linear(2, 3), noise=0.1, reconstruct=linear(2, 4)), (ROWS, LABELS)


OBJECTIVES: dict[str, Callable[[], tuple[torch.nn.Module, Any]]] = {
    "trend of labels": lambda: _cross_fitting(3, label_losses, LABELS),
    "trend of numbers": lambda: _cross_fitting(1, target_errors, ROWS[:, :1]),
    "offsets": _offsets,
    "residuals": lambda: _leave_one_out("nll"),
    "residuals, squared error": lambda: _leave_one_out("mse"),
    "density": lambda: (Likelihood(DensityLayer(4, 5, kernel=kernel_of("full", 4))), (ROWS,)),
    "labels given rows": lambda: _conditional(0.0, None),
    "labels and rows": lambda: _conditional(1.0, None),
    "behind an encoder": lambda: _conditional(0.5, torch.nn.Linear(4, 4)),
    "dense head": _dense,
}


@pytest.mark.parametrize("case", OBJECTIVES)
def test_a_step_of_an_estimator(case, monkeypatch):
    # There is no autocast for tensors without data.
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device_type: False)
    objective, arguments = OBJECTIVES[case]()
    check_step(objective, *arguments)


def test_averages_move_without_reading_the_count():
    """Answers on a device are those on a CPU."""
    ensembles = [_cross_fitting(1, target_errors, ROWS[:, :1])[0] for _ in range(2)]
    for step in range(20):
        for number, objective in enumerate(ensembles):
            with torch.no_grad():
                for parameter in objective.ensemble.parameters():
                    parameter.fill_(step**0.5)
            objective.move_average(on_device=number == 0)
    for one, other in zip(*(objective.averaged.parameters() for objective in ensembles), strict=True):
        assert torch.allclose(one, other, rtol=1e-5)


def test_copies_are_refused():
    with NoCopies(), pytest.raises(AssertionError):
        torch.ones(2).new_tensor(1.0)
