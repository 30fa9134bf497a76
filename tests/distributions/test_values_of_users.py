"""What users give: bandwidths with gradients, soft labels; and what they get: probabilities."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import kdmkit as kdm
from helpers import seeded

BANDWIDTHS: dict[str, Callable[[Tensor], kdm.Kernel]] = {
    "rbf": kdm.RBF,
    "std": kdm.RBF.from_std,
    "shear": lambda s: kdm.RBF(s.expand(2), shear=torch.tensor([[0.0, 0.0], [0.3, 0.0]], dtype=s.dtype)),
    "shear alone": lambda s: kdm.RBF([1.0, 2.0], shear=torch.diag(s.view(1), -1)),
    "metric": lambda s: kdm.RBF.from_metric(torch.diag(s.expand(2))),
    "epanechnikov": kdm.Epanechnikov,
    "tricube": kdm.Tricube,
    "periodic": kdm.Periodic,
    "per component": lambda s: kdm.RBF(s.expand(3, 1)),
}


@pytest.mark.parametrize("name", BANDWIDTHS)
def test_gradients_reach_a_given_bandwidth(name: str) -> None:
    components = 0.3 * torch.randn(3, 2, generator=seeded(0), dtype=torch.float64)
    value = torch.tensor([[0.1, 0.2]], dtype=torch.float64)

    def log_prob(s: Tensor) -> Tensor:
        return kdm.KDM(components, None, BANDWIDTHS[name](s)).log_prob(value)

    s = torch.tensor(0.9, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(log_prob, s)
    with torch.no_grad():
        assert not log_prob(s).requires_grad
    torch.testing.assert_close(log_prob(s), log_prob(s.detach()))


def test_trainable_makes_a_parameter() -> None:
    s = torch.tensor(0.9, requires_grad=True)
    kernel = kdm.RBF(s, trainable=True)
    assert kernel.learned_bandwidth.raw.requires_grad
    assert kernel.sigma.item() == pytest.approx(0.9)


def test_gradients_that_would_be_lost(unchecked: None) -> None:
    s = torch.tensor(0.2, requires_grad=True)
    for make in (lambda: kdm.Levels(3, s), lambda: kdm.Categorical(3, s)):
        with pytest.raises(ValueError, match=r"smoothing: expected .*trainable=True"):
            make()
    with pytest.raises(ValueError, match=r"sigma_min: expected None .*trainable=True"):
        kdm.RBF(s, sigma_min=0.1)
    with pytest.raises(ValueError, match="kernel of 'x': expected one without gradients"):
        kdm.nn.DensityLayer(1, 4, kernel=kdm.RBF(s))


SOFT = torch.tensor([[0.7, 0.3, 0.0], [1.0, 0.0, 0.0]])


def cosine() -> kdm.KDM:
    return kdm.KDM(torch.tensor([[0.8, 0.6, 0.0], [0.0, 0.0, 1.0]]), None, kdm.Cosine())


def test_soft_labels_warn() -> None:
    with pytest.warns(UserWarning, match=r"p.sqrt\(\).*KDM.from_probs\(p\)") as caught:
        cosine().log_prob(SOFT)
    assert len(caught) == 1
    layer = kdm.nn.JointLayer(2, 3, 4)
    with pytest.warns(UserWarning, match="probabilities"):
        layer.reverse(SOFT)
    with pytest.warns(UserWarning, match="probabilities"):
        kdm.training.nll(layer(torch.zeros(2, 2)), SOFT)


@pytest.mark.parametrize(
    "value",
    [
        torch.eye(3),
        torch.tensor([0, 2]),
        SOFT.sqrt(),
        torch.tensor([[0.5, -0.5, 1.0]]),
        torch.tensor([[0.7, 0.3, 0.0], [0.7, 0.4, 0.0]]),
        torch.zeros(0, 3),
        2 * SOFT,
    ],
    ids=["one-hot", "labels", "amplitudes", "signs", "one row is none", "empty", "other sums"],
)
def test_other_values_do_not_warn(value: Tensor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cosine().log_prob(value)


def test_unchecked_values_do_not_warn() -> None:
    rho = kdm.KDM(torch.eye(3), None, kdm.Cosine(), validate_args=False)
    assert rho.log_prob(SOFT).shape == (2,)


@pytest.mark.parametrize("kernel", ["cosine", "levels", "categorical"])
def test_probabilities_sum_to_one(kernel: str) -> None:
    m, n = 500, 5
    generator = seeded(3)
    y = torch.randn(m, n, generator=generator)
    kernels = {
        "cosine": (kdm.Cosine(), y),
        "levels": (kdm.Levels(n), 30 * y),
        "categorical": (kdm.Categorical(n, 0.01), torch.randint(n, (m,), generator=generator)),
    }
    k, components = kernels[kernel]
    joint = kdm.JointKDM(
        {"x": torch.randn(m, 2, generator=generator), "y": components}, None, {"x": kdm.RBF(0.2), "y": k}
    )
    probs = joint.infer(x=torch.randn(2000, 2, generator=generator)).probs
    assert float(probs.max()) <= 1
    assert float((probs.double().sum(-1) - 1).abs().max()) <= torch.finfo(torch.float32).eps / 2
    labels = torch.randint(n, (2000,), generator=generator)
    assert 0 <= float(kdm.metrics.expected_calibration_error(probs, labels)) <= 1


def test_gradients_of_probabilities() -> None:
    log_weights = torch.randn(2, 4, generator=seeded(4), dtype=torch.float64, requires_grad=True)
    components = torch.randn(4, 3, generator=seeded(5), dtype=torch.float64, requires_grad=True)

    def probs(logits: Tensor, c: Tensor) -> Tensor:
        return kdm.KDM(c, None, kdm.Cosine(), log_weights=logits.log_softmax(-1)).probs

    assert torch.autograd.gradcheck(probs, (log_weights, components))
