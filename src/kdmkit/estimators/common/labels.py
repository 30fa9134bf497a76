"""The base of classifiers."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin

from kdmkit.estimators.common.checks import Array
from kdmkit.estimators.common.export import Answer
from kdmkit.estimators.common.joint import JointEstimator


class JointClassifier(ClassifierMixin, JointEstimator):
    """Base of the estimators whose y is a label."""

    classes_: Array

    def predict_proba(self, X: Any) -> Array:
        """p(y|x), one row per row of X, one column per class."""
        x = self._inputs(X)
        return normalized(self._rowwise(self._answers()["predict_proba"], x))

    def _answers(self) -> dict[str, Answer]:
        return {**super()._answers(), "predict_proba": lambda rows: self.module_(rows).probs}

    def predict(self, X: Any) -> Array:
        """The likeliest label of every row."""
        chosen = self.predict_proba(X).argmax(1)
        return np.asarray(self.classes_[chosen])


def normalized(probs: Array) -> Array:
    """Probabilities divided by their sum, which rounding may leave off 1: scikit-learn's losses check it."""
    return np.asarray(probs / probs.sum(-1, keepdims=True))
