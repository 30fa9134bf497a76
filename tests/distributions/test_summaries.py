"""Moments, class probabilities, purity and overlap."""

import pytest
import torch

import kdmkit as kdm
from helpers import CONTINUOUS, close, grid, normal, real, simplex, unit_variance


@pytest.mark.parametrize("family", CONTINUOUS)
def test_moments_equal_the_analytic_mixture(family):
    c, w = 3 * normal(6, 2, seed=0), simplex(6, seed=1)
    scale = real([0.7, 1.9])
    rho = kdm.KDM(c, w, CONTINUOUS[family](scale))
    mean = w @ c
    variance = w @ (c**2 + unit_variance(family) * scale**2) - mean**2
    close(rho.mean, mean)
    close(rho.variance, variance, rtol=1e-6)
    close(rho.stddev, variance.sqrt(), rtol=1e-6)


@pytest.mark.parametrize("family", CONTINUOUS)
def test_moments_equal_integrals_of_the_density(family):
    x, cell = grid(-9, 9, 4001)
    rho = kdm.KDM(normal(4, 1, seed=0), simplex(4, seed=1), CONTINUOUS[family](0.8))
    mass = rho.log_prob(x).exp() * cell
    mean = mass @ x
    close(rho.mean, mean, rtol=1e-5, atol=1e-6)
    close(rho.variance, mass @ (x - mean) ** 2, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_variance_survives_a_far_and_narrow_mixture(dtype):
    # All weight on components a million bandwidths from the centre of all components.
    c = torch.tensor([[-1e6], [1e6], [1e6 + 1]], dtype=dtype)
    w = torch.tensor([0.0, 0.7, 0.3], dtype=dtype)
    rho = kdm.KDM(c, w, kdm.RBF(1.0))
    assert rho.variance.item() == pytest.approx(0.5 + 0.21, rel=1e-3)


def test_class_probabilities_normalise_the_components():
    c, w = normal(5, 3, seed=0), simplex(5, seed=1)
    rho = kdm.KDM(c * real([[1e-3], [1.0], [5.0], [1e3], [-2.0]]), w, kdm.Cosine())
    unit = c / c.norm(dim=-1, keepdim=True)
    close(rho.probs, w @ unit**2)
    assert rho.probs.sum().item() == pytest.approx(1)


def _matrix(rho):
    unit = rho.components / rho.components.norm(dim=-1, keepdim=True)
    return torch.einsum("j,ja,jb->ab", rho.weights, unit, unit)


def test_purity_and_overlap_are_traces_of_density_matrices():
    rho = kdm.KDM(normal(6, 4, seed=0), simplex(6, seed=1), kdm.Cosine())
    sigma = kdm.KDM(normal(3, 4, seed=2), simplex(3, seed=3), kdm.Cosine())
    close(rho.purity(), (_matrix(rho) @ _matrix(rho)).trace())
    close(rho.overlap(sigma), (_matrix(rho) @ _matrix(sigma)).trace())
    close(rho.overlap(sigma), sigma.overlap(rho))
    assert 1 / 4 <= rho.purity() <= 1


def test_purity_is_one_for_pure_states_only():
    for kernel in (kdm.RBF(0.3), kdm.Epanechnikov(1.0), kdm.Tricube(1.0), kdm.Cosine()):
        x = normal(2, 3, seed=0)
        assert kdm.KDM.pure(x[0], kernel).purity().item() == pytest.approx(1)
        assert kdm.KDM.from_samples(x, kernel).purity().item() < 0.99
    codes = torch.tensor([0, 1, 1, 2])
    assert kdm.KDM.from_samples(codes, kdm.Categorical(3)).purity().item() == pytest.approx(6 / 16)


def test_orthogonal_states_do_not_overlap():
    rho, sigma = kdm.KDM.from_probs(torch.tensor([1.0, 0.0])), kdm.KDM.from_probs(torch.tensor([0.0, 1.0]))
    assert rho.overlap(sigma).item() == 0
    near = kdm.KDM.pure(torch.zeros(1), kdm.Epanechnikov(1.0))
    far = kdm.KDM.pure(torch.full((1,), 5.0), kdm.Epanechnikov(1.0))
    assert near.overlap(far).item() == 0


def test_one_bandwidth_per_component_has_no_purity():
    rho = kdm.KDM(torch.zeros(2, 1), None, kdm.RBF([[0.5], [1.0]]))
    with pytest.raises(ValueError, match="kernel: expected one bandwidth for all components"):
        rho.purity()
    with pytest.raises(ValueError, match="kernel: expected one bandwidth for all components"):
        kdm.KDM(torch.zeros(2, 1), None, kdm.RBF(0.5)).overlap(rho)


def test_a_million_components_pass_the_simplex_check_and_keep_their_digits():
    m = 1_000_000
    c, logits = torch.randn(m, 1, generator=torch.Generator().manual_seed(0)), torch.linspace(-3, 3, m)
    softmax = torch.softmax(logits, -1)
    rho = kdm.KDM(c, softmax, kdm.RBF(0.5))
    for weights in (None, torch.full((m,), 1 / m), torch.ones(m) / m):
        kdm.KDM(c, weights, kdm.RBF(0.5))
    kdm.KDM(c, None, kdm.RBF(0.5), log_weights=torch.log_softmax(logits, -1))
    exact = rho.to(torch.float64)
    x = torch.linspace(-3, 3, 5).unsqueeze(-1)
    close(rho.log_prob(x), exact.log_prob(x.double()).float(), rtol=1e-4, atol=1e-4)
    labels = kdm.KDM((logits > 0).long(), softmax, kdm.Categorical(2))
    wanted = torch.stack([softmax.double()[logits <= 0].sum(), softmax.double()[logits > 0].sum()])
    close(labels.probs, wanted.float(), rtol=0, atol=1e-5)
    close(rho.mean, exact.mean.float(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_logits_are_the_logarithms_of_probabilities(batch):
    w = simplex(*batch, 4, seed=1)
    labels = kdm.KDM(torch.tensor([0, 2, 2, 1]), w, kdm.Categorical(3))
    vectors = kdm.KDM(normal(4, 3, seed=0), w, kdm.Cosine())
    for rho in (labels, vectors):
        close(rho.logits, rho.probs.log(), rtol=1e-6, atol=1e-6)  # codes give float32
    with pytest.raises(TypeError, match="RBF"):
        _ = kdm.KDM(normal(4, 1, seed=0), w, kdm.RBF(1.0)).logits


def test_logits_do_not_underflow():
    """Where the probability of a label rounds to 0, its logarithm does not."""
    components = {"x": torch.tensor([[0.0], [30.0]]), "y": torch.eye(2)}
    rho = kdm.JointKDM(components, None, {"x": kdm.RBF(1.0), "y": kdm.Cosine()}).infer(x=torch.zeros(1, 1))
    assert rho.probs[0, 1] == 0
    close(rho.logits, torch.tensor([[0.0, -900.0]]))
