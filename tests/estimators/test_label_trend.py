"""Classifiers about a trend: the formula, its parts, draws, and noisy tables."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

import kdmkit as kdm
from estimators.problems import Array, blobs
from kdmkit.estimators.classification.logits import draw_given_label
from kdmkit.estimators.common.cross_fit import held_out
from kdmkit.nn.trend import tilted_log_probs


def noisy_line(n: int, d: int = 8, seed: int = 0) -> tuple[Array, Array]:
    """Labels of a logistic model: nothing but a linear function can be learned."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    p = 1 / (1 + np.exp(-X @ np.linspace(-1, 1, d)))
    return X, (rng.random(n) < p).astype(int)


def checkerboard(n: int, seed: int = 0) -> tuple[Array, Array]:
    """Labels of many small squares: near rows say more than any smooth function."""
    X = np.random.default_rng(seed).uniform(0, 6, (n, 2))
    return X, (np.floor(X).sum(1) % 2).astype(int)


@pytest.fixture(scope="module")
def linear() -> Any:
    return kdm.KDMClassifier(max_epochs=60, random_state=0).fit(*noisy_line(300))


@pytest.fixture(scope="module")
def remembering() -> Any:
    return kdm.KDMClassifier(max_epochs=10, random_state=0).fit(*checkerboard(700))


def by_hand(model: Any, X: Array) -> Array:
    """(1 − v)·Σ_j w_j·softmax(t + c_j) + v·q in NumPy; rows, components and labels one by one."""
    layer, trend = model.module_.layer, model.module_.trend
    z = (X - trend.x.shift.numpy()) / trend.x.scale.numpy()
    z = z / np.sqrt(1 + (z / 5) ** 2)
    with torch.no_grad():
        t = trend.ensemble(torch.from_numpy(z)).mean(1).numpy()
    t = t * float(trend.inverse_temperature)
    sigma, centres = layer.kernel("x").sigma.detach().numpy(), layer.components["x"].detach().numpy()
    scores = layer.logits.detach().numpy() - (((X[:, None] - centres) / sigma) ** 2).sum(-1)
    w = np.exp(scores - scores.max(1, keepdims=True))
    w /= w.sum(1, keepdims=True)
    tilted = np.exp(t[:, None] + trend.offsets.numpy())
    answers = (w[..., None] * tilted / tilted.sum(-1, keepdims=True)).sum(1)
    if trend.memory is None:
        return answers
    rows, labels = trend.memory.rows.numpy(), trend.memory.residuals.numpy()
    k = np.exp(-((z[:, None] - rows) ** 2).sum(-1) / float(trend.memory.sigma) ** 2)
    b = float(trend.memory.background)
    return (b * answers + k @ labels) / (b + k.sum(1, keepdims=True))


@pytest.mark.parametrize("name", ["linear", "remembering"])
def test_answers_are_those_of_the_formula(name: str, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(name)
    X = noisy_line(40, seed=3)[0] if name == "linear" else checkerboard(40, seed=3)[0]
    np.testing.assert_allclose(model.predict_proba(X), by_hand(model, X), atol=1e-9)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), model.predict_proba(X), atol=1e-12)


def test_a_noisy_table_is_not_overfitted(linear: Any) -> None:
    X, y = noisy_line(300)
    X_test, y_test = noisy_line(4000, seed=1)
    logistic = log_loss(y_test, LogisticRegression().fit(X, y).predict_proba(X_test))
    assert log_loss(y_test, linear.predict_proba(X_test)) < logistic + 0.01
    plain = kdm.KDMClassifier(trend=None, random_state=0).fit(X, y)
    assert log_loss(y_test, plain.predict_proba(X_test)) > logistic + 0.02


def test_rows_are_remembered_where_that_helps(linear: Any, remembering: Any) -> None:
    assert linear.module_.trend.memory is None
    assert remembering.module_.trend.memory is not None
    X, y = checkerboard(2000, seed=1)
    forgetting = kdm.KDMClassifier(max_epochs=10, memory=False, random_state=0).fit(*checkerboard(700))
    assert log_loss(y, remembering.predict_proba(X)) < 0.8 * log_loss(y, forgetting.predict_proba(X))


