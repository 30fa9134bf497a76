"""Differentiable draws: gradients of Monte-Carlo averages against derivatives of the exact expectations.

Every estimate comes with its standard error over independent groups of draws; the truth must lie within five
of them, and they must be small enough for that to mean something.
"""

import math

import pytest
import torch
from scipy import stats

import kdmkit as kdm
from helpers import CONTINUOUS, close, normal, real, seeded, simplex, unit_variance

GROUPS = 24
DIRECTION = real([0.8, -0.6, 0.5])
FACTOR = real([[1.5, 0.0, 0.0], [-0.8, 0.9, 0.0], [0.3, 0.5, 0.7]])


class Case:
    """A mixture with parameters, a test function g and its exact expectation."""

    def __init__(self, name, d):
        m = 3
        self.d = d
        self.components = normal(m, d, seed=1).requires_grad_()
        self.logits = (0.5 * normal(m, seed=2)).requires_grad_()
        self.family = name if name in CONTINUOUS else "rbf"
        scale = real([0.7, 1.1, 0.9][:d])
        self.kernel = {
            "scalar": lambda: kdm.RBF(0.8, trainable=True),
            "ard": lambda: kdm.RBF(scale, trainable=True),
            "metric": lambda: kdm.RBF.from_metric(FACTOR[:d, :d], trainable=True),
            "per-m": lambda: kdm.RBF(real([[0.4], [0.8], [1.3]]), trainable=True),
            "per-md": lambda: kdm.RBF(real([[0.4], [0.8], [1.3]]) * scale, trainable=True),
            "epanechnikov": lambda: kdm.Epanechnikov(2 * scale, trainable=True),
            "tricube": lambda: kdm.Tricube(2 * scale, trainable=True),
        }[name]()

    @property
    def rho(self):
        return kdm.KDM(self.components, None, self.kernel, log_weights=self.logits.log_softmax(-1))

    @property
    def parameters(self):
        return [self.logits, self.components, *self.kernel.parameters()]

    def g(self, x):
        """(a·x)² + x₁: all dimensions interact."""
        return (x @ DIRECTION[: self.d]) ** 2 + x[..., 0]

    def expectation(self):
        a, w, c = DIRECTION[: self.d], self.logits.softmax(-1), self.components
        within = self._covariances() @ a @ a
        return (w * ((c @ a) ** 2 + within + c[:, 0])).sum()

    def _covariances(self):
        kernel = self.kernel
        if getattr(kernel, "metric", None) is not None:
            return 0.5 * torch.linalg.inv(kernel.metric.T @ kernel.metric)
        scale = kernel.bandwidth.value
        scale = scale.expand(*scale.shape[:-1], self.d) if scale.ndim else scale.expand(self.d)
        return torch.diag_embed(unit_variance(self.family) * scale**2)


def _gradients(draw, parameters):
    """Mean and standard error, over groups of draws, of the gradient of what `draw(generator)` returns."""
    groups, generator = [], seeded(5)
    for _ in range(GROUPS):
        gradients = torch.autograd.grad(draw(generator), parameters)
        groups.append(torch.cat([gradient.flatten() for gradient in gradients]))
    groups = torch.stack(groups)
    return groups.mean(0), groups.std(0) / GROUPS**0.5


def _estimate(case, n, **options):
    def draw(generator):
        return case.g(case.rho.rsample((n,), generator=generator, **options)).mean()

    return _gradients(draw, case.parameters)


def _exact(case):
    gradients = torch.autograd.grad(case.expectation(), case.parameters)
    return torch.cat([gradient.flatten() for gradient in gradients])


CASES = [("scalar", 1), ("per-m", 1), ("epanechnikov", 1), ("tricube", 1)]
CASES += [("scalar", 2), ("metric", 2), ("per-md", 2), ("tricube", 2)]
CASES += [("ard", 3), ("metric", 3), ("per-m", 3), ("epanechnikov", 3)]


@pytest.mark.parametrize(("name", "d"), CASES)
def test_implicit_gradients_are_unbiased_for_everything(name, d):
    case = Case(name, d)
    mean, error = _estimate(case, 2000)
    exact = _exact(case)
    assert ((mean - exact).abs() < 5 * error + 1e-12).all()
    assert error.max() < 0.05 * exact.abs().max()


