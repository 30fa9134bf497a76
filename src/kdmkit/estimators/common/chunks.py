"""The rows of a model that learns from chunks: all of them, or a uniform sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils.validation import _check_sample_weight

from kdmkit._core.checks import bad_argument, check_count
from kdmkit.estimators.common.checks import Array


@dataclass(frozen=True)
class KeptRows:
    """A uniform sample of the rows of all chunks so far, in their order.

    Attributes:
        X, weights: rows and their sample weights.
        y: labels; None of a density.
        keys: independent random numbers; the rows with the smallest ones stay in the sample.
        n_seen: the number of rows of all chunks, without those of weight 0.
    """

    X: Array
    y: Array | None
    weights: Array
    keys: Array
    n_seen: int

    @classmethod
    def of(cls, X: Array, y: Array | None, sample_weight: Any, rng: np.random.Generator) -> KeptRows:
        """The rows of a chunk."""
        options: Any = {"dtype": np.float64, "ensure_non_negative": True}
        weights = np.asarray(_check_sample_weight(sample_weight, X, **options))
        return cls(X, y, weights, rng.random(len(X)), int((weights > 0).sum()))

    @property
    def sample_weight(self) -> Array | None:
        """The weights as `fit` takes them: None where they are all 1, as they are unless given."""
        return None if (self.weights == 1).all() else self.weights

    def join(self, other: KeptRows) -> KeptRows:
        """The rows of both."""
        y = None if self.y is None or other.y is None else np.concatenate([self.y, other.y])
        pairs = (self.X, other.X), (self.weights, other.weights), (self.keys, other.keys)
        X, weights, keys = (np.concatenate(pair) for pair in pairs)
        return KeptRows(X, y, weights, keys, self.n_seen + other.n_seen)

    def at_most(self, most: int | None) -> KeptRows:
        """Those with the smallest keys, at most so many."""
        if most is None or len(self.keys) <= most:
            return self
        index = smallest(self.keys, most)
        y = None if self.y is None else self.y[index]
        return KeptRows(self.X[index], y, self.weights[index], self.keys[index], self.n_seen)


def smallest(keys: Array, most: int) -> Array:
    """Numbers of the entries with the smallest keys, in ascending order."""
    return np.arange(len(keys)) if len(keys) <= most else np.sort(np.argpartition(keys, most)[:most])


def add_chunk(
    estimator: Any, X: Array, y: Array | None, sample_weight: Any, *, kept: KeptRows | None, most: Any
) -> KeptRows:
    """The rows to learn from after one more chunk.

    Args:
        estimator: that learns; its `random_state` seeds the sample.
        kept: the rows of earlier chunks; None where there were none, or where they are not known.
        most: the number of rows to keep; None keeps all.
    """
    most = None if most is None else check_count("max_rows", most, "a whole number ≥ 1 or None")
    if kept is None and hasattr(estimator, "module_"):
        kept = _stand_ins(estimator, most)
    state = estimator.random_state
    number = 0 if kept is None else kept.n_seen
    rng = np.random.default_rng([int(state), number] if isinstance(state, int | np.integer) else None)
    new = KeptRows.of(X, y, sample_weight, rng)
    return (new if kept is None else kept.join(new)).at_most(most)


def _stand_ins(estimator: Any, most: int | None) -> KeptRows:
    """Draws from a fitted model in place of the rows of its fit, which were not kept."""
    n_seen = getattr(estimator, "n_samples_seen_", None)
    if n_seen is None:
        wanted = "an estimator that knows its number of rows: fit it again"
        raise ValueError(bad_argument("partial_fit", wanted, "a file of an earlier version"))
    n = n_seen if most is None else min(n_seen, most)
    X, y = estimator._draw_rows(n)
    # Where fewer are kept than there were, their keys are the smallest of as many.
    keys = np.random.default_rng(estimator._seed).random(n_seen)
    return KeptRows(X, y, np.ones(n), np.sort(keys)[:n], n_seen)
