"""p-values of rows against the rows of a density."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

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
    chunks, x = kdm.KDMDensity(max_rows=100), rows(2000, 1)
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
