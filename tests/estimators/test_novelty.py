"""p-values of rows against the rows of a density."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits, make_moons
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors

import kdmkit as kdm


def rows(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_t(3, size=(n, 3))


OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "auto": {"method": "auto"},
    "one bandwidth": {"sigma": "loo"},
    "likelihood": {"method": "likelihood", "n_components": 2, "max_epochs": 20},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_p_values_of_usual_rows_are_uniform(name: str) -> None:
    density = kdm.KDMDensity(random_state=0, **OPTIONS[name]).fit(rows(600, 0))
    p = density.novelty(rows(2000, 1))
    for level in (0.05, 0.2, 0.5, 0.8):
        assert (p <= level).mean() == pytest.approx(level, abs=0.06)
    assert (density.novelty(rows(9, 2) + 1e3) <= 0.01).all()


def test_p_values_rise_with_the_density() -> None:
    density, x = kdm.KDMDensity().fit(rows(300, 0)), rows(500, 1)
    p = density.novelty(x)
    assert (np.diff(p[density.score_samples(x).argsort()]) >= 0).all()
    assert p.min() > 0
    assert p.max() <= 1


def test_weights_count_as_repetitions() -> None:
    x, x_new = rows(200, 0), rows(50, 1)
    weights = np.random.default_rng(0).integers(1, 4, 200)
    once = kdm.KDMDensity(sigma=0.5).fit(x, sample_weight=weights)
    repeated = kdm.KDMDensity(sigma=0.5).fit(np.repeat(x, weights, axis=0))
    np.testing.assert_allclose(once.novelty(x_new), repeated.novelty(x_new), atol=1e-9)


def test_chunks_files_and_merged_densities(tmp_path: Path) -> None:
    chunks, x = kdm.KDMDensity(max_rows=400, random_state=0), rows(2000, 1)
    for seed in range(4):
        chunks.partial_fit(rows(200, seed + 5))
    assert (chunks.novelty(x) <= 0.1).mean() == pytest.approx(0.1, abs=0.06)
    kdm.save(chunks, tmp_path / "density")
    np.testing.assert_allclose(kdm.load(tmp_path / "density").novelty(x), chunks.novelty(x))
    with pytest.raises(ValueError, match="density: expected one that was fitted to rows"):
        kdm.merge(chunks, chunks).novelty(x)


def test_digits_of_new_classes() -> None:
    X, y = load_digits(return_X_y=True)
    known, order = X[y < 8], np.random.default_rng(0).permutation(int((y < 8).sum()))
    train, usual = known[order[:1000]], known[order[1000:]]
    density = kdm.KDMDensity(sigma="loo").fit(train)
    truth = np.repeat([0, 1], [len(usual), int((y >= 8).sum())])
    assert roc_auc_score(truth, -density.novelty(np.concatenate([usual, X[y >= 8]]))) > 0.97
    assert (density.novelty(usual) <= 0.05).mean() == pytest.approx(0.05, abs=0.03)


def moons(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    return make_moons(n, noise=0.1, random_state=seed)


FITTED: dict[str, Any] = {
    "classifier": lambda X, y: kdm.KDMClassifier(n_members=3, max_epochs=5, random_state=0).fit(X, y),
    "encoder": lambda X, y: kdm.KDMClassifier(encoder="mlp", max_epochs=2, random_state=0).fit(X, y),
    "regressor": lambda X, y: kdm.KDMRegressor(n_members=3, max_epochs=5, random_state=0).fit(X, X[:, 0]),
    "proportions": lambda X, y: kdm.KDMProportionClassifier(max_epochs=2, random_state=0).fit(
        X, np.arange(len(X)) // 10, np.full((len(X) // 10, 2), 0.5)
    ),
}


@pytest.mark.parametrize("name", FITTED)
def test_models_of_rows_have_the_same_answers_from_files(name: str, tmp_path: Path) -> None:
    model = FITTED[name](*moons(400, 0))
    x, _ = moons(1000, 1)
    p = model.novelty(x)
    assert (p <= 0.1).mean() == pytest.approx(0.1, abs=0.05)
    far = model.novelty(x[:5] + [[50.0, 0.0]] * np.arange(1, 6)[:, None])
    assert (np.diff(far) < 0).all()
    assert (far > 0).all()
    kdm.save(model, tmp_path / "model")
    np.testing.assert_allclose(kdm.load(tmp_path / "model").novelty(x), p)
    np.testing.assert_allclose(pickle.loads(pickle.dumps(model)).novelty(x), p)


def test_latent_vectors_of_an_encoder_and_rows_that_are_not_kept() -> None:
    torch.manual_seed(0)
    (x, y), (x_new, _) = moons(300, 0), moons(400, 1)
    encoder = torch.nn.Sequential(torch.nn.Unflatten(1, (1, 2)), torch.nn.Flatten(), torch.nn.Linear(2, 3))
    model = kdm.KDMClassifier(encoder=encoder, max_epochs=2, random_state=0).fit(x, y)
    assert (model.novelty(x_new) <= 0.2).mean() == pytest.approx(0.2, abs=0.08)
    none = kdm.KDMClassifier(n_members=3, max_epochs=2, novelty_rows=0, random_state=0).fit(x, y)
    with pytest.raises(ValueError, match="novelty_rows: expected a number > 0 in the fit"):
        none.novelty(x)
    few = kdm.KDMClassifier(n_members=3, max_epochs=2, novelty_rows=64, random_state=0).fit(x, y)
    assert (few.novelty(x_new) > 0.05).mean() > 0.9
    assert (few.novelty(x_new[:9] + 50) < 0.05).all()


def test_classes_choose_the_units_of_columns() -> None:
    """Pixels have one unit: most of those that hardly vary are noise. Standardised, they hide new classes."""
    X, y = load_digits(return_X_y=True)
    train, usual = X[y < 8][:1000], X[y < 8][1000:]
    model = kdm.KDMClassifier(n_members=3, max_epochs=2, random_state=0).fit(train, y[y < 8][:1000])
    truth = np.repeat([0, 1], [len(usual), int((y >= 8).sum())])
    rows = np.concatenate([usual, X[y >= 8]])
    area = roc_auc_score(truth, -model.novelty(rows))
    nearest = NearestNeighbors(n_neighbors=1).fit(train).kneighbors(rows)[0][:, 0]
    assert area >= roc_auc_score(truth, nearest) - 0.002
    assert area > roc_auc_score(truth, -kdm.KDMDensity().fit(train).novelty(rows)) + 0.02
    # In units that differ by powers of ten the answer is another one.
    scale = 10.0 ** np.random.default_rng(0).integers(-3, 4, X.shape[1])
    scaled = kdm.KDMClassifier(n_members=3, max_epochs=2, random_state=0).fit(train * scale, y[y < 8][:1000])
    assert roc_auc_score(truth, -scaled.novelty(rows * scale)) > area - 0.02
