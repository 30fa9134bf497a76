"""Calibration of a head: its bandwidths and a temperature."""

import pytest
import torch
from torch import Tensor

import kdmkit as kdm
from kdmkit.metrics import expected_calibration_error
from kdmkit.training import calibrate, fit_temperature
from kdmkit.training.calibration import label_log_probs


def rows(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Three classes that overlap."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (n,), generator=generator)
    centres = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    return centres[y] + torch.randn(n, 2, generator=generator), y


@pytest.fixture(scope="module")
def head() -> kdm.nn.JointLayer:
    """A head that knows its rows by heart."""
    return kdm.nn.JointLayer(2, 3, 300).initialize(*rows(300, 0), sigma=0.15)


def nll(log_probs: Tensor, y: Tensor) -> float:
    return float(torch.nn.functional.nll_loss(log_probs, y))


def test_wider_kernels_and_a_temperature_beat_a_temperature_alone(head: kdm.nn.JointLayer) -> None:
    before = {name: value.clone() for name, value in head.state_dict().items()}
    (x, y), (x_test, y_test) = rows(400, 1), rows(2000, 2)
    result = calibrate(head, x, y)
    scaled = label_log_probs(head, x_test) / fit_temperature(label_log_probs(head, x), y)
    assert result.width > 3
    assert nll(result.log_probs(x_test), y_test) < nll(scaled.log_softmax(-1), y_test) - 0.05
    # The posterior of the true model has .53 nats.
    assert nll(result.log_probs(x_test), y_test) < 0.57
    assert float(expected_calibration_error(result.log_probs(x_test).exp(), y_test)) < 0.05
    for name, value in head.state_dict().items():
        torch.testing.assert_close(value, before[name])


def test_what_is_returned_is_the_formula(head: kdm.nn.JointLayer) -> None:
    (x, y), (some, _) = rows(400, 1), rows(5, 3)
    result = calibrate(head, x, y)
    kernel = head.kernel("x").scaled(result.width)
    joint = kdm.JointKDM(dict(head.components), head.logits.softmax(-1), {"x": kernel, "y": head.kernel("y")})
    power = joint.infer(x=some).probs.double() ** (1 / float(result.temperature))
    wanted = power / power.sum(-1, keepdim=True)
    torch.testing.assert_close(result.log_probs(some).exp(), wanted.detach(), rtol=1e-4, atol=1e-6)


def test_labels_are_asked_for(head: kdm.nn.JointLayer) -> None:
    with pytest.raises(ValueError, match="head: expected a JointLayer with one output"):
        calibrate(head, rows(9, 0)[0])


def test_labels_of_probability_zero() -> None:
    """One-hot labels of components, and kernels so narrow that other components do not count."""
    z, y = torch.tensor([[0.0], [1.0], [0.1], [0.9]]), torch.tensor([0, 1, 0, 1])
    head = kdm.nn.JointLayer(1, 2, 2).initialize(z[:2], y[:2], sigma=0.01)
    log_probs = kdm.training.calibrate(head, z, y).log_probs(z)
    assert bool(log_probs.isfinite().all())


def test_it_is_a_module_that_exports(head: kdm.nn.JointLayer, unchecked: None) -> None:
    (x, y), (some, labels) = rows(400, 1), rows(5, 3)
    calibrated = calibrate(head, x, y)
    rho = calibrated(some)
    torch.testing.assert_close(rho.logits, calibrated.log_probs(some).float(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(rho.log_prob(labels), rho.logits.gather(1, labels[:, None]).squeeze(1))
    torch.testing.assert_close(rho.log_evidence, calibrated.head(some).log_evidence)
    rho.log_prob(labels).sum().backward()
    assert calibrated.head.logits.grad is not None

    class Probabilities(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calibrated = calibrated

        def forward(self, x: Tensor) -> Tensor:
            probs: Tensor = self.calibrated(x).probs
            return probs

    module = Probabilities().eval().requires_grad_(False)
    program = torch.export.export(module, (some,), dynamic_shapes={"x": {0: torch.export.Dim("batch")}})
    torch.testing.assert_close(program.module()(x), module(x), rtol=1e-5, atol=1e-6)
    copied = kdm.training.Calibrated(kdm.nn.JointLayer(2, 3, 300), 1.0, 1.0)
    copied.load_state_dict(calibrated.state_dict())
    torch.testing.assert_close(copied(some).probs, rho.probs)
