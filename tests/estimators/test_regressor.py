"""Regression: calibrated intervals, exact quantiles, targets of any scale."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import kdmkit as kdm
from estimators.problems import Array, bimodal, heteroscedastic


@pytest.fixture(scope="module", params=[heteroscedastic, bimodal], ids=["heteroscedastic", "bimodal"])
def fitted(request: pytest.FixtureRequest) -> Any:
    X, y = request.param(2000, seed=0)
    model = kdm.KDMRegressor(max_epochs=30, n_components=128, batch_size=128, random_state=0).fit(X, y)
    return model, *request.param(2000, seed=1)


def wave(n: int = 300, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 1))
    return X, np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=n)


def quick(**parameters: Any) -> kdm.KDMRegressor:
    return kdm.KDMRegressor(**{"max_epochs": 15, "random_state": 0, **parameters})


def test_intervals_cover_what_they_say(fitted: Any) -> None:
    model, X, y = fitted
    low, high = model.predict_interval(X, coverage=0.9).T
    assert 0.87 < kdm.metrics.interval_coverage(low, high, y) < 0.93
    quantiles = np.array([0.25, 0.5])
    below = y[:, None] <= model.predict_quantiles(X, quantiles)
    np.testing.assert_allclose(below.mean(0), quantiles, atol=0.06)


def test_quantiles_invert_the_distribution_function(fitted: Any) -> None:
    model, X, _ = fitted
    rho = model.predict_dist(X[:50])
    q = torch.tensor([1e-4, 0.01, 0.3, 0.5, 0.9, 1 - 1e-4], dtype=torch.float64).unsqueeze(-1)
    x = rho.icdf(q)
    assert x.dtype == torch.float64
    torch.testing.assert_close(rho.cdf(x), q.expand(-1, 50), rtol=1e-9, atol=0)
    torch.testing.assert_close(rho.icdf(rho.cdf(x)), x, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(model.predict_quantiles(X[:50], q.flatten()), x.squeeze(-1).mT, atol=1e-9)


def test_moments_are_those_of_the_distribution(fitted: Any) -> None:
    model, X, _ = fitted
    mean, std = model.predict(X[:100], return_std=True)
    rho = model.predict_dist(X[:100])
    np.testing.assert_allclose(mean, rho.mean.squeeze(-1))
    np.testing.assert_allclose(std, rho.stddev.squeeze(-1))
    np.testing.assert_array_equal(mean, model.predict(X[:100]))


def test_densities_integrate_to_one(fitted: Any) -> None:
    model, X, _ = fitted
    grid = torch.linspace(-8, 8, 8001, dtype=torch.float64)
    density = model.predict_dist(X[:3]).log_prob(grid.view(-1, 1, 1)).exp()
    torch.testing.assert_close(torch.trapezoid(density, grid, dim=0), torch.ones(3, dtype=torch.float64))
    points = np.linspace(-12, 12, 6001)[:, None]
    assert np.trapezoid(np.exp(model.score_samples(points)), points[:, 0]) == pytest.approx(1, abs=1e-3)


def test_draws_follow_the_distribution(fitted: Any) -> None:
    model, X, _ = fitted
    drawn = model.sample_y(X[:20], 4000, random_state=0)
    assert drawn.shape == (20, 4000)
    mean, std = model.predict(X[:20], return_std=True)
    np.testing.assert_allclose(drawn.mean(1), mean, atol=0.12)
    np.testing.assert_allclose(drawn.std(1), std, rtol=0.1)
    assert not np.array_equal(model.sample_y(X[:2]), model.sample_y(X[:2]))


def test_the_bimodal_answer_has_two_modes() -> None:
    X, y = bimodal(600, seed=0)
    rho = quick(max_epochs=30).fit(X, y).predict_dist(np.zeros((1, 1)))
    at = rho.log_prob(torch.tensor([[-1.2], [0.0], [1.2]], dtype=torch.float64).unsqueeze(1)).exp().flatten()
    assert at[0] > 10 * at[1]
    assert at[2] > 10 * at[1]


def test_squared_error_learns_the_mean() -> None:
    X, y = wave()
    model = quick(loss="mse", max_epochs=30).fit(X, y)
    assert model.score(X, y) > 0.97
    assert quick(loss="mse", generative_weight=0.1).fit(X, y).score(X, y) > 0.9


def test_several_outputs() -> None:
    X, y = wave(400)
    Y = np.column_stack([y, 1e5 * (X[:, 0] + 0.1 * y) + 3])
    model = quick(max_epochs=30).fit(X, Y)
    assert model.score(X, Y) > 0.9
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == (400, 2)
    assert model.sample_y(X, 7).shape == (400, 2, 7)
    assert model.predict_dist(X).event_shape == (2,)
    quantiles = model.predict_quantiles(X, [0.05, 0.5, 0.95])
    assert quantiles.shape == (400, 2, 3)
    inside = (Y >= quantiles[..., 0]) & (Y <= quantiles[..., 2])
    assert (inside.mean(0) > 0.85).all()
    # By the law of total probability the marginal is a mixture of the same weights.
    # Rows one by one, for each has bandwidths of its own.
    for row, output in itertools.product(range(5), range(2)):
        rho = model.predict_dist(X[row : row + 1])
        kernel = rho.kernel
        part = slice(output, output + 1)
        marginal = kdm.KDM(
            rho.components[..., part], None, kdm.RBF(kernel.sigma[0, :, part]), log_weights=rho.log_weights
        )
        wanted = marginal.icdf(torch.tensor([0.05], dtype=torch.float64)).flatten()
        # The trend is in float32, whose rounding depends on how many rows are asked for at once.
        np.testing.assert_allclose(quantiles[row : row + 1, output, 0], wanted, rtol=1e-6)


def test_a_column_of_targets_keeps_its_shape() -> None:
    X, y = wave(60)
    model = quick(max_epochs=2).fit(X, y[:, None])
    assert model.predict(X).shape == (60, 1)
    assert model.predict_interval(X).shape == (60, 1, 2)
    assert model.sample_y(X, 3).shape == (60, 1, 3)
    assert np.array_equal(model.predict(X)[:, 0], quick(max_epochs=2).fit(X, y).predict(X))


@pytest.mark.parametrize(("scale", "shift"), [(1e6, 0.0), (1.0, 1e9), (1e-6, 1.0)])
def test_targets_of_any_scale(scale: float, shift: float) -> None:
    X, y = wave()
    plain, moved = quick().fit(X, y), quick().fit(X, scale * y + shift)
    (mean, std), (far_mean, far_std) = (m.predict(X, return_std=True) for m in (plain, moved))
    np.testing.assert_allclose((far_mean - shift) / scale, mean, atol=2e-2)
    # Rounding of far targets may move a row from one cluster to the next.
    np.testing.assert_allclose(far_std / scale, std, rtol=0.1)
    interval = (moved.predict_interval(X) - shift) / scale
    np.testing.assert_allclose(interval, plain.predict_interval(X), atol=4e-2)


def test_inputs_of_any_scale() -> None:
    X, y = wave()
    moved = X * 1e-3 + 1e5
    first, second = quick().fit(X, y).predict(X), quick().fit(moved, y).predict(moved)
    np.testing.assert_allclose(second, first, atol=2e-2)


def test_constant_targets() -> None:
    X, _ = wave(100)
    model = quick().fit(X, np.full(100, 42.0))
    mean, std = model.predict(X, return_std=True)
    np.testing.assert_allclose(mean, 42)
    assert (std < 1).all()
    assert np.isfinite(model.predict_interval(X)).all()


def test_repeated_rows_and_targets() -> None:
    X = np.repeat(np.arange(5.0), 30)[:, None]
    y = np.repeat([0, 1, 2, 1, 0], 30)
    model = quick(max_epochs=30).fit(X, y)
    assert model.score(X, y) > 0.9
    # Integer targets are no excuse for spikes of any height.
    assert model.predict_dist(X).log_prob(torch.from_numpy(y).double()[:, None]).max() < 5


@pytest.mark.parametrize("n", [1, 2, 10])
def test_few_samples(n: int) -> None:
    X, y = wave(n)
    model = quick().fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    assert (np.diff(model.predict_interval(X)) > 0).all()


def test_strange_inputs_have_low_densities() -> None:
    X, y = wave()
    model = quick().fit(X, y)
    assert model.score_samples([[30.0]])[0] < model.score_samples(X).min() - 50
    assert np.isfinite(model.predict([[1e6]])).all()
