"""The closed forms against the definition: an integral, and averages over draws."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import integrate

import kdmkit as kdm
from helpers import CONTINUOUS, close, normal, real, seeded, simplex
from kdmkit.metrics import crps
from kdmkit.metrics.proper_scores import MixtureRows


def by_quadrature(rho, y):
    """∫ (F(t) − 1{t ≥ y})² dt, cut at y and wherever F may bend."""
    c = rho.components.flatten()
    reach = 12 * rho.kernel.scale(c).max().item()
    cuts = sorted({c.min().item() - reach, *c.tolist(), *(c - 1).tolist(), *(c + 1).tolist(), y})
    cuts.append(max(c.max().item() + reach, y))
    cuts[0] = min(cuts[0], y)

    def squared(t):
        return (rho.cdf(real([t])).item() - (t >= y)) ** 2

    pieces = pairwise(cuts)
    return math.fsum(integrate.quad(squared, a, b, epsabs=1e-13, epsrel=1e-12)[0] for a, b in pieces if b > a)


@pytest.mark.parametrize("family", CONTINUOUS)
@pytest.mark.parametrize("y", [-7.0, 0.1, 2.5])
def test_equals_the_integral(family, y):
    rho = kdm.KDM(normal(3, 1, seed=0), simplex(3, seed=1), CONTINUOUS[family](1.0))
    assert crps(rho, real([y])).item() == pytest.approx(by_quadrature(rho, y), rel=1e-9)


def test_equals_the_integral_with_a_bandwidth_per_component():
    rho = kdm.KDM(normal(3, 1, seed=0), simplex(3, seed=1), kdm.RBF(real([[0.1], [0.7], [2.0]])))
    assert crps(rho, real([0.4])).item() == pytest.approx(by_quadrature(rho, 0.4), rel=1e-9)


@pytest.mark.parametrize("family", CONTINUOUS)
def test_equals_averages_over_draws(family):
    rho = kdm.KDM(2 * normal(4, 1, seed=0), simplex(4, seed=1), CONTINUOUS[family](0.8))
    n, y = 400_000, 0.3
    x = rho.sample((2 * n,), generator=seeded(2)).flatten()
    terms = (x[:n] - y).abs() - 0.5 * (x[:n] - x[n:]).abs()
    error = (terms.std() / math.sqrt(n)).item()
    assert crps(rho, real([y])).item() == pytest.approx(terms.mean().item(), abs=5 * error)


def test_of_one_gaussian_has_a_known_form():
    # σ·(z(2Φ(z) − 1) + 2φ(z) − 1/√π), Gneiting et al. (2005).
    z = torch.linspace(-6, 6, 25, dtype=torch.float64)
    unit = torch.distributions.Normal(real(0.0), real(1.0))
    wanted = z * (2 * unit.cdf(z) - 1) + 2 * unit.log_prob(z).exp() - 1 / math.sqrt(math.pi)
    rho = kdm.KDM(real([[5.0]]), None, kdm.RBF.from_std(0.25))
    close(crps(rho, 5 + 0.25 * z.unsqueeze(-1)), 0.25 * wanted, rtol=1e-12)


@pytest.mark.parametrize("family", CONTINUOUS)
def test_of_a_narrow_kernel_is_that_of_an_ensemble(family):
    c, w, y = normal(6, 1, seed=0), simplex(6, seed=1), normal(9, 1, seed=2)
    rho = kdm.KDM(c, w, CONTINUOUS[family](1e-9))
    wanted = ((y - c.T).abs() * w).sum(-1) - 0.5 * (w @ (c - c.T).abs() @ w)
    close(crps(rho, y), wanted, rtol=0, atol=1e-8)


@pytest.mark.parametrize("family", CONTINUOUS)
def test_is_proper(family):
    """No other bandwidth or place scores better on the distribution's own draws."""
    rho = kdm.KDM(normal(4, 1, seed=0), None, CONTINUOUS[family](0.8))
    y = rho.sample((4_000,), generator=seeded(1))
    others = [kdm.KDM(rho.components + shift, None, CONTINUOUS[family](0.8)) for shift in (-0.3, 0.3)]
    others += [kdm.KDM(rho.components, None, CONTINUOUS[family](width)) for width in (0.2, 2.0)]
    best = crps(rho, y).mean()
    assert all(crps(other, y).mean() > best for other in others)


@pytest.mark.parametrize("family", CONTINUOUS)
def test_batches_equal_a_loop(family):
    c, w, kernel = normal(2, 1, 4, 1, seed=0), simplex(3, 4, seed=1), CONTINUOUS[family](0.7)
    y = normal(5, 2, 3, 1, seed=2)
    scores = crps(kdm.KDM(c, w, kernel), y)
    shared = crps(kdm.KDM(c[0, 0], w, kernel), y)
    assert scores.shape == shared.shape == (5, 2, 3)
    for i in range(2):
        for j in range(3):
            close(scores[:, i, j], crps(kdm.KDM(c[i, 0], w[j], kernel), y[:, i, j]))
            close(shared[:, i, j], crps(kdm.KDM(c[0, 0], w[j], kernel), y[:, i, j]))


def test_a_batch_dimension_of_one_broadcasts():
    c, w = normal(4, 1, seed=0), simplex(3, 1, 4, seed=1)
    y = normal(3, 5, 1, seed=2)
    scores = crps(kdm.KDM(c, w, kdm.RBF(0.7)), y)
    assert scores.shape == (3, 5)
    for i in range(3):
        close(scores[i], crps(kdm.KDM(c, w[i, 0], kdm.RBF(0.7)), y[i]))


