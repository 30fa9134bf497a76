"""KDM densities against other people's implementations, quadrature and the paper's theorems."""

import math

import pytest
import torch
from sklearn.neighbors import KernelDensity
from torch import distributions as td

import kdmkit as kdm
from helpers import CONTINUOUS, close, grid, mixture_density, normal, real, seeded, simplex


@pytest.mark.parametrize("d", [1, 2, 3])
def test_equals_scikit_learn(d):
    samples, x, h = normal(1000, d, seed=d), normal(200, d, seed=9), 0.3
    wanted = KernelDensity(bandwidth=h).fit(samples.numpy()).score_samples(x.numpy())
    rho = kdm.KDM.from_samples(samples, kdm.RBF.from_std(h))
    close(rho.log_prob(x), torch.from_numpy(wanted), rtol=0, atol=1e-5)
    # In far tails scikit-learn's trees lose digits; a single leaf sums exactly.
    exact = KernelDensity(bandwidth=h, leaf_size=1000).fit(samples.numpy())
    close(rho.log_prob(4 * x), torch.from_numpy(exact.score_samples(4 * x.numpy())), rtol=1e-10)


def _mixture(c, w, std):
    return td.MixtureSameFamily(td.Categorical(w), td.Independent(td.Normal(c, std.expand_as(c)), 1))


@pytest.mark.parametrize("shape", [(), (3,), (40, 1), (40, 3)], ids=["scalar", "ard", "per-m", "per-md"])
def test_equals_torch_mixture(shape):
    c, w, x = normal(40, 3, seed=0), simplex(40, seed=1), 2 * normal(100, 3, seed=2)
    std = 0.2 + torch.rand(shape, dtype=torch.float64, generator=seeded(3))
    rho = kdm.KDM(c, w, kdm.RBF.from_std(std))
    close(rho.log_prob(x), _mixture(c, w, std).log_prob(x), rtol=1e-9)
    close(rho.mean, _mixture(c, w, std).mean)
    close(rho.variance, _mixture(c, w, std).variance)


def test_metric_equals_torch_multivariate_normals():
    c, w, x = normal(20, 3, seed=0), simplex(20, seed=1), 2 * normal(100, 3, seed=2)
    factor = normal(3, 3, seed=4).tril(-1) + torch.diag(real([0.7, 1.3, 2.0]))
    gaussians = td.MultivariateNormal(c, precision_matrix=2 * factor.mT @ factor)
    wanted = td.MixtureSameFamily(td.Categorical(w), gaussians)
    rho = kdm.KDM(c, w, kdm.RBF.from_metric(factor))
    close(rho.log_prob(x), wanted.log_prob(x), rtol=1e-8)
    close(rho.mean, wanted.mean)
    close(rho.variance, wanted.variance)


