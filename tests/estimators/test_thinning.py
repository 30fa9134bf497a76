"""Rows that stand for near rows of their class."""

import numpy as np
import pytest
import torch
from torch import Tensor

from kdmkit.estimators.common.chunks import KeptRows, thinned


def rows_of(X: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None) -> KeptRows:
    return KeptRows.of(X, y, weights, np.random.default_rng(0))


def thin(rows: KeptRows, most: int, uncertainty: Tensor | None = None, seed: int = 0) -> KeptRows:
    chances = torch.zeros(len(rows)).double() if uncertainty is None else uncertainty
    return thinned(rows, most, torch.from_numpy(rows.X), chances, np.random.default_rng(seed))


def test_the_nearest_rows_of_a_class_become_one() -> None:
    X = np.array([[0.0], [0.1], [0.11], [1.0], [2.0]])
    kept = thin(rows_of(X, np.array([0, 0, 1, 1, 0])), 4)
    # 0.1 and 0.11 are nearer, but of two classes.
    assert kept.factors.sum() == 5
    assert kept.factors[kept.factors > 1].tolist() == [2.0]
    assert set(X[2:, 0]) <= set(kept.X[:, 0])


def test_rows_stay_where_labels_are_uncertain() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(600, 2)), rng.integers(0, 2, 600)
    uncertainty = torch.from_numpy((X[:, 0] > 0) * 0.5)
    kept = thin(rows_of(X, y), 300, uncertainty)
    is_uncertain = kept.X[:, 0] > 0
    assert is_uncertain.sum() > 1.5 * (~is_uncertain).sum()
    # The weight of both halves stays about the same.
    assert kept.factors[is_uncertain].sum() == pytest.approx((X[:, 0] > 0).sum(), abs=10)


def test_weighted_sums_keep_their_expected_value() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 1)), np.arange(40) % 2
    weights = rng.uniform(0.5, 3, 40)
    wanted = (weights * X[:, 0] ** 3).sum()
    result = []
    for seed in range(150):
        kept = thin(rows_of(X, y, weights), 15, seed=seed)
        assert len(kept) == 15
        total = kept.weights * kept.factors
        np.testing.assert_allclose(np.bincount(kept.y, total), np.bincount(y, weights))
        result.append((total * kept.X[:, 0] ** 3).sum())
    assert abs(np.mean(result) - wanted) < 4 * np.std(result) / np.sqrt(150)


@pytest.mark.parametrize("n_classes", [1, 3, 50])
def test_any_number_of_classes_and_equal_rows(n_classes: int) -> None:
    y = np.arange(300) % n_classes
    kept = thin(rows_of(np.zeros((300, 2)), y), 40)
    assert len(kept) == max(40, n_classes)
    assert set(kept.y.tolist() if kept.y is not None else []) == set(range(n_classes))
    assert kept.factors.sum() == pytest.approx(300)


def test_units_of_columns_and_extreme_values_do_not_matter() -> None:
    X = np.random.default_rng(0).normal(size=(200, 2))
    y = np.arange(200) % 2
    kept, other = thin(rows_of(X, y), 120), thin(rows_of(X * [1.0, 1000.0], y), 120)
    np.testing.assert_allclose(kept.X * [1.0, 1000.0], other.X)
    # Far rows of one class, among near ones: pairs 0–1, 2–3, … are each other's neighbours.
    pairs = np.repeat(np.linspace(-1, 1, 50), 2) + np.tile([0, 1e-3], 50)
    far = np.append(pairs, 1e20)[:, None]
    result = thin(rows_of(far, np.zeros(101, dtype=int)), 51)
    assert result.X.max() == 1e20
    np.testing.assert_array_equal(np.sort(result.factors), [1, *[2] * 50])
    near = np.sort(result.X[:-1, 0])
    np.testing.assert_allclose(near, np.linspace(-1, 1, 50), atol=2e-3)


def test_weights_decide_between_classes() -> None:
    X, y = np.random.default_rng(0).normal(size=(200, 1)), np.arange(200) % 2
    kept = thin(rows_of(X, y, np.where(y == 1, 1000.0, 1.0)), 120)
    # Rows of a light class go first.
    assert kept.y is not None
    assert (kept.y == 1).sum() > 80


@pytest.mark.parametrize("unit", [1e-300, 1e306])
def test_any_unit_of_weights(unit: float) -> None:
    X, y = np.random.default_rng(0).normal(size=(100, 1)), np.arange(100) % 2
    weights = np.random.default_rng(1).uniform(1, 2, 100)
    kept, other = thin(rows_of(X, y, weights), 30), thin(rows_of(X, y, unit * weights), 30)
    np.testing.assert_array_equal(kept.X, other.X)
    np.testing.assert_allclose(kept.factors, other.factors)
