"""Classifiers: accuracy, exactness, units, uncertain inputs, generation."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold, cross_val_score

import kdmkit as kdm
from estimators.problems import blobs, digits, moons

METHODS = ["nonparametric", "likelihood", "discriminative"]


@pytest.fixture(scope="module")
def read() -> Any:
    """A model of digits in pixels, and rows it has not seen."""
    X, X_test, y, y_test = digits()
    return kdm.KDMClassifier(max_epochs=25, random_state=1).fit(X, y), X_test, y_test


@pytest.mark.parametrize("method", METHODS)
def test_two_moons(method: Any) -> None:
    X, y = moons()
    X_test, y_test = moons(2000, seed=1)
    model = kdm.KDMClassifier(method=method, max_epochs=20, random_state=0).fit(X, y)
    assert model.score(X_test, y_test) > (0.93 if method == "likelihood" else 0.95)


def test_iris() -> None:
    X, y = load_iris(return_X_y=True)
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    assert cross_val_score(kdm.KDMClassifier(max_epochs=60, random_state=0), X, y, cv=folds).mean() > 0.94


def test_digits_are_read_and_written(read: Any) -> None:
    model, X_test, y_test = read
    assert model.score(X_test, y_test) > 0.965
    assert model.sample(20, y=3).shape == (20, 64)
    for digit in range(10):
        assert (model.predict(model.sample(100, y=digit)) == digit).mean() >= 0.9


def test_novelty(read: Any) -> None:
    model, X_test, _ = read
    noise = np.random.default_rng(0).uniform(0, 16, X_test.shape)
    usual = model.score_samples(X_test)
    for strange in (noise, 16 - X_test):
        scores = np.r_[usual, model.score_samples(strange)]
        assert roc_auc_score(np.r_[np.ones(len(usual)), np.zeros(len(strange))], scores) > 0.99


def test_calibration(read: Any) -> None:
    model, X_test, y_test = read
    assert kdm.metrics.expected_calibration_error(model.predict_proba(X_test), y_test) < 0.04


def test_samples_of_a_distribution_over_labels(read: Any) -> None:
    model, _, _ = read
    probs = np.zeros(10)
    probs[[1, 7]] = 0.25, 0.75
    drawn = model.predict(model.sample(400, y=probs, random_state=0))
    assert (drawn == 7).mean() == pytest.approx(0.75, abs=0.08)
    assert (drawn == 1).mean() == pytest.approx(0.25, abs=0.08)


def test_a_sample_of_the_prior_is_a_sample_of_the_data() -> None:
    X, y = blobs(400)
    model = kdm.KDMClassifier(method="nonparametric").fit(X, y)
    drawn = model.sample(20_000, y=[0.5, 0.5], random_state=0)
    np.testing.assert_allclose(drawn.mean(0), X.mean(0), atol=0.05)


def test_narrower_draws_stay_closer_to_the_components() -> None:
    X, y = blobs(300)
    model = kdm.KDMClassifier(method="nonparametric", sigma=1.0).fit(X, y)
    tiny = model.sample(200, y=1, spread=1e-6, random_state=0)
    distances = np.linalg.norm(tiny[:, None] - X[y == 1], axis=-1).min(1)
    assert distances.max() < 1e-4
    variances = [model.sample(20_000, y=1, spread=s, random_state=0).var(0).mean() for s in (0.5, 1.0)]
    width = model.joint_.kernels["x"].sigma.square().mean().item() / 2
    assert variances[1] - variances[0] == pytest.approx(0.75 * width, rel=0.1)


def test_streams_of_draws() -> None:
    X, y = blobs()
    model = kdm.KDMClassifier(method="nonparametric", random_state=0).fit(X, y)
    first, second = model.sample(4, y=0), model.sample(4, y=0)
    assert not np.array_equal(first, second)
    model.fit(X, y)
    assert np.array_equal(model.sample(4, y=0), first)


@pytest.mark.parametrize("labels", [["cat", "dog"], [3, 10], [True, False], [1.0, 2.0]])
def test_labels_of_any_kind(labels: Any) -> None:
    X, y = blobs()
    model = kdm.KDMClassifier(method="nonparametric").fit(X, np.array(labels)[y])
    assert set(model.predict(X).tolist()) == set(labels)
    assert model.sample(2, y=labels[1]).shape == (2, 2)
    assert model.sample(2, y=np.array(labels)[0]).shape == (2, 2)


def test_labels_of_objects() -> None:
    X, y = blobs()
    model = kdm.KDMClassifier(**{"max_epochs": 3}).fit(X, np.array(["a", "bcd"], dtype=object)[y])
    assert model.score(X, np.array(["a", "bcd"], dtype=object)[y]) > 0.9


# ---- exactness


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("d", [1, 2])
def test_density_integrates_to_one_in_the_units_of_the_data(method: Any, d: int) -> None:
    X, y = blobs(200, d)
    scale = np.array([40.0, 0.01])[:d]
    model = kdm.KDMClassifier(method=method, max_epochs=3, random_state=0).fit(1000 + X * scale, y)
    axes = [1000 + s * np.linspace(-7, 10, 4001 if d == 1 else 401) for s in scale]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, d)
    cell = np.prod([axis[1] - axis[0] for axis in axes])
    assert np.exp(model.score_samples(grid)).sum() * cell == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_the_joint_says_the_same(method: Any) -> None:
    X, y = blobs(150, 3, classes=3)
    X = X * [1.0, 100.0, 1e-3] + 5
    model = kdm.KDMClassifier(method=method, trend=None, max_epochs=3, random_state=0).fit(X, y)
    joint, x = model.joint_, torch.from_numpy(X)
    np.testing.assert_allclose(joint.infer(x=x).probs, model.predict_proba(X), atol=1e-12)
    np.testing.assert_allclose(joint.marginal("x").log_prob(x), model.score_samples(X))
    labels = torch.from_numpy(y)
    conditional = model.predict_log_proba(X)[np.arange(len(y)), y]
    np.testing.assert_allclose(joint.log_prob(x=x, y=labels), conditional + model.score_samples(X))


def test_nonparametric_is_bayes_rule_with_kernel_densities() -> None:
    from sklearn.neighbors import KernelDensity

    X, y = blobs(90, classes=3)
    X = (X - X.mean(0)) / X.std(0)
    model = kdm.KDMClassifier(method="nonparametric", sigma=0.5).fit(X, y)
    likelihoods = [KernelDensity(bandwidth=0.5 / 2**0.5).fit(X[y == k]).score_samples(X) for k in range(3)]
    wanted = np.stack(likelihoods, 1) + np.log(np.bincount(y) / len(y))
    wanted -= np.log(np.exp(wanted).sum(1, keepdims=True))
    np.testing.assert_allclose(model.predict_log_proba(X), wanted, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_log_probabilities_are_exact_far_away(method: Any) -> None:
    X, y = blobs(150)
    model = kdm.KDMClassifier(method=method, trend=None, max_epochs=5, random_state=0).fit(X, y)
    far = np.array([[1e3, 1e3], [-1e5, 3.0], [40.0, -40.0]])
    joint = model.joint_
    distance = (far[:, None] - joint.components["x"].numpy()) / joint.kernels["x"].sigma.numpy()
    scores = joint.log_weights.numpy() - (distance**2).sum(-1)
    amplitudes = joint.components["y"].numpy()
    with np.errstate(divide="ignore"):
        log_labels = 2 * np.log(np.abs(amplitudes / np.linalg.norm(amplitudes, axis=1, keepdims=True)))
    scores = scores - scores.max(1, keepdims=True)
    top = np.logaddexp.reduce(scores, 1)[:, None]
    wanted = np.logaddexp.reduce(scores[..., None] + log_labels, 1) - top
    # Overlaps of 1e10 nats leave six digits behind the point.
    np.testing.assert_allclose(model.predict_log_proba(far), wanted, rtol=1e-9, atol=1e-5)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(far)).sum(1), 1, atol=1e-5)
    assert np.isfinite(model.score_samples(far)).all()


@pytest.mark.parametrize("method", METHODS)
def test_units_of_features_do_not_matter(method: Any) -> None:
    X, y = moons(300)
    model = kdm.KDMClassifier(method=method, max_epochs=5, random_state=0)
    plain = model.fit(X, y).predict_proba(X)
    # An offset of 1e7 would leave float32 nothing of the smaller column.
    moved = X * [1e5, 1e-2] + [1e7, 1e7]
    np.testing.assert_allclose(model.fit(moved, y).predict_proba(moved), plain, atol=1e-3)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_numbers_at_the_ends_of_float64(scale: float) -> None:
    X, y = blobs()
    model = kdm.KDMClassifier(max_epochs=5, random_state=0)
    assert model.fit(X * scale, y).score(X * scale, y) > 0.9


# ---- removed methods


def test_a_removed_method_names_its_replacement() -> None:
    with pytest.raises(AttributeError, match="predict_proba_uncertain was removed: average over"):
        kdm.KDMClassifier().predict_proba_uncertain  # noqa: B018
    assert not hasattr(kdm.KDMClassifier(), "predict_proba_uncertain")


# ---- few samples and strange columns


def test_a_class_with_one_member() -> None:
    X, y = blobs(100)
    y[7] = 2
    for seed in range(5):
        model = kdm.KDMClassifier(trend=None, max_epochs=40, noise=0.0, random_state=seed).fit(X, y)
        # It was trained on, whatever part was held out.
        assert model.predict_proba(X)[7, 2] > 0.03


@pytest.mark.parametrize("method", METHODS)
def test_one_sample_of_each_class(method: Any) -> None:
    model = kdm.KDMClassifier(method=method, max_epochs=5, random_state=0).fit([[0.0], [1.0]], [0, 1])
    assert model.predict([[0.1], [0.9]]).tolist() == [0, 1]


@pytest.mark.parametrize("method", METHODS)
def test_constant_columns(method: Any) -> None:
    X, y = blobs()
    X = np.column_stack([X, np.full(len(X), 1e6), np.zeros(len(X))])
    model = kdm.KDMClassifier(method=method, max_epochs=5, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.9
    assert np.isfinite(model.score_samples(X)).all()
    assert np.isfinite(model.sample(3, y=0)).all()


def test_more_classes_than_components() -> None:
    X, y = blobs(60, classes=6)
    model = kdm.KDMClassifier(n_components=2, max_epochs=3, random_state=0).fit(X, y)
    assert np.isfinite(model.predict_log_proba(X)).all()


def test_many_classes_of_few_members() -> None:
    X, y = blobs(100, classes=50)
    model = kdm.KDMClassifier(max_epochs=5, random_state=0).fit(X, y)
    assert len(model.classes_) == 50
    np.testing.assert_allclose(model.predict_proba(X).sum(1), 1)


@pytest.mark.parametrize("trend", ["auto", None])
def test_spread_narrows_draws_about_the_same_components(trend: Any) -> None:
    X, y = moons()
    model = kdm.KDMClassifier(trend=trend, max_epochs=20, random_state=0).fit(X, y)
    components = model.joint_.components["x"].numpy()

    def reach(spread: float) -> float:
        drawn = model.sample(400, y=1, spread=spread, random_state=0)
        return float(np.linalg.norm(drawn[:, None] - components, axis=-1).min(1).mean())

    assert reach(1e-6) < 1e-5
    assert reach(0.2) < 0.6 * reach(1.0)
    with pytest.raises(ValueError, match="spread: expected > 0, got 0"):
        model.sample(1, y=1, spread=0)