@pytest.mark.parametrize("family", CONTINUOUS)
@pytest.mark.parametrize("d", [1, 2, 3])
def test_equals_the_formula(family, d):
    c, w, x = normal(7, d, seed=0), simplex(7, seed=1), normal(300, d, seed=2)
    scale = real([0.8, 1.1, 1.7][:d])
    density = kdm.KDM(c, w, CONTINUOUS[family](scale)).log_prob(x).exp()
    close(density, mixture_density(family, x, c, scale, w), rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("family", CONTINUOUS)
@pytest.mark.parametrize(("d", "n"), [(1, 2001), (2, 301)])
def test_integrates_to_one(family, d, n):
    x, cell = grid(-8, 8, n, d)
    scale = real([0.5, 0.9][:d])
    rho = kdm.KDM(normal(5, d, seed=0), simplex(5, seed=1), CONTINUOUS[family](scale))
    assert abs(rho.log_prob(x).exp().sum().item() * cell - 1) < 1e-4


@pytest.mark.parametrize(
    "kernel",
    [
        kdm.RBF(torch.tensor([[0.5], [0.8], [1.2]])),
        kdm.RBF(torch.tensor([[0.5, 1.0], [0.8, 0.6], [1.2, 0.7]])),
        kdm.RBF.from_metric(torch.tensor([[1.5, 0.0], [-0.8, 0.9]])),
    ],
    ids=["per-m", "per-md", "metric"],
)
def test_other_rbf_forms_integrate_to_one(kernel):
    x, cell = grid(-8, 8, 301, 2)
    rho = kdm.KDM(normal(3, 2, seed=0), simplex(3, seed=1), kernel)
    assert abs(rho.log_prob(x).exp().sum().item() * cell - 1) < 1e-6


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_categorical_sums_to_one(smoothing):
    codes, w = torch.tensor([0, 2, 2, 4]), simplex(4, seed=0)
    rho = kdm.KDM(codes, w, kdm.Categorical(5, smoothing))
    everything = rho.log_prob(torch.arange(5)).exp()
    assert everything.sum().item() == pytest.approx(1, abs=1e-6)
    same = torch.nn.functional.one_hot(codes, 5).double()
    wanted = w @ ((same + smoothing * (1 - same)) / (1 + 4 * smoothing))
    close(everything, wanted, rtol=1e-6)
    close(rho.probs, wanted, rtol=1e-6)


def test_projection_is_at_most_one_and_one_where_a_pure_state_is():
    for kernel in (kdm.RBF(0.4), kdm.Epanechnikov(0.7), kdm.Tricube(0.7), kdm.Cosine()):
        c = normal(6, 3, seed=0)
        rho = kdm.KDM(c, simplex(6, seed=1), kernel)
        x = torch.cat([c, normal(200, 3, seed=2)])
        assert (rho.projection(x) <= 1 + 1e-12).all()
        close(kdm.KDM.pure(c[0], kernel).projection(c[0]), real(1.0))
        log_norm = kernel.log_norm(c).double()
        close(rho.log_projection(x) + log_norm, rho.log_prob(x))


# ---- the paper's examples, propositions and theorem


def test_worked_examples_of_the_paper():
    p = torch.tensor([0.2, 0.3, 0.5])
    mixed, pure = kdm.KDM(torch.eye(3), p, kdm.Cosine()), kdm.KDM.pure(p.sqrt(), kdm.Cosine())
    for rho in (mixed, pure, kdm.KDM.from_probs(p)):
        close(rho.probs, p, rtol=1e-6)
        close(rho.log_prob(torch.eye(3)).exp(), p, rtol=1e-6)
        close(rho.log_prob(torch.arange(3)).exp(), p, rtol=1e-6)
    # They differ as density matrices: only ρ1 is a pure state.
    assert pure.purity().item() == pytest.approx(1)
    assert mixed.purity().item() == pytest.approx((p**2).sum().item())


@pytest.mark.parametrize("seed", range(3))
def test_proposition_1_for_any_orthogonal_basis(seed):
    c, w = normal(9, 4, seed=seed), simplex(9, seed=seed + 10)
    rho = kdm.KDM(c, w, kdm.Cosine())
    rotation = torch.linalg.qr(normal(4, 4, seed=seed + 20)).Q
    basis = rotation.mT * real([[0.1], [1.0], [7.0], [-3.0]])  # orthogonal, not normal
    unit = c / c.norm(dim=-1, keepdim=True)
    matrix = torch.einsum("j,ja,jb->ab", w, unit, unit)
    probabilities = rho.projection(basis)
    assert probabilities.sum().item() == pytest.approx(1, abs=1e-12)
    close(probabilities, (rotation.mT @ matrix @ rotation).diagonal())


def _truth(d):
    centres = torch.stack([torch.full((d,), -1.0), torch.full((d,), 1.5)]).double()
    return td.MixtureSameFamily(
        td.Categorical(real([0.4, 0.6])),
        td.Independent(td.Normal(centres, torch.full_like(centres, 0.7)), 1),
    )


def _parzen_error(d, count, sigma, kernel=kdm.RBF):
    """Mean absolute error of the density at fixed points, averaged over three data sets."""
    truth = _truth(d)
    x = normal(200, d, seed=99)
    errors = []
    for seed in range(3):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            samples = truth.sample((count,))
        estimate = kdm.KDM.from_samples(samples, kernel(sigma)).log_prob(x).exp()
        errors.append((estimate - truth.log_prob(x).exp()).abs().mean())
    return torch.stack(errors).mean().item()


@pytest.mark.parametrize("kernel", [kdm.RBF, kdm.Epanechnikov], ids=["rbf", "epanechnikov"])
@pytest.mark.parametrize("d", [1, 2])
def test_parzen_converges(d, kernel):
    width = 1.0 if kernel is kdm.RBF else 2.0
    counts = [200, 2000, 20_000]
    errors = [_parzen_error(d, n, width * n ** (-1 / (d + 4)), kernel) for n in counts]
    # The theory's rate is ℓ^(−2/(d+4)): a factor .40 (d=1) or .46 (d=2) for ten times the data.
    assert errors[1] < 0.65 * errors[0]
    assert errors[2] < 0.65 * errors[1]


def test_parzen_needs_more_samples_in_two_dimensions_than_the_paper_says():
    # ℓσ → ∞ holds, but ℓσ² = 1 does not grow: no convergence (NOTES §1).
    errors = [_parzen_error(2, n, n**-0.5) for n in (200, 20_000)]
    assert errors[1] > 0.7 * errors[0]


@pytest.mark.parametrize("kernel", ["cosine", "categorical"])
def test_categorical_analogue_of_parzen_converges(kernel):
    p = real([0.1, 0.2, 0.3, 0.4])
    errors = []
    for count in (100, 10_000, 1_000_000):
        labels = torch.multinomial(p, count, replacement=True, generator=seeded(1))
        if kernel == "cosine":
            rho = kdm.KDM.from_samples(torch.eye(4, dtype=torch.float64)[labels], kdm.Cosine())
        else:
            rho = kdm.KDM.from_samples(labels, kdm.Categorical(4))
        frequencies = torch.bincount(labels, minlength=4) / count
        close(rho.probs, frequencies, rtol=1e-4)
        errors.append((rho.probs - p).abs().max().item())
        assert errors[-1] < 3 / math.sqrt(count)
    assert errors[0] > errors[1] > errors[2]