@pytest.mark.parametrize(("name", "d"), CASES)
def test_gumbel_gradients_are_unbiased_for_components_and_bandwidths(name, d):
    case = Case(name, d)
    mean, error = _estimate(case, 2000, method="gumbel", temperature=0.1)
    exact = _exact(case)
    rest = slice(3, None)
    assert ((mean - exact).abs() < 5 * error + 1e-12)[rest].all()
    assert error[rest].max() < 0.05 * exact.abs().max()


@pytest.mark.parametrize(("name", "d"), [("scalar", 1), ("per-m", 1), ("metric", 2), ("ard", 3)])
def test_gumbel_bias_to_the_logits_is_small_at_a_low_temperature(name, d):
    case = Case(name, d)
    exact = _exact(case)[:3]
    bias = {}
    for temperature in (0.1, 1.0):
        mean, error = _estimate(case, 10_000, method="gumbel", temperature=temperature)
        bias[temperature] = ((mean[:3] - exact).norm() / exact.norm()).item()
        assert error[:3].norm() < 0.05 * exact.norm()
    assert bias[0.1] < 0.2
    assert bias[0.1] < bias[1.0]


def test_every_row_of_a_batch_has_its_own_gradient():
    c, logits = normal(3, 2, seed=0), normal(4, 3, seed=1).requires_grad_()
    weights = real([1.0, -2.0, 3.0, 0.5])

    def rho():
        return kdm.KDM(c, None, kdm.RBF(1.0), log_weights=logits.log_softmax(-1))

    def draw(generator):
        return rho().rsample((2000,), generator=generator)[..., 1].mean(0) @ weights

    mean, error = _gradients(draw, [logits])
    (exact,) = torch.autograd.grad(rho().mean[:, 1] @ weights, logits)
    assert ((mean - exact.flatten()).abs() < 5 * error).all()
    assert error.max() < 0.05 * exact.abs().max()


def test_implicit_draws_are_the_samples():
    rho = kdm.KDM(normal(5, 3, seed=0), simplex(5, seed=1), kdm.RBF([0.5, 1.0, 2.0]))
    close(rho.rsample((50,), generator=seeded(3)), rho.sample((50,), generator=seeded(3)), rtol=1e-12)
    metric = kdm.KDM(normal(5, 3, seed=0), simplex(5, seed=1), kdm.RBF.from_metric(FACTOR))
    close(metric.rsample((50,), generator=seeded(3)), metric.sample((50,), generator=seeded(3)), rtol=1e-9)


def test_implicit_gradients_of_one_component_are_the_usual_reparameterisation():
    c = real([[0.3, -0.2]]).requires_grad_()
    kernel = kdm.RBF(0.7, trainable=True)
    x = kdm.KDM(c, None, kernel).rsample((20,), generator=seeded(0))
    by_component, by_raw = torch.autograd.grad(x.sum(), [c, kernel.bandwidth.raw])
    close(by_component, torch.full_like(c, 20.0), rtol=1e-7)
    close(by_raw, (x - c).sum().detach(), rtol=1e-5)  # dσ/draw = σ


@pytest.mark.parametrize("family", ["epanechnikov", "tricube"])
def test_draws_that_round_onto_the_edge_of_the_support_have_finite_gradients(family):
    # At 1,000 float32 has steps of 6e-5: with h = 1e-4 many draws land on or beyond an edge.
    c = (1000 + torch.randn(4, 3, generator=seeded(0))).requires_grad_()
    kernel = CONTINUOUS[family](1e-4, trainable=True)
    x = kdm.KDM(c, None, kernel).rsample((2000,), generator=seeded(1))
    assert torch.isfinite(x).all()
    for gradient in torch.autograd.grad(x.sum(), [c, *kernel.parameters()]):
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("family", CONTINUOUS)
def test_hard_gumbel_draws_follow_the_cdf(family):
    rho = kdm.KDM(2 * normal(4, 1, seed=0), simplex(4, seed=1), CONTINUOUS[family](0.8))
    for temperature in (0.1, 2.0):
        draws = rho.rsample((20_000,), method="gumbel", temperature=temperature, generator=seeded(2))
        assert stats.kstest(rho.cdf(draws).numpy(), "uniform").pvalue > 1e-3


def test_soft_gumbel_draws_are_biased_as_documented():
    rho = kdm.KDM(real([[-2.0], [2.0]]), None, kdm.RBF(0.1))
    soft = rho.rsample((20_000,), method="gumbel", temperature=1.0, hard=False, generator=seeded(0))
    hard = rho.rsample((20_000,), method="gumbel", temperature=1.0, generator=seeded(0))
    assert hard.var().item() == pytest.approx(rho.variance.item(), rel=0.02)
    assert soft.var().item() < 0.6 * rho.variance.item()


