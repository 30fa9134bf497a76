"""The base of classifiers."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin

from kdmkit.estimators.common.arrays import Array, CheckedRows
from kdmkit.estimators.common.arrow import BatchAnswer, answer_rows
from kdmkit.estimators.common.base import TensorAnswer
from kdmkit.estimators.common.joint import JointEstimator


class JointClassifier(ClassifierMixin, JointEstimator):
    """Base of the estimators whose y is a label."""

    classes_: Array

    def predict_proba(self, X: Any) -> Array:
        """p(y|x), one row per row of X, one column per class."""
        x = self._inputs(X)
        return normalized(self._rowwise(self._answers()["predict_proba"], x))

    def _answers(self) -> dict[str, TensorAnswer]:
        return {**super()._answers(), "predict_proba": lambda rows: self.module_(rows).probs}

    def predict(self, X: Any) -> Array:
        """The likeliest label of every row."""
        return self._likeliest(self.predict_proba(X))

    def _likeliest(self, probs: Array) -> Array:
        return np.asarray(self.classes_[probs.argmax(1)])

    def _batch_answers(self) -> dict[str, BatchAnswer]:
        return {**super()._batch_answers(), "predict": self._predict_batch}

    def _predict_batch(
        self, rows: CheckedRows, *, target: str = "y", proba: bool = False
    ) -> dict[str, Array]:
        """The likeliest class in the column `target`; with `proba` every probability in `P(<class>)`."""

        def answer(X: CheckedRows) -> dict[str, Array]:
            probs = self.predict_proba(X)
            each = {f"P({label})": probs[:, i] for i, label in enumerate(self.classes_)} if proba else {}
            return {target: self._likeliest(probs), **each}

        return answer_rows(answer, rows)


def normalized(probs: Array) -> Array:
    """Probabilities divided by their sum, which rounding may leave off 1: scikit-learn's losses check it."""
    return np.asarray(probs / probs.sum(-1, keepdims=True))