@pytest.mark.parametrize("family", CONTINUOUS)
def test_blocks_change_nothing(family):
    kernel, y = CONTINUOUS[family](0.5), normal(8, seed=2)
    shared = kdm.KDM(normal(9, 1, seed=0), simplex(8, 9, seed=1), kernel)
    separate = kdm.KDM(normal(8, 9, 1, seed=0), simplex(8, 9, seed=1), kernel)
    for rho in (shared, separate):
        whole = MixtureRows.of(rho, kernel)
        for pairs in (1, 400, 5000):
            blocks = MixtureRows.of(rho, kernel, pairs=pairs)
            close(blocks.mean_distance_between(), whole.mean_distance_between())
            row = torch.arange(8)
            close(blocks.mean_distance_to(y, row), whole.mean_distance_to(y, row))


def test_of_an_inferred_kdm():
    joint = kdm.JointKDM(
        {"x": normal(8, 2, seed=0), "y": normal(8, 1, seed=1)},
        None,
        {"x": kdm.RBF(1.0), "y": kdm.RBF(simplex(8, 1, seed=2) + 0.1)},
    )
    rho = joint.infer(x=normal(2, 2, seed=3))
    y = normal(2, seed=4)
    for i, score in enumerate(crps(rho, y)):
        one = kdm.KDM(rho.components, rho.weights[i], rho.kernel)
        assert score.item() == pytest.approx(by_quadrature(one, y[i].item()), rel=1e-8)


@pytest.mark.parametrize("family", CONTINUOUS)
def test_gradients_equal_finite_differences(family):
    kernel, y = CONTINUOUS[family](0.9), normal(3, 1, seed=3)

    def score(c, logits):
        return crps(kdm.KDM(c, None, kernel, log_weights=logits.log_softmax(-1)), y)

    leaves = [normal(4, 1, seed=0).requires_grad_(), normal(3, 4, seed=1).requires_grad_()]
    assert torch.autograd.gradcheck(score, leaves)


def test_gradients_reach_the_bandwidth():
    kernel = kdm.RBF(real([[0.3], [0.9]]), trainable=True)
    crps(kdm.KDM(normal(2, 1, seed=0), None, kernel), real([0.2])).backward()
    assert (kernel.bandwidth.raw.grad != 0).all()


def test_float32_loses_nothing_of_a_float64_oracle():
    c, w = (1e3 + normal(300, 1, seed=0)).float(), simplex(5, 300, seed=1, dtype=torch.float32)
    y = (1e3 + normal(5, 1, seed=2)).float()
    scores = crps(kdm.KDM(c, w, kdm.RBF(0.01)), y)
    assert scores.dtype == torch.float32
    exact = w.double() / w.double().sum(-1, keepdim=True)
    close(scores, crps(kdm.KDM(c.double(), exact, kdm.RBF(0.01)), y.double()), rtol=1e-6)


def test_weights_of_zero_do_not_count():
    c, w = real([[0.0], [1.0], [1e300]]), real([0.4, 0.6, 0.0])
    y = real([0.2])
    close(crps(kdm.KDM(c, w, kdm.RBF(0.5)), y), crps(kdm.KDM(c[:2], w[:2], kdm.RBF(0.5)), y))


def test_targets_may_be_arrays_lists_and_integers():
    rho = kdm.KDM(normal(4, 1, seed=0), simplex(3, 4, seed=1), kdm.RBF(0.5))
    wanted = crps(rho, real([[1.0], [2.0], [3.0]]))
    for y in ([1, 2, 3], np.array([1.0, 2.0, 3.0]), np.array([[1], [2], [3]]), torch.tensor([1, 2, 3])):
        assert torch.equal(crps(rho, y), wanted)


@pytest.mark.parametrize(
    ("rho", "y", "error", "message"),
    [
        (kdm.RBF(1.0), [0.0], TypeError, "rho: expected a KDM, got RBF|parameter 'rho'"),
        (kdm.KDM(torch.eye(2), None, kdm.Cosine()), [0.0], TypeError, "continuous kernel .*, got Cosine"),
        (
            kdm.KDM(torch.eye(2), None, kdm.RBF(1.0)),
            [0.0, 0.0],
            ValueError,
            r"events of shape \(1,\), got \(2,\)",
        ),
        (kdm.KDM([[0.0]], None, kdm.RBF(1.0)), [0.0, 1.0], ValueError, r"y: expected shape \(..., 1\), got"),
        (kdm.KDM([[0.0]], None, kdm.RBF(1.0)), [math.nan], ValueError, "y: expected finite values"),
        (kdm.KDM([[0.0]], None, kdm.RBF(1.0)), ["a"], TypeError, "y: expected a tensor or an array"),
        (kdm.KDM([[0.0]], None, kdm.RBF(1.0)), [[0.0], []], TypeError, "y: expected .*, got list"),
        (
            kdm.KDM(torch.zeros(3, 1, 1), None, kdm.RBF(1.0)),
            torch.zeros(2, 1),
            ValueError,
            r"y: expected leading dimensions that broadcast with the batch \(3,\), got \(2,\)",
        ),
    ],
)
def test_bad_input_is_named(rho, y, error, message):
    with pytest.raises(error, match=message):
        crps(rho, y)
