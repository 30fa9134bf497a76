"""Rows far away, wild values among the rows of a fit, constant targets: answers stay finite and sensible."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import kdmkit as kdm
from estimators.problems import Array, bags, blobs
from kdmkit.nn import Scaler

X, LABELS = blobs(60)
TARGETS = X[:, 0] + LABELS
ROWS, BAGS, PROPORTIONS, _ = bags(90)
SHORT: Any = {"max_epochs": 3, "random_state": 0}

MODELS: dict[str, Callable[[], Any]] = {
    "regressor": lambda: kdm.KDMRegressor(n_members=3, **SHORT).fit(X, TARGETS),
    "regressor, no trend": lambda: kdm.KDMRegressor(trend=None, **SHORT).fit(X, TARGETS),
    "regressor, mlp": lambda: kdm.KDMRegressor(encoder="mlp", **SHORT).fit(X, TARGETS),
    "classifier": lambda: kdm.KDMClassifier(n_members=3, **SHORT).fit(X, LABELS),
    "classifier, no trend": lambda: kdm.KDMClassifier(trend=None, **SHORT).fit(X, LABELS),
    "classifier, mlp": lambda: kdm.KDMClassifier(encoder="mlp", **SHORT).fit(X, LABELS),
    "classifier, nonparametric": lambda: kdm.KDMClassifier("nonparametric").fit(X, LABELS),
    "proportions": lambda: kdm.KDMProportionClassifier(**SHORT).fit(ROWS, BAGS, PROPORTIONS),
    "proportions, mlp": lambda: kdm.KDMProportionClassifier(encoder="mlp", **SHORT).fit(
        ROWS, BAGS, PROPORTIONS
    ),
    "proportions, raw": lambda: kdm.KDMProportionClassifier(encoder="mlp", standardize=False, **SHORT).fit(
        ROWS, BAGS, PROPORTIONS
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_rows_far_away_have_finite_answers(name: str, tmp_path: Any) -> None:
    model = MODELS[name]()
    d = model.n_features_in_
    near = np.zeros((1, d))
    far = np.array(
        [[size if i in (k, 0) else 0.0 for i in range(d)] for k in range(2) for size in (1e30, -1e200)]
    )
    kdm.save(model, tmp_path / "model.kdm")
    for fitted in (model, kdm.load(tmp_path / "model.kdm")):
        answers = np.concatenate([_answers(fitted, rows) for rows in (near, far)])
        assert np.isfinite(answers).all()
        assert np.abs(answers).max() < 1e3 * (1 + np.abs(answers[0]).max())


def _answers(model: Any, rows: Array) -> Array:
    if not isinstance(model, kdm.KDMRegressor):
        probs = model.predict_proba(rows)
        np.testing.assert_allclose(probs.sum(1), 1)
        return probs
    mean, std = model.predict(rows, return_std=True)
    low, high = model.predict_interval(rows).T
    assert (low < mean).all()
    assert (mean < high).all()
    assert bool(model.predict_dist(rows).log_prob(torch.tensor(mean)[:, None]).isfinite().all())
    return np.column_stack([mean, std, low, high])


def test_an_encoder_without_answers_is_an_error() -> None:
    encoder = nn.Sequential(nn.Linear(X.shape[1], 4), nn.LayerNorm(4))
    model = kdm.KDMClassifier(encoder=encoder, **SHORT).fit(X.astype(np.float32), LABELS)
    with pytest.raises(ValueError, match="X: expected rows for which the encoder's outputs are finite"):
        model.predict_proba(np.full_like(X, 1e38, dtype=np.float32))


@pytest.mark.parametrize("settings", [{}, {"encoder": "mlp"}, {"trend": None}])
@pytest.mark.parametrize("value", [0.0, 5.0, -1e6])
def test_a_constant_target_has_a_tiny_spread(value: float, settings: dict[str, Any]) -> None:
    model = kdm.KDMRegressor(**settings, **SHORT).fit(X, np.full(len(X), value))
    mean, std = model.predict(X, return_std=True)
    low, high = model.predict_interval(X).T
    size = max(abs(value), 1.0)
    np.testing.assert_allclose(mean, value, atol=1e-6 * size)
    assert std.max() < 1e-5 * size
    assert (low <= value).all()
    assert (value <= high).all()


def _wave(n: int, seed: int, noise: str = "normal") -> tuple[Array, Array, Array]:
    """Rows, targets and the targets without noise."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, (n, 1))
    truth = 2 * np.sin(2 * x[:, 0])
    return x, truth + 0.2 * getattr(rng, noise)(size=n), truth


