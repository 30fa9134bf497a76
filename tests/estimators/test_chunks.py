"""Learning from chunks of rows, and joining densities that were fitted apart."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.metrics import log_loss

import kdmkit as kdm
from estimators.problems import moons
from kdmkit.estimators.common.chunks import KeptRows

CHUNKS = [slice(0, 60), slice(60, 61), slice(61, 200)]
DENSITIES: list[dict[str, Any]] = [
    {},
    {"sigma": 0.4},
    {"method": "likelihood", "max_epochs": 3, "covariance": "diag"},
]


def partly(model: Any, *arrays: Any, weights: Any = None, **first: Any) -> Any:
    for i, chunk in enumerate(CHUNKS):
        weight = None if weights is None else weights[chunk]
        model.partial_fit(*(a[chunk] for a in arrays), sample_weight=weight, **(first if i == 0 else {}))
    return model


# ---- partial_fit


@pytest.mark.parametrize("parameters", DENSITIES)
@pytest.mark.parametrize("weighted", [False, True])
def test_density_of_chunks_is_that_of_all_rows(parameters: dict[str, Any], weighted: bool) -> None:
    X, _ = moons(200)
    weights = np.random.default_rng(0).integers(0, 3, 200) if weighted else None
    model = partly(kdm.KDMDensity(random_state=0, **parameters), X, weights=weights)
    whole = kdm.KDMDensity(random_state=0, **parameters).fit(X, sample_weight=weights)
    np.testing.assert_array_equal(model.score_samples(X), whole.score_samples(X))
    assert model.n_samples_seen_ == whole.n_samples_seen_ == (200 if weights is None else (weights > 0).sum())


@pytest.mark.parametrize("method", ["nonparametric", "discriminative"])
def test_classifier_of_chunks_is_that_of_all_rows(method: Any) -> None:
    X, codes = moons(200)
    y = np.array(["no", "yes"])[codes]
    options: dict[str, Any] = {"method": method, "max_epochs": 2, "n_members": 3, "random_state": 0}
    model = partly(kdm.KDMClassifier(**options), X, y, classes=["yes", "no"])
    whole = kdm.KDMClassifier(**options).fit(X, y)
    np.testing.assert_array_equal(model.predict_proba(X), whole.predict_proba(X))
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.n_samples_seen_ == 200


@pytest.mark.parametrize("method", ["nonparametric", "likelihood", "discriminative"])
def test_classes_may_come_late(method: Any) -> None:
    X, y = load_iris(return_X_y=True)
    model = kdm.KDMClassifier(method=method, max_epochs=2, n_members=3, random_state=0)
    model.partial_fit(X[:50], y[:50], classes=[0, 1, 2])
    assert (model.predict(X[:50]) == 0).all()
    assert model.predict_proba(X).shape == (150, 3)
    assert np.isfinite(model.predict_proba(X)).all()
    model.partial_fit(X[50:100], y[50:100])
    model.partial_fit(X[100:], y[100:])
    whole = kdm.KDMClassifier(method=method, max_epochs=2, n_members=3, random_state=0).fit(X, y)
    np.testing.assert_array_equal(model.predict_proba(X), whole.predict_proba(X))


def test_rows_are_merged_within_the_budget() -> None:
    rng = np.random.default_rng(0)
    model = kdm.KDMDensity(sigma=0.3, max_rows=200, random_state=0)
    chunks = [mean + rng.normal(size=(100, 1)) for mean in range(10)]
    for chunk in chunks:
        model.partial_fit(chunk)
        assert model.kdm_.n_components <= 200
    assert model.n_samples_seen_ == 1000
    X = np.concatenate(chunks)
    # Every chunk counts alike: components have mean and variance of all rows, and that of the kernel.
    assert float(model.kdm_.mean) == pytest.approx(X.mean())
    assert float(model.kdm_.variance) == pytest.approx(X.var() + 0.3**2 / 2)


def test_likelihood_learns_from_a_sample_that_stands_for_all_rows() -> None:
    rng = np.random.default_rng(0)
    model = kdm.KDMDensity("likelihood", max_rows=100, n_components=2, max_epochs=3, random_state=0)
    for mean in (0.0, 0.0, 0.0, 10.0):
        model.partial_fit(mean + rng.normal(size=(100, 1)))
    # A quarter of all rows is about 10, and half of those at hand.
    assert float(model.kdm_.mean) == pytest.approx(2.5, abs=0.7)


def test_kept_rows_of_a_classifier_stand_for_all() -> None:
    X, y = moons(600)
    X, y, X_test, y_test = X[:400], y[:400], X[400:], y[400:]
    options: dict[str, Any] = {"n_members": 4, "max_epochs": 15, "random_state": 3}
    model = kdm.KDMClassifier(max_rows=100, **options).partial_fit(X[:100], y[:100], classes=[0, 1])
    first = log_loss(y_test, model.predict_proba(X_test))
    for start in (100, 200, 300):
        model.partial_fit(X[start : start + 100], y[start : start + 100])
    kept = model._kept
    assert kept is not None
    assert kept.y is not None
    assert len(kept) == 100
    assert kept.n_seen == kept.factors.sum() == 400
    # Rows are dropped for rows of their class, and they are rows of the chunks.
    np.testing.assert_array_equal(np.bincount(kept.y, kept.factors), np.bincount(y))
    assert {tuple(row) for row in kept.X} <= {tuple(row) for row in X}
    assert log_loss(y_test, model.predict_proba(X_test)) < 0.9 * first


def test_classifiers_of_chunks_repeat_and_keep_one_row_of_every_class() -> None:
    X, y = load_iris(return_X_y=True)
    order = np.random.default_rng(0).permutation(150)
    X, y, weights = X[order], y[order], np.random.default_rng(1).uniform(0.5, 2, 150)
    result = []
    for _ in range(2):
        model = kdm.KDMClassifier(method="nonparametric", max_rows=1, random_state=0)
        for start in (0, 50, 100):
            chunk = slice(start, start + 50)
            model.partial_fit(X[chunk], y[chunk], classes=[0, 1, 2], sample_weight=weights[chunk])
        assert model._kept is not None
        result.append(model._kept)
    assert len(result[0]) == 3
    np.testing.assert_array_equal(result[0].X, result[1].X)
    total = np.bincount(y, weights)
    np.testing.assert_allclose(np.bincount(result[0].y, result[0].weights * result[0].factors), total)


def test_classifiers_behind_an_encoder_compare_latent_vectors() -> None:
    rng = np.random.default_rng(0)
    images, y = rng.normal(size=(60, 1, 2, 2)), np.arange(60) % 2
    # The encoder sees two pixels; rows come in pairs that differ in the others only.
    images[1::4], images[3::4] = images[::4], images[2::4]
    images[:, 0, 1] = 100 * rng.normal(size=(60, 2))
    y = np.repeat(np.arange(30) % 2, 2)
    encoder = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2, bias=False))
    with torch.no_grad():
        encoder[1].weight.copy_(torch.eye(2, 4))
    encoder.requires_grad_(False)
    model = kdm.KDMClassifier(encoder=encoder, max_epochs=1, max_rows=30, random_state=0)
    for start in (0, 20, 40):
        model.partial_fit(images[start : start + 20], y[start : start + 20], classes=[0, 1])
    assert model._kept is not None
    assert model._kept.X.shape == (30, 1, 2, 2)
    assert (model._kept.factors == 2).all()


def test_classifiers_keep_rows_near_the_boundary_of_classes() -> None:
    X = np.random.default_rng(0).uniform(-1, 1, size=(600, 1))
    y = np.where(X[:, 0] + 0.1 * np.random.default_rng(1).normal(size=600) > 0, "high", "low")
    model = kdm.KDMClassifier(method="nonparametric", max_rows=200, random_state=0)
    for start in (0, 300):
        model.partial_fit(X[start : start + 300], y[start : start + 300], classes=["high", "low"])
    assert model._kept is not None
    assert len(model._kept) == 200
    is_near = abs(model._kept.X[:, 0]) < 0.2
    assert is_near.mean() > 1.5 * (abs(X) < 0.2).mean()


def test_budgets_of_a_classifier_may_change(tmp_path: Path) -> None:
    X, y = moons(300)
    model = kdm.KDMClassifier(method="nonparametric", max_rows=100, random_state=0)
    model.partial_fit(X[:150], y[:150], classes=[0, 1])
    sizes = []
    for most, start in ((50, 150), (None, 200), (500, 250)):
        model.max_rows = most
        model.partial_fit(X[start : start + 50], y[start : start + 50])
        assert model._kept is not None
        sizes.append(len(model._kept))
    assert sizes == [50, 100, 150]
    assert model.n_samples_seen_ == 300
    kdm.save(model, tmp_path / "model.kdm")
    loaded = kdm.load(tmp_path / "model.kdm")
    assert isinstance(loaded, kdm.KDMClassifier)
    loaded.max_rows = 60
    loaded.partial_fit(X, y)
    assert loaded._kept is not None
    assert len(loaded._kept) == 60
    assert loaded._kept.factors.sum() == pytest.approx(600)


def test_a_first_chunk_beyond_the_budget_draws_and_goes_on(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(300, 2))
    model = kdm.KDMDensity(max_rows=60, random_state=0).partial_fit(X)
    assert model.sample(3).shape == (3, 2)
    kdm.save(model, tmp_path / "model.safetensors")
    loaded = kdm.load(tmp_path / "model.safetensors")
    assert isinstance(loaded, kdm.KDMDensity)
    np.testing.assert_allclose(loaded.score_samples(X[:5]), model.score_samples(X[:5]))
    assert loaded.partial_fit(X[:100]).n_samples_seen_ == 400


def test_chunks_have_the_columns_of_the_fit() -> None:
    X = np.random.default_rng(0).normal(size=(30, 3))
    y = np.arange(30) % 2
    classifier = kdm.KDMClassifier(method="nonparametric").fit(X, y)
    with pytest.raises(ValueError, match="expecting 3 features"):
        classifier.partial_fit(X[:, :2], y)
    density = kdm.KDMDensity().fit(X)
    with pytest.raises(ValueError, match="expecting 3 features"):
        density.partial_fit(X[:, :2])
    assert density.n_features_in_ == 3


def test_draws_stand_for_the_rows_of_a_fit(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 1))
    density = kdm.KDMDensity(random_state=0).fit(X)
    kdm.save(density, tmp_path / "density.kdm")
    for model in (density, kdm.load(tmp_path / "density.kdm")):
        model.partial_fit(10 + rng.normal(size=(300, 1)))
        assert model.n_samples_seen_ == 1200
        # A quarter of the rows is about 10.
        assert float(model.kdm_.mean) == pytest.approx(2.5, abs=0.15)
    y = np.where(X[:, 0] > 0.5, "high", "low")
    classifier = kdm.KDMClassifier(method="nonparametric", random_state=0).fit(X, y)
    before = classifier.score(X, y)
    classifier.partial_fit(X[:10], y[:10])
    assert classifier.n_samples_seen_ == 910
    assert classifier.score(X, y) > before - 0.03


def test_sample_is_uniform() -> None:
    counts = np.zeros(40)
    for seed in range(300):
        rng = np.random.default_rng(seed)
        kept = KeptRows.of(np.arange(10.0)[:, None], None, None, rng)
        for start in (10, 20, 30):
            new = KeptRows.of(np.arange(start, start + 10.0)[:, None], None, None, rng)
            kept = kept.join(new).at_most(8)
        assert len(kept.X) == 8
        counts[kept.X[:, 0].astype(int)] += 1
    # 60 of 300 each; the standard deviation is 7.
    assert abs(counts - 60).max() < 28


def test_bad_chunks() -> None:
    X, y = moons(100)
    with pytest.raises(ValueError, match="classes must be passed on the first call"):
        kdm.KDMClassifier().partial_fit(X, y)
    model = kdm.KDMClassifier(method="nonparametric").partial_fit(X, y, classes=[0, 1])
    with pytest.raises(ValueError, match=r"y: expected labels of \[0, 1\], got \[7\]"):
        model.partial_fit(X, np.full(100, 7))
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(X[:, :1], y)
    with pytest.raises(ValueError, match="max_rows: expected a whole number ≥ 1 or None"):
        kdm.KDMDensity(max_rows=0).partial_fit(X)


# ---- merge


@pytest.mark.parametrize("first", DENSITIES)
@pytest.mark.parametrize("second", DENSITIES)
def test_merged_density_is_the_mixture(first: dict[str, Any], second: dict[str, Any], tmp_path: Path) -> None:
    X, _ = moons(200)
    a = kdm.KDMDensity(random_state=0, **first).fit(X[:50])
    b = kdm.KDMDensity(random_state=0, **second).fit(X[50:])
    wanted = np.logaddexp(np.log(0.25) + a.score_samples(X), np.log(0.75) + b.score_samples(X))
    merged = kdm.merge(a, b)
    np.testing.assert_allclose(merged.score_samples(X), wanted, rtol=1e-10, atol=1e-12)
    assert merged.n_samples_seen_ == 200
    assert merged.sample(3).shape == (3, 2)
    kdm.save(merged, tmp_path / "merged.kdm")
    np.testing.assert_array_equal(kdm.load(tmp_path / "merged.kdm").score_samples(X), merged.score_samples(X))
    equal = np.logaddexp(a.score_samples(X), b.score_samples(X)) - np.log(2)
    np.testing.assert_allclose(kdm.merge(a, b, weights=(3, 3)).score_samples(X), equal, rtol=1e-10)


def test_merged_density_is_that_of_all_rows() -> None:
    X, _ = moons(200)
    rows = X[[*range(60), *range(30, 200)]]
    a, b, whole = (kdm.KDMDensity(sigma=0.3).fit(part) for part in (rows[:60], rows[60:], rows))
    np.testing.assert_allclose(kdm.merge(a, b).score_samples(X), whole.score_samples(X), rtol=1e-12)


def test_metrics_and_bad_merges() -> None:
    X, _ = moons(200)
    options: dict[str, Any] = {"method": "likelihood", "max_epochs": 2, "random_state": 0}
    a, b = kdm.KDMDensity(**options).fit(X[:100]), kdm.KDMDensity(**options).fit(X[100:])
    np.testing.assert_allclose(kdm.merge(a, a).score_samples(X), a.score_samples(X), rtol=1e-10)
    for other in (b, kdm.KDMDensity().fit(X)):
        with pytest.raises(TypeError, match="expected one without a metric, or with that of the other"):
            kdm.merge(a, other)
    with pytest.raises(ValueError, match="b: expected a density of 2 columns, got 1"):
        kdm.merge(a, kdm.KDMDensity().fit(X[:, :1]))
    with pytest.raises(ValueError, match="weights: expected two numbers > 0, got"):
        kdm.merge(a, a, weights=(1, 0))
