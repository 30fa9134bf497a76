"""Distribution functions and quantiles."""

import pytest
import torch
from torch import distributions as td

import kdmkit as kdm
from bounds import rounding
from helpers import CONTINUOUS, close, grid, normal, real, simplex
from kdmkit.distributions.univariate import Univariate

Q = torch.cat(
    [
        torch.logspace(-4, -1.1, 20, dtype=torch.float64),
        torch.linspace(0.1, 0.9, 81, dtype=torch.float64),
        1 - torch.logspace(-1.1, -4, 20, dtype=torch.float64),
    ]
)


@pytest.mark.parametrize("family", CONTINUOUS)
def test_cdf_is_the_integral_of_the_density(family):
    x, step = grid(-8, 8, 8001)
    rho = kdm.KDM(normal(5, 1, seed=0), simplex(5, seed=1), CONTINUOUS[family](0.7))
    density = rho.log_prob(x).exp()
    # The trapezoidal rule is off by at most h²/8 times the total variation of the derivative.
    error = step / 8 * float(density.diff(n=2).abs().sum())
    assert error < 1e-5
    close(rho.cdf(x)[1:], torch.cumulative_trapezoid(density, dx=step), rtol=0, atol=error)
    assert rho.cdf(torch.tensor([-50.0])).item() == 0
    assert rho.cdf(torch.tensor([50.0])).item() == pytest.approx(1, abs=1e-12)


def test_cdf_equals_torch_mixture():
    c, w, std = normal(5, 1, seed=0), simplex(5, seed=1), real([0.1, 0.5, 1.0, 2.0, 0.3])
    rho = kdm.KDM(c, w, kdm.RBF.from_std(std.unsqueeze(-1)))
    wanted = td.MixtureSameFamily(td.Categorical(w), td.Normal(c.squeeze(-1), std))
    x = torch.linspace(-6, 6, 101, dtype=torch.float64)
    close(rho.cdf(x.unsqueeze(-1)), wanted.cdf(x))


@pytest.mark.parametrize("family", CONTINUOUS)
def test_icdf_inverts_cdf(family):
    rho = kdm.KDM(2 * normal(6, 1, seed=0), simplex(6, seed=1), CONTINUOUS[family](0.9))
    x = rho.icdf(Q)
    close(rho.cdf(x), Q, rtol=1e-9)
    assert (x.squeeze(-1).diff() > 0).all()
    close(rho.icdf(rho.cdf(x)), x, rtol=1e-7, atol=1e-7)


def test_icdf_inverts_cdf_with_a_bandwidth_per_component():
    scales = real([[0.01], [0.3], [5.0]])
    rho = kdm.KDM(normal(3, 1, seed=0), simplex(3, seed=1), kdm.RBF(scales))
    close(rho.cdf(rho.icdf(Q)), Q, rtol=1e-9)