def test_far_rows_have_finite_answers(linear: Any) -> None:
    X = np.array([1e3, -1e30, 1e300])[:, None] * np.ones(8)
    assert np.isfinite(linear.predict_log_proba(X)).all()
    np.testing.assert_allclose(linear.predict_proba(X).sum(1), 1)
    assert (linear.score_samples(X) < -1e3).all()


def test_gradients_reach_the_rows(remembering: Any) -> None:
    X = torch.from_numpy(np.r_[checkerboard(5, seed=2)[0], [[1e4, 1e4]]]).requires_grad_()
    remembering.module_(X).log_prob(torch.zeros(6, dtype=torch.long)).sum().backward()
    assert X.grad is not None
    assert bool(torch.isfinite(X.grad).all())
    assert float(X.grad[:5].abs().sum()) > 0


def test_the_answer_keeps_its_evidence(linear: Any) -> None:
    X = torch.from_numpy(noisy_line(7, seed=5)[0])
    rho = linear.module_(X)
    np.testing.assert_allclose(rho.log_evidence.detach(), linear.score_samples(X.numpy()))
    np.testing.assert_allclose(rho.to(torch.float64).log_evidence.detach(), rho.log_evidence.detach())


def test_the_joint_has_the_models_labels_at_its_components(linear: Any) -> None:
    joint = linear.joint_
    trend = linear.module_.trend
    wanted = (trend(joint.components["x"])[0] + trend.offsets).softmax(-1)
    np.testing.assert_allclose(joint.components["y"].square(), wanted, atol=1e-12)
    X = noisy_line(20, seed=6)[0]
    np.testing.assert_allclose(
        joint.marginal("x").log_prob(torch.from_numpy(X)), linear.score_samples(X), rtol=1e-9
    )


def test_draws_given_a_label_are_those_of_the_model() -> None:
    """Quadrature in one dimension: p(x|y) ∝ p(x)·p(y|x)."""
    X, y = blobs(200, 1)
    model = kdm.KDMClassifier(max_epochs=20, random_state=0).fit(X, y)
    grid = np.linspace(X.min() - 6, X.max() + 6, 4001)[:, None]
    density = np.exp(model.score_samples(grid)) * model.predict_proba(grid)[:, 1]
    cumulative = np.cumsum(density) / density.sum()
    drawn = np.sort(model.sample(4000, y=1, random_state=0)[:, 0])
    levels = np.interp(drawn, grid[:, 0], cumulative)
    # The Kolmogorov-Smirnov distance of 4,000 draws exceeds 1.95/√4000 with probability .001.
    assert np.abs(levels - (np.arange(4000) + 0.5) / 4000).max() < 1.95 / np.sqrt(4000)


def test_draws_given_a_distribution_over_labels() -> None:
    X, y = blobs(150)
    model = kdm.KDMClassifier(max_epochs=15, random_state=0).fit(X, y)
    drawn = model.sample(1000, y=[0.2, 0.8], random_state=0)
    assert model.predict_proba(drawn)[:, 1].mean() == pytest.approx(0.8, abs=0.05)


def draws(model: Any, label: int, **options: int) -> np.ndarray:
    """2000 draws from p(x|y)."""
    probs, generator = torch.eye(2).double()[label], torch.Generator().manual_seed(0)
    with torch.no_grad():
        return draw_given_label(model.module_, probs, 2000, 1.0, generator, **options).numpy()


def test_many_draws_are_all_different() -> None:
    X, y = blobs(60)
    model = kdm.KDMClassifier(max_epochs=3, random_state=0).fit(X, y)
    assert len(np.unique(draws(model, 0, proposals=64, rounds=3), axis=0)) == 2000


