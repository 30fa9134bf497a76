"""Exponential moving averages of the weights."""

import math

import pytest
import torch
from torch import nn

from kdmkit.kernels import RBF, Categorical
from kdmkit.nn import JointLayer, Variable
from kdmkit.training import Rows, fit, joint_nll
from kdmkit.training.steps import MovingAverage
from training.problems import Objective, fitted, furthest, options, rows, same


class Recorded(nn.Module):
    """A parameter and a running statistic; keeps their values before every step."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self.register_buffer("total", torch.zeros(1, dtype=torch.float64))
        self.register_buffer("steps", torch.tensor(0))
        self.before: list[tuple[float, float]] = []

    def forward(self, x):
        if self.training:
            self.before.append((self.slope.item(), self.total.item()))
            self.total += x.mean()
            self.steps += 1
        return (x[:, 0] - self.slope).square()


ONES = Rows((torch.ones(16, 1, dtype=torch.float64),))


def _averages(values, horizon):
    average = values[0]
    for value in values[1:]:
        average += (value - average) / horizon
    return average


def _fitted(validation=None, **changes):
    model, last = Recorded(), []
    fit(
        model,
        ONES,
        validation,
        options=options(**{"max_epochs": 3, "batch_size": 4, "averaging": 0.25, **changes}),
        on_epoch=lambda m: last.append((m.slope.item(), m.total.item(), m.steps.item())),
    )
    return model, last


def test_the_average_follows_all_weights_and_statistics():
    """It starts from the first weights and takes in those after every step; 12 steps, a horizon of 3."""
    model, last = _fitted()
    assert len(model.before) == 12
    slopes = [slope for slope, _ in model.before] + [last[-1][0]]
    totals = [total for _, total in model.before] + [last[-1][1]]
    assert model.slope.item() == pytest.approx(_averages(slopes, 3.0), rel=1e-12)
    assert model.total.item() == pytest.approx(_averages(totals, 3.0), rel=1e-12)
    assert model.steps.item() == 12
    assert abs(model.slope.item() - last[-1][0]) > 1e-3


def test_a_horizon_of_less_than_a_step_is_no_average():
    model, last = _fitted(averaging=0.01)
    assert (model.slope.item(), model.total.item()) == last[-1][:2]


def test_training_is_the_same_with_an_average():
    """The average follows; steps do not see it."""
    result = {}
    for averaging in (None, 0.5):
        states = []
        model, history = fitted(
            objective=Objective(dropout=0.3),
            averaging=averaging,
            on_epoch=lambda m, states=states: states.append(m.layer.logits.detach().clone()),
        )
        result[averaging] = (torch.stack(states), [entry["loss"] for entry in history], model)
    (states, losses, plain), (others, again, averaged) = result[None], result[0.5]
    assert torch.equal(states, others)
    assert losses == again
    assert furthest(plain.state_dict(), averaged.state_dict()) > 1e-4


def test_the_average_is_validated_and_the_best_one_returned():
    """Validation is best at 0.05, which the weights pass on their way to 1."""
    seen, last = [], []

    class Passing(Recorded):
        def forward(self, x):
            losses = super().forward(x)
            if self.training:
                return losses
            seen.append(self.slope.item())
            return 0 * losses + (self.slope - 0.05).square()

    model = Passing()
    settings = options(max_epochs=12, batch_size=4, averaging=0.25, schedule="constant", patience=None)
    history = fit(model, ONES, ONES, options=settings, on_epoch=lambda m: last.append(m.slope.item()))
    losses = [entry["validation_loss"] for entry in history]
    assert losses == pytest.approx([(slope - 0.05) ** 2 for slope in seen])
    assert all(average < slope for average, slope in zip(seen, last, strict=True))
    best = losses.index(min(losses))
    assert 0 < best < 11
    assert model.slope.item() == seen[best]


def test_whole_numbers_are_copied():
    """3·0.9 + 3·0.1 is less than 3 in floating point, and 2 as a whole number."""
    variables = [Variable("x", RBF(1.0), 2), Variable("y", Categorical(5, 0.1), ())]
    layer = JointLayer.from_variables(variables, 6, inputs=["x"])
    layer.components["y"].copy_(torch.arange(6) % 5)
    average = MovingAverage(layer, 10.0)
    for _ in range(5):
        average.update_parameters(layer)
    assert torch.equal(average.module.components["y"], layer.components["y"])

    class Likelihood(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x, y):
            return joint_nll(self.layer.joint(), x=x, y=y)

    before = layer.components["y"].clone()
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    fit(Likelihood(), Rows((x, torch.arange(20) % 5)), options=options(averaging=0.5))
    assert torch.equal(layer.components["y"], before)


def test_infinite_constants_are_kept():
    """An open bound of a kernel, a smoothing of zero."""
    module = nn.Linear(2, 1)
    module.register_buffer("bound", torch.tensor([0.0, math.inf, -math.inf]))
    average = MovingAverage(module, 10.0)
    for _ in range(3):
        average.update_parameters(module)
    assert average.module.bound.tolist() == [0.0, math.inf, -math.inf]


def test_the_objective_is_what_the_average_is_put_into():
    """Parts of it that others hold change with it."""
    model = Objective()
    encoder = model.encoder
    fitted(objective=model, averaging=0.5)
    assert model.encoder is encoder
    assert furthest(encoder.state_dict(), Objective().encoder.state_dict()) > 1e-3
    assert all(p.requires_grad for p in model.parameters())
    assert not model.training
    assert same(model, fitted(averaging=0.5)[0])


def test_mixed_precision():
    model = Objective(dtype=torch.float32)
    x, y = rows().tensors
    fit(model, Rows((x.float(), y)), options=options(precision="bf16", averaging=0.5))
    assert {p.dtype for p in model.parameters()} == {torch.float32}