@pytest.mark.parametrize("family", CONTINUOUS)
def test_icdf_of_narrow_components_far_apart(family):
    c = real([[-1e3], [0.0], [1e-2], [2e3]])
    w = real([0.3, 1e-4, 0.2999, 0.4])
    rho = kdm.KDM(c, w, CONTINUOUS[family](1e-2))
    edges = w.cumsum(0)[:-1]
    q = Q[(Q[:, None] - edges).abs().amin(-1) > 1e-6]
    x = rho.icdf(q)
    # Next to a component of width .01 at 2,000 a unit in the last place is worth 1e-11 of probability.
    close(rho.cdf(x), q, rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", ["epanechnikov", "tricube"])
def test_any_point_of_a_plateau_is_a_quantile(family):
    c = real([[0.0], [10.0]]).requires_grad_()
    logits = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    q = real([0.25, 0.5, 0.75]).requires_grad_()
    rho = kdm.KDM(c, None, CONTINUOUS[family](1.0), log_weights=logits.log_softmax(-1))
    x = rho.icdf(q)
    assert 1 <= x[1].item() <= 9
    close(rho.cdf(x), q.detach().clone())
    x.sum().backward()
    for gradient in (c.grad, logits.grad, q.grad):
        assert torch.isfinite(gradient).all()
    assert q.grad[1] == 0
    close(c.grad, torch.ones_like(c))  # the quartiles move with their components


@pytest.mark.parametrize("family", CONTINUOUS)
def test_gradients_of_icdf_equal_finite_differences(family):
    q, c, logits = real([0.05, 0.3, 0.5, 0.9]), normal(3, 1, seed=1), normal(3, seed=2)
    kernel = CONTINUOUS[family](0.9, trainable=True)

    def quantiles(q, c, logits, kernel=kernel):
        return kdm.KDM(c, None, kernel, log_weights=logits.log_softmax(-1)).icdf(q)

    leaves = [tensor.requires_grad_() for tensor in (q, c, logits)]
    assert torch.autograd.gradcheck(quantiles, leaves, eps=1e-6, atol=1e-6)

    (slope,) = torch.autograd.grad(quantiles(*leaves).sum(), kernel.bandwidth.raw)
    step = 1e-5
    above, below = (
        quantiles(*leaves, CONTINUOUS[family](0.9 + sign * step)).sum().item() for sign in (1, -1)
    )
    # σ = minimum + exp(raw), so dσ/draw = σ up to the tiny minimum.
    assert slope.item() == pytest.approx(0.9 * (above - below) / (2 * step), rel=1e-5)


def test_batches_equal_a_loop():
    c, w = normal(2, 1, 4, 1, seed=0), simplex(3, 4, seed=1)
    rho = kdm.KDM(c, w, kdm.RBF(0.7))
    x, q = normal(5, 2, 3, 1, seed=2), Q[::30]
    cdf, icdf = rho.cdf(x), rho.icdf(q[:, None, None])
    assert cdf.shape == (5, 2, 3)
    assert icdf.shape == (len(q), 2, 3, 1)
    for i in range(2):
        for j in range(3):
            one = kdm.KDM(c[i, 0], w[j], kdm.RBF(0.7))
            close(cdf[:, i, j], one.cdf(x[:, i, j]))
            close(icdf[:, i, j], one.icdf(q), rtol=1e-8)
    single = kdm.KDM(c[0, 0], w[:1], kdm.RBF(0.7))
    assert single.cdf(x[:, 0, 0]).shape == (5,)


def test_zero_weights_do_not_widen_the_bracket():
    c, w = real([[0.0], [1.0], [1e300]]), real([0.5, 0.5, 0.0])
    with_outlier = kdm.KDM(c, w, kdm.RBF(0.5)).icdf(Q)
    close(with_outlier, kdm.KDM(c[:2], w[:2], kdm.RBF(0.5)).icdf(Q))


def test_float32_round_trip():
    rho = kdm.KDM(normal(50, 1, seed=0).float(), None, kdm.RBF(0.3))
    q = Q.float()
    assert rho.icdf(q).dtype == torch.float32
    # F adds 50 products. It is off by 4·ε at most where the search stops, and x is rounded.
    close(rho.cdf(rho.icdf(q)), q, rtol=0, atol=rounding(50 + 2 * 4 + 2))


def test_blocks_change_nothing():
    mixture = kdm.RBF(0.3), normal(9, 1, seed=0), simplex(3, 9, seed=1).log()
    whole, blocks = Univariate(*mixture), Univariate(*mixture, pairs=40)
    x = whole.quantile(Q[::10, None])
    close(blocks.quantile(Q[::10, None]), x)
    close(blocks.cdf(x), whole.cdf(x))


ATOMS = {
    "grid": lambda: kdm.Rounded(kdm.RBF(0.7), 0.25),
    "wide grid": lambda: kdm.Rounded(kdm.RBF(0.7), 1e-4),
    "grid and atoms": lambda: kdm.Inflated(kdm.Rounded(kdm.RBF(0.7), 1e-4), [0.0, 1.5]),
    "density and atoms": lambda: kdm.Inflated(kdm.RBF(0.7), [-0.3, 0.0, 1.5, torch.nan]),
    "bounded": lambda: kdm.Inflated(kdm.Truncated(kdm.RBF(0.7), 0.0, 2.5), [0.0]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ATOMS)
def test_quantiles_of_steps_are_generalised_inverses(name, dtype):
    kernel = ATOMS[name]()
    c = kernel.components_from(torch.cat([normal(6, 1, seed=0).abs(), real([[0.0]])]).to(dtype))
    rho = kdm.KDM(c, simplex(3, 7, seed=1).to(dtype), kernel)
    q = torch.linspace(0.01, 0.99, 50, dtype=dtype)[:, None]
    x = rho.icdf(q)
    step = {"grid": 0.25, "wide grid": 1e-4, "grid and atoms": 1e-4}.get(name, 1e-5)
    just_below = x.double() - step
    error = 2e-6 if dtype == torch.float32 else 1e-9
    assert (rho.cdf(x) >= q - error).all()
    slack = error if kernel.only_atoms else 1e-4
    assert (rho.cdf(just_below.to(dtype)) <= q + slack).all()
    zero = torch.zeros(3, 1, dtype=dtype)
    at_zero = (rho.cdf(zero) > q + 0.01) & (rho.cdf(zero - 1e-3) < q - 0.01)
    if "atoms" in name:
        assert at_zero.any()
        assert (x.squeeze(-1)[at_zero] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("family", CONTINUOUS)
def test_quantiles_take_few_steps(family, dtype, monkeypatch):
    steps = []
    density = Univariate._density
    monkeypatch.setattr(Univariate, "_density", lambda self, x: steps.append(1) or density(self, x))
    c, w = 2 * normal(6, 1, seed=0).to(dtype), simplex(6, seed=1).to(dtype)
    kdm.KDM(c, w, CONTINUOUS[family](0.01)).icdf(Q.to(dtype))
    assert len(steps) <= 30  # bisection alone would take about 50


@pytest.mark.parametrize("step", [None, 0.01, 1.0])
def test_quantiles_of_many_rows_are_those_of_single_ones(step: float | None) -> None:
    """Many rows are searched with fewer points at a time, and only where a quantile is not known yet."""
    inner = kdm.Transformed.log(kdm.RBF.from_std(torch.linspace(0.02, 1.0, 40).double().unsqueeze(-1)))
    kernel = kdm.Inflated(inner if step is None else kdm.Rounded(inner, step), [0.0, 2.0])
    c = torch.cat([normal(40, 3, seed=0), 2 * normal(40, 1, seed=1)], -1)
    log_weights = (5 * normal(300, 40, seed=2)).log_softmax(-1)
    q = real([0.01, 0.3, 0.5, 0.97]).unsqueeze(-1)
    rho = Univariate(kernel, c, log_weights)
    x = rho.quantile(q)
    slack = 1e-9
    assert bool((rho.cdf(x) >= q - slack).all())
    assert bool((rho.cdf(x - (0.6 * step if step else 1e-6 * (1 + x))) < q + slack).all())
    for row in (0, 150, 299):
        close(Univariate(kernel, c, log_weights[row]).quantile(q[:, 0]), x[:, row], rtol=1e-6, atol=1e-6)
