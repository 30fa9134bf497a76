"""Densities: exactness of the non-parametric one, quality of the learned one."""

import math
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special, stats
from sklearn.neighbors import KernelDensity

import kdmkit as kdm
from estimators.problems import moons
from kdmkit.estimators.common.leave_one_out import choose_sigma, held_out_loss


def quick(**parameters: Any) -> kdm.KDMDensity:
    return kdm.KDMDensity(method="likelihood", max_epochs=40, random_state=0, **parameters)


@pytest.mark.parametrize("weighted", [False, True])
def test_nonparametric_is_kernel_density(weighted: bool) -> None:
    X, _ = moons(200)
    weights = np.random.default_rng(1).random(200) if weighted else None
    points = np.random.default_rng(0).normal(size=(50, 2)) * 2
    peer = KernelDensity(bandwidth=0.3).fit(X, sample_weight=weights)
    model = kdm.KDMDensity(sigma=math.sqrt(2) * 0.3).fit(X, sample_weight=weights)
    # Its tree sums with less care: seven digits in the tails.
    np.testing.assert_allclose(model.score_samples(points), peer.score_samples(points), rtol=1e-6)
    share = np.full(200, 1 / 200) if weights is None else weights / weights.sum()
    squares = ((points[:, None] - X) ** 2).sum(-1) / (2 * 0.3**2)
    wanted = special.logsumexp(np.log(share) - squares - math.log(2 * math.pi * 0.3**2), axis=1)
    np.testing.assert_allclose(model.score_samples(points), wanted, rtol=1e-12)
    assert model.score(points) == pytest.approx(wanted.mean())


@pytest.mark.parametrize("parameters", [{}, {"sigma": 0.05}, {"method": "likelihood", "max_epochs": 2}])
def test_scores_with_a_stated_error(parameters: dict[str, Any]) -> None:
    X, _ = moons(600)
    model = kdm.KDMDensity(random_state=0, **parameters).fit(X)
    exact, result = model.score_samples(X), model.score_samples(X, rtol=1e-3)
    assert (exact - result).min() > -1e-9
    assert 0 <= (exact - result).max() < 1e-3
    copied = pickle.loads(pickle.dumps(model))
    assert copied._prepared is None
    np.testing.assert_array_equal(copied.score_samples(X, rtol=1e-3), result)
    model.fit(X[:300])
    refitted = model.score_samples(X, rtol=1e-3)
    np.testing.assert_allclose(refitted, model.score_samples(X), atol=1e-3)


@pytest.mark.parametrize("rule", ["scott", "silverman"])
def test_rules_of_thumb_are_those_of_scipy(rule: str) -> None:
    X = np.random.default_rng(0).normal(size=(300, 1)) * 4
    peer = stats.gaussian_kde(X.T, bw_method=rule)
    model = kdm.KDMDensity(sigma=rule).fit(X)
    # SciPy divides the variance by n − 1.
    sigma = math.sqrt(2 * peer.covariance.item() * 299 / 300)
    assert model.kdm_.kernel.sigma.item() == pytest.approx(sigma)


def test_leave_one_out_beats_the_rule_of_thumb_on_two_modes() -> None:
    rng = np.random.default_rng(0)

    def draw(n: int) -> Any:
        return rng.choice([-10.0, 10.0], n)[:, None] + 0.5 * rng.normal(size=(n, 1))

    X, held_out = draw(300), draw(1000)
    thumb, loo = (kdm.KDMDensity(sigma=rule).fit(X).score(held_out) for rule in ("scott", "loo"))
    assert loo > thumb + 0.3
    best = max(kdm.KDMDensity(sigma=s).fit(X).score(held_out) for s in np.geomspace(0.05, 5, 40))
    assert loo > best - 0.05


def test_leave_one_out_by_descent_is_leave_one_out() -> None:
    X, _ = moons(150)
    whole = kdm.KDMDensity(sigma="loo").fit(X).kdm_.kernel.sigma.item()
    x, w = torch.from_numpy(X), torch.ones(150).double()
    assert choose_sigma("loo", x, w, most_pairs=1000) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("labelled", [False, True])
