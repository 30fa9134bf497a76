"""Weight decay and learning rates: which parameters have which."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers import close
from kdmkit.kernels import RBF, Composed
from kdmkit.nn import DensityLayer, JointLayer
from kdmkit.training import Rows, fit
from kdmkit.training.steps import decayed_parameters, make_optimizer
from training.problems import Objective, options


class Flat(nn.Module):
    """Parameters that no loss moves."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix, self.vector = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2))
        self.biases = nn.ParameterList([nn.Parameter(torch.ones(2, 1, 2))])
        self.layer = JointLayer(2, 2, 2)

    def forward(self, x):
        return 0 * (x[:, 0] + sum(p.sum() for p in self.parameters()))


def test_weight_decay_shrinks_matrices_alone():
    model = Flat()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    changes = {"weight_decay": 0.5, "schedule": "constant", "max_epochs": 1}
    fit(model, Rows((torch.ones(4, 1),)), options=options(**changes))
    close(model.matrix, torch.full((2, 2), 1 - 0.01 * 0.5))
    for name, value in model.state_dict().items():
        if name != "matrix":
            close(value, before[name])


def test_encoders_decay_and_layers_do_not():
    assert decayed_parameters(Objective()) == {"encoder.0.weight", "encoder.3.weight"}


def test_convolutions_decay_and_normalisations_do_not():
    encoder = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.LayerNorm(8), nn.Linear(8, 2)
    )
    assert decayed_parameters(encoder) == {"0.weight", "4.weight"}


def test_nothing_of_a_layer_decays_wherever_it_is():
    """Also what its kernel holds: an encoder in a composed kernel, a full metric."""
    metric = RBF(torch.ones(3), shear=torch.zeros(3, 3))
    composed = JointLayer(3, 2, 4, in_kernel=Composed(nn.Linear(3, 2), RBF(1.0)))
    modules = {"density": DensityLayer(3, 4, kernel=metric), "inner": nn.Sequential(composed)}
    assert decayed_parameters(nn.ModuleDict(modules)) == set()
    assert decayed_parameters(metric) == set()


class Slow(nn.Module):
    """Two parameters, one of which takes a tenth of the optimizer's steps."""

    def __init__(self) -> None:
        super().__init__()
        self.slow, self.fast = (nn.Parameter(torch.zeros(())) for _ in range(2))

    def step_factors(self) -> list[tuple[Tensor, Tensor]]:
        return [(self.slow.detach(), torch.tensor(0.1))]

    def forward(self, x: Tensor) -> Tensor:
        return (self.slow - 1).square() + (self.fast - 1).square() + 0 * x


@pytest.mark.parametrize("schedule", ["one-cycle", "cosine", "constant"])
def test_a_module_may_slow_parameters_down(schedule: Any):
    """The first step of Adam is as long as the learning rate."""
    module = Slow()
    changes = {"max_epochs": 1, "batch_size": 8, "learning_rate": 0.01, "schedule": schedule}
    history = fit(module, Rows((torch.zeros(8),)), options=options(**changes))
    assert module.fast.item() > 0
    assert module.slow.item() == pytest.approx(0.1 * module.fast.item(), rel=1e-4)
    assert history[0]["learning_rate"] <= 0.01


def test_betas_are_those_of_the_options():
    optimizer = make_optimizer(nn.Linear(2, 2), options(betas=(0.8, 0.95)))
    assert {group["betas"] for group in optimizer.param_groups} == {(0.8, 0.95)}
    with pytest.raises(ValueError, match=r"betas\[1\]"):
        options(betas=(0.9, 1.0))
