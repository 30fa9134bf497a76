"""`KDMDensity(method="auto")`: kinds of densities mixed by the likelihood of held-out rows."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.mixture import GaussianMixture

import kdmkit as kdm
from kdmkit.estimators.density.stacking import NONPARAMETRIC


def correlated(n: int, seed: int) -> np.ndarray:
    """Six columns that nearly lie in a plane."""
    generator = np.random.default_rng(seed)
    return generator.normal(size=(n, 2)) @ np.random.default_rng(9).normal(
        size=(2, 6)
    ) + 0.05 * generator.normal(size=(n, 6))


@pytest.fixture(scope="module")
def plane() -> kdm.KDMDensity:
    return kdm.KDMDensity(method="auto", random_state=0).fit(correlated(200, 0))


def test_tied_columns_are_as_likely_as_under_their_gaussian(plane: kdm.KDMDensity) -> None:
    rows = correlated(500, 1)
    gaussian = GaussianMixture(1).fit(correlated(200, 0)).score(rows)
    assert plane.score(rows) > gaussian - 0.1
    assert kdm.KDMDensity().fit(correlated(200, 0)).score(rows) < gaussian - 2


def test_the_fit_says_what_it_compared_and_took(plane: kdm.KDMDensity) -> None:
    assert sum(plane.method_.values()) == pytest.approx(1)
    assert set(plane.method_) <= set(plane.method_scores_)
    assert NONPARAMETRIC in plane.method_scores_
    best = max(plane.method_scores_, key=plane.method_scores_.__getitem__)
    assert plane.method_scores_[best] == pytest.approx(plane.score(correlated(500, 1)), abs=0.5)


def test_the_scores_are_those_of_the_columns_as_they_are(plane: kdm.KDMDensity) -> None:
    units = np.array([1e-3, 1.0, 50.0, 1.0, 1e4, 1.0])
    scaled = kdm.KDMDensity(method="auto").fit(correlated(200, 0) * units)
    rows = correlated(20, 1)
    wanted = plane.score_samples(rows) - np.log(units).sum()
    np.testing.assert_allclose(scaled.score_samples(rows * units), wanted, rtol=1e-6, atol=1e-6)
    shift = np.log(units).sum()
    first, second = (model.method_scores_[NONPARAMETRIC] for model in (plane, scaled))
    assert second == pytest.approx(first - shift, abs=1e-6)


def test_draws_and_files_have_the_density(plane: kdm.KDMDensity, tmp_path: Path) -> None:
    drawn, rows = plane.sample(4000, random_state=1), correlated(4000, 2)
    np.testing.assert_allclose(np.cov(drawn.T), np.cov(rows.T), atol=0.15 * np.cov(rows.T).max())
    kdm.save(plane, tmp_path / "plane")
    loaded = kdm.load(tmp_path / "plane")
    np.testing.assert_allclose(loaded.score_samples(rows[:9]), plane.score_samples(rows[:9]))
    assert loaded.method_ == pytest.approx(plane.method_)


def test_leaning_components_have_no_bounded_error(plane: kdm.KDMDensity) -> None:
    rows = correlated(9, 1)
    np.testing.assert_array_equal(plane.score_samples(rows, rtol=0.1), plane.score_samples(rows))


def test_merged_with_a_density_of_rows(plane: kdm.KDMDensity) -> None:
    other, rows = kdm.KDMDensity(sigma=0.5).fit(correlated(100, 3)), correlated(9, 1)
    both = kdm.merge(plane, other, weights=[1, 3])
    wanted = np.log(0.25 * np.exp(plane.score_samples(rows)) + 0.75 * np.exp(other.score_samples(rows)))
    np.testing.assert_allclose(both.score_samples(rows), wanted)


def test_one_column_has_quantiles() -> None:
    x = np.random.default_rng(0).normal(size=(300, 1))
    density = kdm.KDMDensity(method="auto").fit(x)
    assert float(density.kdm_.icdf(0.975)) == pytest.approx(1.96, abs=0.35)


@pytest.mark.parametrize("n", [1, 20])
def test_few_rows_are_their_own_components(n: int) -> None:
    rows = correlated(n, 0)
    density, plain = (kdm.KDMDensity(method=m).fit(rows) for m in ("auto", "nonparametric"))
    assert density.method_ == {NONPARAMETRIC: 1.0}
    np.testing.assert_array_equal(density.score_samples(rows), plain.score_samples(rows))


def test_a_constant_column_and_a_huge_value_have_answers() -> None:
    rows = correlated(100, 0)
    rows[:, 2] = 3.0
    assert np.isfinite(kdm.KDMDensity(method="auto").fit(rows).score_samples(rows)).all()
    rows[0, 0] = 1e200
    assert kdm.KDMDensity(method="auto").fit(rows).method_ == {NONPARAMETRIC: 1.0}
