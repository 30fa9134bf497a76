"""Densities are densities, and draws follow them."""

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

import kdmkit as kdm
from helpers import KERNELS, M, events, grid, normal, real, seeded
from kdmkit.kernels import Kernel, LocationScale

CONTINUOUS = [name for name, make in KERNELS.items() if isinstance(make(), LocationScale)]
DISCRETE = ["cosine", "categorical", "categorical-smooth"]
ONE_DIMENSION = {
    "rbf": lambda: kdm.RBF(0.3),
    "rbf-metric": lambda: kdm.RBF.from_metric(real([[2.5]])),
    "rbf-per-component": lambda: kdm.RBF([[0.3], [0.9]]),
    "epanechnikov": lambda: kdm.Epanechnikov(0.8),
    "tricube": lambda: kdm.Tricube(0.8),
}
DRAWS = 4000


def density(kernel: Kernel, x: Tensor, c: Tensor) -> Tensor:
    """All pairs, of shape `(n, m)`."""
    return (kernel.term(x, c).exact() + kernel.log_norm(c)).exp()


@pytest.mark.parametrize("name", ONE_DIMENSION)
def test_density_integrates_to_one_on_a_line(name: str) -> None:
    kernel = ONE_DIMENSION[name]()
    points, cell = grid(-8, 8, 4001)
    mass = density(kernel, points, real([[-0.7], [1.1]])).sum(0) * cell
    torch.testing.assert_close(mass, torch.ones(2).double(), rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", CONTINUOUS)
def test_density_integrates_to_one_on_a_plane(name: str) -> None:
    kernel = KERNELS[name]()
    points, cell = grid(-6, 6, 241, d=2)
    mass = density(kernel, points, normal(M, 2, seed=0) / 2).sum(0) * cell
    torch.testing.assert_close(mass, torch.ones(M).double(), rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", DISCRETE)
def test_probabilities_sum_to_one_over_all_events(name: str) -> None:
    kernel = KERNELS[name]()
    c = events(kernel, M, seed=0)
    every = torch.eye(3).double() if name == "cosine" else torch.arange(3)
    norm = kernel.log_norm(c)
    probs = (kernel.term(every, c).exact() + norm).exp().mT
    torch.testing.assert_close(probs.sum(-1), torch.ones(M), check_dtype=False)
    torch.testing.assert_close(kernel.probs(c), probs)


def test_amplitudes_sum_to_one_over_any_orthogonal_basis() -> None:
    basis, _ = torch.linalg.qr(normal(5, 5, seed=0))
    lengths = torch.arange(1, 6).double()  # orthogonal is enough
    overlaps = kdm.Cosine().term(lengths[:, None] * basis.mT, normal(M, 5, seed=1)).exact().exp()
    torch.testing.assert_close(overlaps.sum(0), torch.ones(M).double())


def test_labels_are_basis_vectors() -> None:
    kernel, labels, c = kdm.Cosine(), torch.tensor([2, 0, 1]), normal(M, 3, seed=0)
    one_hot = torch.eye(3).double()[labels]
    for dtype in (torch.int64, torch.int32, torch.uint8):
        codes = labels.to(dtype)
        torch.testing.assert_close(kernel.term(codes, c).exact(), kernel.term(one_hot, c).exact())
        torch.testing.assert_close(
            kernel.log_overlap(codes[:, None], c), kernel.log_overlap(one_hot[:, None], c)
        )
        batched = kernel.term(codes.expand(2, 3), c.expand(2, M, 3)).exact()
        torch.testing.assert_close(batched[1], kernel.term(one_hot, c).exact())


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_codes_of_any_integer_dtype(dtype: torch.dtype) -> None:
    kernel = kdm.Categorical(3, smoothing=0.2)
    codes = torch.tensor([2, 0, 1])
    wanted = kernel.term(codes, codes).exact()
    torch.testing.assert_close(kernel.term(codes.to(dtype), codes.to(dtype)).exact(), wanted)


def draws(kernel: Kernel, c: Tensor, seed: int = 3) -> Tensor:
    """`DRAWS` of each component, of shape `(DRAWS, m, *event)`."""
    index = torch.arange(len(c)).expand(DRAWS, len(c))
    return kernel.sample(c.expand(DRAWS, *c.shape), index, seeded(seed))


@pytest.mark.parametrize("name", CONTINUOUS)
def test_draws_pass_kolmogorov_smirnov(name: str) -> None:
    kernel, c = KERNELS[name](), normal(M, 2, seed=0)
    assert isinstance(kernel, LocationScale)
    # Under a metric the whitened coordinates are the independent ones.
    u, inner = kernel.whiten(draws(kernel, c)) - kernel.whiten(c), kernel.whitened()
    u = (u / inner.scale(u)).flatten(0, 0)
    for j in range(M):
        for i in range(2):
            test = stats.kstest(u[:, j, i].numpy(), lambda t: inner.unit_cdf(torch.from_numpy(t)).numpy())
            assert test.pvalue > 1e-3


@pytest.mark.parametrize("name", CONTINUOUS)
def test_draws_have_the_promised_variance(name: str) -> None:
    kernel, c = KERNELS[name](), normal(M, 2, seed=0)
    x = draws(kernel, c)
    error = 5 / math.sqrt(DRAWS)  # five standard errors of a mean; a variance's are at most √2 wider
    std = kernel.variance(c).sqrt()
    torch.testing.assert_close((x.mean(0) - c) / std, torch.zeros_like(c), rtol=0, atol=error)
    torch.testing.assert_close(x.var(0), kernel.variance(c), rtol=1.5 * error, atol=0)


def test_draws_under_a_metric_have_its_covariance() -> None:
    factor = real([[2.0, 0.0], [-1.5, 1.2]])
    kernel = kdm.RBF.from_metric(factor)
    x = draws(kernel, torch.zeros(1, 2).double()).squeeze(1)
    wanted = torch.linalg.inv(factor.mT @ factor) / 2
    # The variance of the covariance of n draws of a Gaussian is (Σ_ii Σ_jj + Σ_ij²)/n.
    variances = wanted.diagonal()
    error = ((variances.outer(variances) + wanted.square()) / DRAWS).sqrt()
    assert bool(((torch.cov(x.mT) - wanted).abs() <= 5 * error).all())
    torch.testing.assert_close(kernel.std, wanted.diagonal().sqrt())


@pytest.mark.parametrize("name", DISCRETE)
def test_draws_have_the_promised_probabilities(name: str) -> None:
    kernel = KERNELS[name]()
    c = events(kernel, M, seed=0)
    x = draws(kernel, c)
    codes = x.argmax(-1) if name == "cosine" else x
    if name == "cosine":
        assert torch.equal(x, torch.eye(3).double()[codes])
    for j in range(M):
        counts = torch.bincount(codes[:, j], minlength=3)
        expected = kernel.probs(c)[j].double() * DRAWS
        possible = expected > 0
        assert not counts[~possible].any()
        if possible.sum() > 1:
            assert stats.chisquare(counts[possible], expected[possible]).pvalue > 1e-3


@pytest.mark.parametrize("make", [kdm.RBF, kdm.Epanechnikov, kdm.Tricube])
def test_unit_distribution_function(make: type[LocationScale]) -> None:
    kernel = make(1.0)  # type: ignore[call-arg]
    u = torch.linspace(-3, 3, 601, dtype=torch.float64).requires_grad_()
    cdf = kernel.unit_cdf(u)
    unit_density = (kernel.unit_log_overlap(u) + kernel.unit_log_norm).exp()
    (slope,) = torch.autograd.grad(cdf.sum(), u)
    torch.testing.assert_close(slope, unit_density, rtol=0, atol=1e-9)
    difference = (kernel.unit_cdf(u + 1e-5) - kernel.unit_cdf(u - 1e-5)) / 2e-5
    torch.testing.assert_close(difference, unit_density, rtol=0, atol=1e-5)
    torch.testing.assert_close(cdf + cdf.flip(0), torch.ones_like(cdf))
    assert kernel.unit_cdf(real([-40.0, 0.0, 40.0])).tolist() == [0.0, 0.5, 1.0]
    if math.isfinite(kernel.unit_radius):
        edge = real([-kernel.unit_radius, kernel.unit_radius])
        assert kernel.unit_cdf(edge).tolist() == [0.0, 1.0]
        assert torch.isneginf(kernel.unit_log_overlap(edge)).all()


@pytest.mark.parametrize("make", [kdm.Epanechnikov, kdm.Tricube])
def test_the_edge_of_the_support_is_outside_and_has_no_gradient(make: type[LocationScale]) -> None:
    kernel = make(0.5)  # type: ignore[call-arg]
    x = real([[-0.5], [0.5]]).requires_grad_()
    overlap = kernel.log_overlap(x, real([[0.0]]))
    (gradient,) = torch.autograd.grad(torch.where(torch.isneginf(overlap), 0.0, overlap).sum(), x)
    assert torch.isneginf(overlap).all()
    assert not gradient.any()


@pytest.mark.parametrize("make", [kdm.RBF, kdm.Epanechnikov, kdm.Tricube])
def test_quantiles_lie_within_their_bound(make: type[LocationScale]) -> None:
    kernel = make(1.0)  # type: ignore[call-arg]
    q = real([1e-12, 1e-3, 0.2, 0.5, 0.9, 1 - 1e-9])
    beyond = kernel.unit_cdf(-kernel.unit_quantile_bound(q))
    assert (beyond < torch.minimum(q, 1 - q)).all()