def test_gumbel_draws_with_metric_and_batches():
    c, w = normal(2, 3, 3, seed=0), simplex(2, 3, seed=1)
    rho = kdm.KDM(c, w, kdm.RBF.from_metric(FACTOR))
    x = rho.rsample((50_000,), method="gumbel", generator=seeded(2))
    # Six standard errors; those of a variance are at most those of a normal distribution here.
    assert ((x.mean(0) - rho.mean).abs() < 6 * rho.stddev / math.sqrt(50_000)).all()
    close(x.var(0), rho.variance, rtol=6 * math.sqrt(2 / 50_000))


def test_cosine_gumbel_draws_are_exact_one_hots_with_gradients():
    c = normal(4, 3, seed=0).requires_grad_()
    logits = normal(4, seed=1).requires_grad_()
    rho = kdm.KDM(c, None, kdm.Cosine(), log_weights=logits.log_softmax(-1))
    x = rho.rsample((50_000,), method="gumbel", temperature=0.1, generator=seeded(2))
    assert ((x == 0) | (x == 1)).all()
    assert (x.sum(-1) == 1).all()
    counts = x.detach().sum(0)
    assert stats.chisquare(counts.numpy(), (50_000 * rho.probs.detach()).numpy()).pvalue > 1e-3
    score = real([1.0, -1.0, 3.0])
    exact = torch.autograd.grad((rho.probs * score).sum(), [c, logits], retain_graph=True)
    estimate = torch.autograd.grad((x @ score).mean(), [c, logits])
    for got, wanted in zip(estimate, exact, strict=True):
        assert (got - wanted).norm() < 0.2 * wanted.norm()


def test_cosine_gumbel_soft_draws_are_distributions():
    rho = kdm.KDM.from_probs(real([0.2, 0.0, 0.8]))
    soft = rho.rsample((100,), method="gumbel", hard=False, generator=seeded(0))
    close(soft.sum(-1), torch.ones(100).double())
    assert (soft[:, 1] == 0).all()
    assert ((soft > 0) & (soft < 1)).any()


@pytest.mark.parametrize("method", ["implicit", "gumbel"])
def test_gradients_reach_the_encoder(method):
    """Encoder → infer → rsample → decoder, with the exact gradient where the decoder is linear."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        encoder, decoder = torch.nn.Linear(3, 2).double(), torch.nn.Linear(2, 1).double()
    joint = kdm.JointKDM(
        {"z": normal(6, 2, seed=0), "y": normal(6, 2, seed=1)}, None, {"z": kdm.RBF(1.5), "y": kdm.RBF(0.5)}
    )
    inputs, options = normal(5, 3, seed=2), {"temperature": 0.1} if method == "gumbel" else {}

    def rho():
        return joint.infer(z=encoder(inputs))

    def draw(generator):
        return decoder(rho().rsample((5000,), method=method, generator=generator, **options)).mean(0).sum()

    parameters = list(encoder.parameters())
    mean, error = _gradients(draw, parameters)
    exact = torch.autograd.grad(decoder(rho().mean).sum(), parameters)
    exact = torch.cat([gradient.flatten() for gradient in exact])
    assert error.norm() < 0.05 * exact.norm()
    if method == "implicit":
        assert ((mean - exact).abs() < 5 * error).all()
    else:
        assert (mean - exact).norm() < 0.2 * exact.norm()


def test_looking_without_gradients_first_loses_none():
    """What was computed under no_grad must not be remembered for those who need a graph."""
    x = normal(5, 2, seed=2).requires_grad_()
    joint = kdm.JointKDM(
        {"x": normal(6, 2, seed=0), "y": normal(6, 1, seed=1)}, None, {"x": kdm.RBF(1.5), "y": kdm.RBF(0.5)}
    )
    for read in (lambda r: r.log_weights, lambda r: r.log_evidence, lambda r: r.log_prob(real([0.3]))):
        rho = joint.infer(x=x)
        with torch.no_grad():
            before = read(rho)
        (gradient,) = torch.autograd.grad(read(rho)[0].sum(), x)
        assert (gradient[0] != 0).any()
        close(read(rho).detach(), before)
    rho = joint.infer(x=x)
    rho.sample((3,))
    assert rho.rsample((3,)).requires_grad
