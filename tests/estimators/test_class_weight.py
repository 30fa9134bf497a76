"""Weights of classes are weights of their rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.metrics import balanced_accuracy_score, recall_score

import kdmkit as kdm

METHODS: dict[str, dict[str, Any]] = {
    "trend": {"max_epochs": 20},
    "nonparametric": {"method": "nonparametric"},
    "likelihood": {"method": "likelihood", "max_epochs": 10},
}


def imbalanced(n: int, share: float, seed: int) -> tuple[Any, Any]:
    """Two classes that overlap; the second has the given share."""
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < share).astype(int)
    return rng.normal(size=(n, 2)) + 1.5 * y[:, None], y


@pytest.mark.parametrize("options", METHODS.values(), ids=METHODS)
def test_they_multiply_the_weights_of_rows(options: dict[str, Any]) -> None:
    X, y = imbalanced(120, 0.2, 0)
    rows = np.linspace(0.5, 1.5, len(y))
    model = kdm.KDMClassifier(class_weight={1: 4.0}, random_state=0, **options).fit(X, y, rows)
    other = kdm.KDMClassifier(random_state=0, **options).fit(X, y, rows * np.where(y == 1, 4.0, 1.0))
    np.testing.assert_allclose(model.predict_proba(X), other.predict_proba(X), rtol=1e-4, atol=1e-6)
    balanced = clone(model).set_params(class_weight="balanced").fit(X, y, rows)
    totals = np.bincount(y, rows)
    other.fit(X, y, rows / totals[y])
    np.testing.assert_allclose(balanced.predict_proba(X), other.predict_proba(X), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("options", METHODS.values(), ids=METHODS)
def test_balanced_classes_find_rare_rows(options: dict[str, Any]) -> None:
    X, y = imbalanced(600, 0.08, 1)
    X_test, y_test = imbalanced(4000, 0.5, 2)
    model = kdm.KDMClassifier(random_state=0, **options)
    usual = model.fit(X, y).predict(X_test)
    balanced = clone(model).set_params(class_weight="balanced").fit(X, y)
    predicted = balanced.predict(X_test)
    assert recall_score(y_test, predicted) > recall_score(y_test, usual) + 0.15
    # Bayes' rule has an accuracy of Φ(1.5/√2) = .856.
    assert balanced_accuracy_score(y_test, predicted) > 0.82
    # Calibrated for classes of equal size.
    assert abs(balanced.predict_proba(X_test)[:, 1].mean() - 0.5) < 0.05


def test_novelty_counts_rows_as_they_are() -> None:
    X, y = imbalanced(150, 0.2, 3)
    model = kdm.KDMClassifier(max_epochs=2, random_state=0).fit(X, y)
    weighted = clone(model).set_params(class_weight="balanced").fit(X, y)
    np.testing.assert_array_equal(model.novelty(X[:20]), weighted.novelty(X[:20]))


@pytest.mark.parametrize(
    ("labels", "class_weight"),
    [([0, 1], {0: 1.0, 1: 5.0}), ([1.0, 2.0], {2.0: 5.0}), (["no", "yes"], {"yes": 5}), ([0, 1], "balanced")],
)
def test_saved_models_learn_on(tmp_path: Path, labels: list[Any], class_weight: Any) -> None:
    X, y = imbalanced(400, 0.25, 4)
    y = np.array(labels)[y]
    model = kdm.KDMClassifier(class_weight=class_weight, max_epochs=5, random_state=0).fit(X, y)
    kdm.save(model, tmp_path / "model.kdm")
    loaded = kdm.load(tmp_path / "model.kdm")
    assert loaded.class_weight == class_weight
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    # Draws stand for earlier rows: with the weights of a mapping they come as often as the rows did.
    shares = np.mean(loaded._draw_rows(4000)[1] == labels[1])
    assert shares == pytest.approx(0.5 if class_weight == "balanced" else (y == labels[1]).mean(), abs=0.05)
    loaded.partial_fit(X, y)
    assert loaded.predict(X).shape == y.shape


@pytest.mark.parametrize(
    ("class_weight", "error", "text"),
    [
        ("even", TypeError, "class_weight: expected None, 'balanced' or a mapping"),
        (2.0, TypeError, "class_weight"),
        ({7: 1.0}, ValueError, "class_weight: expected labels of"),
        ({1: -1.0}, ValueError, "class_weight: expected finite numbers > 0"),
        ({1: np.nan}, ValueError, "class_weight: expected finite numbers > 0"),
        ({1: "much"}, ValueError, "class_weight: expected labels of"),
    ],
)
def test_bad_weights(class_weight: Any, error: type[Exception], text: str) -> None:
    X, y = imbalanced(30, 0.5, 5)
    with pytest.raises(error, match=text):
        kdm.KDMClassifier(class_weight=class_weight, max_epochs=1).fit(X, y)