def test_the_loss_of_a_bandwidth_is_that_of_the_other_rows(weighted: bool, labelled: bool) -> None:
    """−Σ_i w_i log p, by Gaussians about all rows but the i-th."""
    generator = torch.Generator().manual_seed(0)
    x, labels = torch.randn(60, 3, generator=generator), torch.arange(60) % 4
    labels[0] = 9  # the only row with its label
    w = torch.randint(1, 4, (60,), generator=generator).double() if weighted else torch.ones(60).double()
    rows = torch.arange(0, 60, 7)
    for sigma in (0.05, 0.4, 3.0):
        scores = -torch.cdist(x.double(), x.double()).square() / sigma**2 + w.log()
        scores[range(60), range(60)] = -torch.inf
        log_p = scores.logsumexp(1) - 3 * math.log(sigma)
        if labelled:
            same = scores.masked_fill(labels[:, None] != labels, -torch.inf).logsumexp(1)
            log_p = torch.where(torch.isneginf(same), 0.0, same - scores.logsumexp(1))
        result = held_out_loss(x, w, labels if labelled else None, rows, sigma)
        assert result == pytest.approx(-float((w * log_p)[rows].sum()), rel=1e-4, abs=1e-4)


@pytest.mark.slow
def test_many_rows_choose_the_bandwidth_of_the_whole_grid() -> None:
    """Fewer rows and a descent in place of the grid: the same bandwidth, at most 3 % off."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5000, 4))
    quick = kdm.KDMDensity(sigma="loo").fit(X).kdm_.kernel.sigma.item()
    x, w = torch.from_numpy(X), torch.ones(5000).double()
    assert quick == pytest.approx(choose_sigma("loo", x, w, most_pairs=1 << 30), rel=0.031)


@pytest.mark.slow
def test_a_fit_in_many_dimensions_takes_little_memory() -> None:
    """600 × 64: the differences of all pairs would take 180 MB."""
    code = (
        "import resource, numpy as np, kdmkit as kdm\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024\n"
        "rng = np.random.default_rng(0)\n"
        "kdm.KDMDensity().fit(rng.normal(size=(20, 3)))\n"
        "X, before = rng.normal(size=(600, 64)), peak()\n"
        "kdm.KDMDensity().fit(X)\n"
        "assert peak() - before < 30, peak() - before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_likelihood_beats_one_gaussian() -> None:
    X, _ = moons(1000)
    held_out, _ = moons(2000, seed=1)
    gaussian = stats.multivariate_normal(X.mean(0), np.cov(X.T)).logpdf(held_out).mean()
    assert quick().fit(X).score(held_out) > gaussian + 0.2


@pytest.mark.parametrize("covariance", ["spherical", "diag", "full"])
@pytest.mark.parametrize("d", [1, 2])
def test_likelihood_integrates_to_one_in_the_units_of_the_data(covariance: str, d: int) -> None:
    rng = np.random.default_rng(0)
    scale = np.array([50.0, 0.02])[:d] if covariance != "spherical" else np.full(d, 50.0)
    X = 1000 + scale * (rng.normal(size=(300, d)) + 2 * rng.integers(2, size=(300, 1)))
    model = kdm.KDMDensity(method="likelihood", covariance=covariance, max_epochs=5, random_state=0).fit(X)
    # Wide enough for the components, fine enough for their bandwidths.
    axes = [1000 + s * np.linspace(-8, 10, 4001 if d == 1 else 361) for s in scale]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, d)
    cell = np.prod([axis[1] - axis[0] for axis in axes])
    assert np.exp(model.score_samples(grid)).sum() * cell == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("covariance", ["diag", "full"])
def test_units_do_not_matter(covariance: str) -> None:
    X, _ = moons(300)
    scale, shift = np.array([1e4, 1e-3]), np.array([1e6, -5.0])
    plain = quick(covariance=covariance).fit(X).score_samples(X)
    moved = quick(covariance=covariance).fit(X * scale + shift).score_samples(X * scale + shift)
    np.testing.assert_allclose(moved + np.log(scale).sum(), plain, atol=1e-2)


def test_draws_follow_the_density() -> None:
    X, _ = moons(500)
    for model in (kdm.KDMDensity().fit(X), quick().fit(X)):
        drawn = model.sample(20_000, random_state=0)
        rho = model.kdm_
        np.testing.assert_allclose(drawn.mean(0), rho.mean, atol=0.03)
        np.testing.assert_allclose(drawn.var(0), rho.variance, rtol=0.05)


def test_streams_of_draws() -> None:
    X, _ = moons(50)
    first, second = (kdm.KDMDensity(random_state=0).fit(X) for _ in range(2))
    a, b = first.sample(5), first.sample(5)
    assert not np.array_equal(a, b)
    assert np.array_equal(a, second.sample(5))
    assert np.array_equal(b, second.sample(5))
    assert np.array_equal(first.sample(5, random_state=3), second.sample(5, random_state=3))


def test_the_fitted_kdm_says_the_same_and_checks_values() -> None:
    X, _ = moons(100)
    model = quick().fit(X)

    np.testing.assert_allclose(model.kdm_.log_prob(torch.from_numpy(X)), model.score_samples(X))
    with pytest.raises(ValueError, match="value: expected finite values"):
        model.kdm_.log_prob(torch.full((1, 2), math.nan))


def test_bandwidths_stay_above_zero() -> None:
    """Maximum likelihood would put components on repeated samples and let σ go to zero."""
    X = np.repeat(np.random.default_rng(0).normal(size=(20, 2)), 10, 0)
    model = kdm.KDMDensity(
        method="likelihood", n_components=20, max_epochs=100, patience=None, random_state=0
    )
    assert model.fit(X).score(X) < 5


@pytest.mark.parametrize("method", ["nonparametric", "likelihood"])
@pytest.mark.parametrize(
    "X",
    [
        np.zeros((1, 2)),
        np.array([[1.0, 2.0], [1.0, 2.0]]),
        np.full((30, 2), 1e9),
        np.column_stack([np.full(30, 7.0), np.arange(30.0)]),
        np.array([[0.0, 1e-12], [1.0, 2e-12], [2.0, 0.0]]),
    ],
    ids=["one row", "two alike", "constant", "constant column", "tiny column"],
)
def test_degenerate_data_have_finite_densities(method: Any, X: Any) -> None:
    model = kdm.KDMDensity(method=method, max_epochs=3, random_state=0).fit(X)
    assert np.isfinite(model.score_samples(X)).all()
    assert np.isfinite(model.sample(3)).all()


def test_a_number_is_where_the_likelihood_starts() -> None:
    X, _ = moons(300)
    narrow, wide = (
        kdm.KDMDensity(method="likelihood", sigma=s, max_epochs=1, random_state=0).fit(X) for s in (0.3, 3.0)
    )
    assert narrow.kdm_.kernel.std.mean() < 0.5 * wide.kdm_.kernel.std.mean()


def test_changes_of_the_fitted_kdm_do_not_reach_the_estimator() -> None:
    X, _ = moons(100)
    model = kdm.KDMDensity(sigma=0.3).fit(X)
    before = model.score_samples(X)
    model.kdm_.kernel.sigma = 2.0
    np.testing.assert_array_equal(model.score_samples(X), before)


def test_fitted_and_loaded_densities_are_prepared(tmp_path):
    X = np.random.default_rng(0).normal(size=(30, 2))
    model = kdm.KDMDensity(sigma=0.5).fit(X)
    assert model.module_._prepares
    wanted = model.score_samples(X)
    assert model.module_._prepared is not None
    kdm.save(model, tmp_path / "model")
    loaded = kdm.load(tmp_path / "model")
    assert loaded.module_._prepares
    assert (loaded.score_samples(X) == wanted).all()