@pytest.mark.slow
def test_draws_of_a_label_that_hardly_occurs() -> None:
    """They are chosen by importance: nearly p(x|y), again by quadrature."""
    X, y = blobs(200, 1)
    model = kdm.KDMClassifier(max_epochs=20, random_state=0).fit(X, y)
    grid = np.linspace(X.min() - 6, X.max() + 6, 4001)[:, None]
    density = np.exp(model.score_samples(grid)) * model.predict_proba(grid)[:, 1]
    drawn = np.sort(draws(model, 1, proposals=16, rounds=1, fewest=10**6)[:, 0])
    levels = np.interp(drawn, grid[:, 0], np.cumsum(density) / density.sum())
    assert np.abs(levels - (np.arange(2000) + 0.5) / 2000).max() < 0.05


def test_one_wild_value_does_not_spoil_the_density() -> None:
    X, y = noisy_line(200, d=3)
    X_test = noisy_line(200, d=3, seed=1)[0]
    usual = kdm.KDMClassifier(max_epochs=20, random_state=0).fit(X, y).score_samples(X_test).mean()
    for wild in (1e5, 1e12, 1e45):
        X[3, 0] = wild
        scores = kdm.KDMClassifier(max_epochs=20, random_state=0).fit(X, y).score_samples(X_test)
        # A component is spent on the row, and bandwidths are a little wider.
        assert scores.mean() == pytest.approx(usual, abs=1.5)


def test_very_unequal_weights() -> None:
    X, y = blobs(60)
    X, y = np.repeat(X[:6], 10, 0), np.repeat(np.arange(6) % 2, 10)
    weights = np.where(np.arange(60) % 10 == 0, 1.0, 1e-17)
    model = kdm.KDMClassifier(max_epochs=3, random_state=0).fit(X, y, sample_weight=weights)
    assert np.isfinite(model.predict_log_proba(X)).all()


@pytest.mark.parametrize("parameters", [{"sigma": "loo"}, {"n_components": 0}, {"n_members": 1}])
def test_parameters_are_checked_before_anything_is_fitted(
    parameters: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_late(*_: Any, **__: Any) -> None:
        raise AssertionError("the ensemble was fitted first")

    monkeypatch.setattr("kdmkit.estimators.classification.classifier.fit_about_trend", too_late)
    with pytest.raises(ValueError, match=next(iter(parameters))):
        kdm.KDMClassifier(**parameters).fit(*blobs(60))


def test_tilted_probabilities_do_not_underflow() -> None:
    logits = torch.tensor([[0.0, -2000.0]], dtype=torch.float64)
    offsets = torch.tensor([[0.3, 0.0], [-1.0, 2.0]], dtype=torch.float64)
    result = tilted_log_probs(torch.tensor([[0.25, 0.75]], dtype=torch.float64), logits, offsets)
    wanted = np.logaddexp(np.log(0.25) - 2000.3, np.log(0.75) - 1997.0)
    np.testing.assert_allclose(result[0], [0.0, wanted], atol=1e-9)


def test_parts_have_the_same_label_proportions() -> None:
    labels = (torch.arange(400) % 10 == 0).long()
    left_out = held_out(400, 5, torch.Generator().manual_seed(0), labels)
    assert left_out.sum(1).tolist() == [2] * 400
    assert left_out[labels == 1].sum(0).tolist() == [16] * 5


def test_fits_that_have_no_trend() -> None:
    X, y = blobs(60)
    for parameters in (
        {"trend": None},
        {"encoder": "mlp"},
        {"method": "likelihood"},
        {"method": "nonparametric"},
    ):
        assert kdm.KDMClassifier(max_epochs=1, **parameters).fit(X, y).module_.trend is None
    with pytest.raises(ValueError, match="trend: expected 'auto' or None for method='likelihood'"):
        kdm.KDMClassifier("likelihood", trend="mlp").fit(X, y)


def test_a_trend_with_a_memory_is_saved(remembering: Any, tmp_path: Any) -> None:
    kdm.save(remembering, tmp_path / "model")
    loaded: Any = kdm.load(tmp_path / "model")
    X = checkerboard(30, seed=4)[0]
    np.testing.assert_array_equal(loaded.predict_proba(X), remembering.predict_proba(X))
    np.testing.assert_array_equal(
        loaded.sample(5, y=1, random_state=0), remembering.sample(5, y=1, random_state=0)
    )