def _held(model: Any, x: Array, y: Array) -> float:
    low, high = model.predict_interval(x).T
    return float(np.mean((low <= y) & (y <= high)))


@pytest.mark.parametrize("settings", [{}, {"encoder": "mlp"}, {"trend": None}])
def test_one_wild_input_does_not_spoil_a_fit(settings: dict[str, Any]) -> None:
    x, y, _ = _wave(201, 0)
    x[0] = 1e6
    model = kdm.KDMRegressor(n_members=4, max_epochs=60, random_state=0, **settings).fit(x, y)
    x_test, y_test, truth = _wave(300, 1)
    assert np.corrcoef(model.predict(x_test), truth)[0, 1] > 0.97
    assert _held(model, x_test, y_test) > 0.83


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 2])
def test_noise_without_a_variance_does_not_bend_the_trend(seed: int) -> None:
    x, y, _ = _wave(300, seed, "standard_cauchy")
    model = kdm.KDMRegressor(n_members=4, max_epochs=60, random_state=0).fit(x, y)
    x_test, y_test, truth = _wave(500, 5, "standard_cauchy")
    trend = model.module_.trend(torch.tensor(x_test))[0][:, 0].numpy()
    assert np.corrcoef(trend, truth)[0, 1] > 0.97
    assert np.corrcoef(model.predict_quantiles(x_test, [0.5])[:, 0], truth)[0, 1] > 0.97
    assert 0.85 < _held(model, x_test, y_test) < 0.96


def test_a_few_wild_rows_do_not_narrow_the_intervals_of_all() -> None:
    """Members disagree about wild rows, and residuals are shared out between noise and disagreement."""
    rng = np.random.default_rng(0)
    centres, offsets = rng.normal(size=(40, 3)), rng.normal(size=40)

    def rows(n: int) -> tuple[Array, Array]:
        family = rng.integers(40, size=n)
        return centres[family] + 0.01 * rng.normal(size=(n, 3)), offsets[family] + 0.3 * rng.normal(size=n)

    (x, y), (x_test, y_test) = rows(400), rows(500)
    x[:3] = [[60.0, 0.0, 0.0], [0.0, -50.0, 0.0], [0.0, 60.0, 0.0]]
    model = kdm.KDMRegressor(n_members=6, max_epochs=15, random_state=0).fit(x, y)
    assert model.module_.trend.memory is not None
    assert 0.88 < _held(model, x_test, y_test) < 0.97


def test_scales_of_columns() -> None:
    """One wrong number does not change a scale; columns without any keep the plain standard deviation."""
    rng = np.random.default_rng(0)
    columns = {
        "normal": rng.normal(size=300),
        "skewed": rng.exponential(size=300),
        "rare": (rng.random(300) < 0.02).astype(float),
        "zeros and others": np.where(rng.random(300) < 0.06, rng.integers(1, 17, 300), 0.0),
    }
    table = torch.tensor(np.column_stack(list(columns.values())))
    torch.testing.assert_close(Scaler.from_data(table).scale, table.std(0, unbiased=False))
    wrong = table.clone()
    wrong[0, :2] = 1e9
    ratio = Scaler.from_data(wrong).scale / table.std(0, unbiased=False)
    assert bool((ratio[:2] < 1.6).all())
    weights = torch.ones(300, dtype=torch.float64)
    weights[5] = 2
    again = Scaler.from_data(torch.cat([wrong, wrong[5:6]]))
    torch.testing.assert_close(Scaler.from_data(wrong, weights).scale, again.scale)


def test_standardised_values_beyond_the_limit_are_compressed() -> None:
    scaler = Scaler(torch.zeros(1), torch.ones(1), limit=5.0)
    x = torch.tensor([[0.5], [-5.0], [5.001], [10.0], [-1e200]], dtype=torch.float64, requires_grad=True)
    z = scaler(x)
    wanted = torch.tensor([0.5, -5, 5.001, 7.5, -10], dtype=torch.float64)
    torch.testing.assert_close(z[:, 0].detach(), wanted, rtol=1e-6, atol=0)
    z.sum().backward()
    torch.testing.assert_close(x.grad[:3, 0], torch.ones(3).double(), rtol=1e-3, atol=0)
    assert bool(x.grad.isfinite().all())
