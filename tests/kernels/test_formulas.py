"""The table of DESIGN.md, kernel by kernel, against NumPy and SciPy."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

import kdmkit as kdm
from helpers import close, normal, real
from kdmkit.ops.terms.discrete import differentiable_log_probs, log_probs

X, C = normal(6, 3, seed=0), normal(5, 3, seed=1)


def matrix(function: object, x: Tensor = X, c: Tensor = C) -> Tensor:
    """One Python call for every pair."""
    return real([[function(a.numpy(), b.numpy()) for b in c] for a in x])  # type: ignore[operator]


def test_rbf_is_the_square_of_the_papers_kernel() -> None:
    kernel = kdm.RBF(0.7)
    k = matrix(lambda x, c: math.exp(-np.sum((x - c) ** 2) / (2 * 0.7**2)))
    close(kernel.term(X, C).exact().exp(), k**2)
    close(kernel.log_norm(C), real(-1.5 * math.log(math.pi * 0.7**2)))


@pytest.mark.parametrize("sigma", [0.7, [0.3, 0.8, 2.0]])
def test_rbf_density_is_a_gaussian_of_deviation_sigma_over_root_two(sigma: float | list[float]) -> None:
    kernel = kdm.RBF(sigma)
    deviation = np.broadcast_to(sigma, 3) / math.sqrt(2)
    wanted = matrix(lambda x, c: stats.norm.logpdf(x, c, deviation).sum())
    close(kernel.term(X, C).exact() + kernel.log_norm(C), wanted)
    close(kernel.std.expand(3), real(deviation.tolist()))


def test_rbf_under_a_metric_is_a_gaussian() -> None:
    factor = real([[1.5, 0, 0], [0.7, 0.8, 0], [-0.4, 0.3, 2.0]])
    kernel = kdm.RBF.from_metric(factor)
    covariance = np.linalg.inv(factor.numpy().T @ factor.numpy()) / 2
    wanted = matrix(lambda x, c: stats.multivariate_normal.logpdf(x, c, covariance))
    close(kernel.term(X, C).exact() + kernel.log_norm(C), wanted)
    close(kernel.metric, factor)  # type: ignore[arg-type]
    close(kernel.variance(C), real(np.broadcast_to(covariance.diagonal(), (5, 3)).tolist()))


@pytest.mark.parametrize("shape", [(5, 1), (5, 3)])
def test_rbf_with_a_bandwidth_for_each_component(shape: tuple[int, int]) -> None:
    sigma = 0.5 + normal(*shape, seed=2).sigmoid()
    kernel = kdm.RBF(sigma)
    wanted = torch.stack(
        [
            matrix(lambda x, c, s=s: stats.norm.logpdf(x, c, s / math.sqrt(2)).sum(), c=c[None]).squeeze(1)
            for c, s in zip(C, sigma.numpy(), strict=True)
        ],
        -1,
    )
    assert kernel.per_component
    close(kernel.term(X, C).exact() + kernel.log_norm(C), wanted)


def product_of(bump: object, h: list[float]) -> object:
    """log Π_i bump((x_i − c_i)/h_i), and the normaliser by quadrature."""

    def overlap(x: np.ndarray, c: np.ndarray) -> float:
        values = [bump(u) if abs(u) < 1 else 0.0 for u in (x - c) / h]  # type: ignore[operator]
        return float(np.log(np.prod(values))) if all(values) else -math.inf

    return overlap


@pytest.mark.parametrize(
    ("kernel", "bump"),
    [
        (kdm.Epanechnikov([2.0, 3.0, 4.0]), lambda u: (1 - u**2) ** 2),
        (kdm.Tricube([2.0, 3.0, 4.0]), lambda u: (1 - abs(u) ** 3) ** 6),
    ],
)
def test_compact_kernels(kernel: kdm.Epanechnikov | kdm.Tricube, bump: object) -> None:
    h = [2.0, 3.0, 4.0]
    wanted = matrix(product_of(bump, h))
    assert torch.isneginf(wanted).any()
    assert torch.isfinite(wanted).any()
    close(kernel.term(X, C).exact(), wanted)
    mass = integrate.quad(bump, -1, 1)[0]
    close(kernel.log_norm(C), real(-sum(math.log(mass * width) for width in h)))
    second = integrate.quad(lambda u: u**2 * bump(u), -1, 1)[0] / mass  # type: ignore[operator]
    close(kernel.variance(C), real([[second * width**2 for width in h]] * 5))


def test_normaliser_constants() -> None:
    close(kdm.Epanechnikov(2.0).log_norm(torch.zeros(1, 1)), real(-math.log(16 * 2.0 / 15)))
    beta = math.gamma(1 / 3) * math.gamma(7) / math.gamma(22 / 3)
    close(kdm.Tricube(2.0).log_norm(torch.zeros(1, 1)), real(-math.log(2.0 * (2 / 3) * beta)))


def test_cosine() -> None:
    wanted = matrix(lambda x, c: 2 * math.log(abs(x @ c) / (np.linalg.norm(x) * np.linalg.norm(c))))
    close(kdm.Cosine().term(X, C).exact(), wanted)
    assert kdm.Cosine().log_norm(C) == 0


def test_cosine_of_extreme_amplitudes() -> None:
    for size in (1e-30, 1e30):
        close(kdm.Cosine().term((size * X).float(), C.float()).exact().double(),
              kdm.Cosine().term(X.float(), C.float()).exact().double(), rtol=1e-5)  # fmt: skip


def test_the_papers_amplitudes_of_one_distribution() -> None:
    """({e₁, e₂, e₃}, (.2, .3, .5)) and ({(√.2, √.3, √.5)}, 1) are both (.2, .3, .5)."""
    p = real([0.2, 0.3, 0.5])
    kernel, basis = kdm.Cosine(), torch.eye(3).double()
    mixture = kernel.term(basis, basis).exact().exp() @ p
    pure = kernel.term(basis, p.sqrt()[None]).exact().exp().squeeze(-1)
    close(mixture, p)
    close(pure, p)


def test_categorical() -> None:
    kernel = kdm.Categorical(4, smoothing=0.25)
    codes = torch.arange(4)
    odds = torch.full((4, 4), 0.25).double().fill_diagonal_(1.0)
    close(kernel.term(codes, codes).exact().double().exp(), odds, rtol=1e-6)
    close(kernel.probs(codes).double(), odds / 1.75, rtol=1e-6)
    close(kernel.log_norm(codes).double(), real(-math.log(1.75)), rtol=1e-6)
    assert torch.equal(kdm.Categorical(4).probs(codes), torch.eye(4))


def test_composed_is_the_kernel_of_the_codes() -> None:
    encoder = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2)).double()
    kernel = kdm.Composed(encoder, kdm.RBF(0.5), event_dim=3)
    x, c = normal(6, 1, 3, 4, seed=0), normal(5, 1, 3, 4, seed=1)
    wanted = kdm.RBF(0.5).term(encoder(x), encoder(c)).exact()
    close(kernel.term(x, c).exact(), wanted)
    close(kernel.log_overlap(x.unsqueeze(1), c.unsqueeze(0)), wanted)
    weights = [p for p in encoder.parameters() if p.ndim == 2]
    assert all(g.any() for g in torch.autograd.grad(kernel.term(x, c).exact().sum(), weights))


def test_log_probabilities_of_amplitudes_have_the_gradients_of_their_definition() -> None:
    x = torch.tensor([[0.5, -2.0, 1e-30], [3.0, 0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    upstream = torch.tensor([[1.0, 2.0, -1.0], [0.5, 0.0, 3.0]], dtype=torch.float64)
    fast, slow = log_probs(x), differentiable_log_probs(x)
    torch.testing.assert_close(fast, slow)
    assert fast.grad_fn.name() == "_LogProbsBackward"
    of_fast, of_slow = (torch.autograd.grad(logs, x, upstream)[0] for logs in (fast, slow))
    torch.testing.assert_close(of_fast, of_slow)
    assert of_fast[1, 1] == 0
    assert torch.autograd.gradgradcheck(log_probs, x.detach()[:1, :2].requires_grad_())


def test_a_zero_vector_has_no_label() -> None:
    x = torch.tensor([[0.0, 0.0], [1.0, 1.0]], requires_grad=True)
    logs = log_probs(x)
    assert logs[0].isneginf().all()
    (gradient,) = torch.autograd.grad(logs[1, 0], x)
    assert gradient.isfinite().all()
