"""The rows of a model that learns from chunks: all of them, or some that stand for the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import numpy as np
from sklearn.utils.validation import _check_sample_weight

from kdmkit._core.checks import bad_argument, check_count
from kdmkit.estimators.common.arrays import Array

# Tells these random numbers from those of the same seed elsewhere, which may have made the rows.
_STREAM = 0x6B646D


@dataclass(frozen=True)
class KeptRows:
    """Rows of all chunks so far, in their order: a uniform sample unless a caller takes others.

    Attributes:
        X, weights: rows and their sample weights.
        y: labels; None of a density.
        keys: independent random numbers; the rows with the smallest ones stay in the sample.
        factors: what the weight of each row is multiplied by, so that it stands for rows that were dropped.
        n_seen: the number of rows of all chunks; rows of weight 0 do not count.
    """

    X: Array
    y: Array | None
    weights: Array
    keys: Array
    factors: Array
    n_seen: int

    @classmethod
    def of(cls, X: Array, y: Array | None, sample_weight: Any, rng: np.random.Generator) -> Self:
        """The rows of a chunk."""
        options: Any = {"dtype": np.float64, "ensure_non_negative": True}
        weights = np.asarray(_check_sample_weight(sample_weight, X, **options))
        present = weights > 0
        X, y, weights = X[present], None if y is None else y[present], weights[present]
        n = len(X)
        return cls(X, y, weights, rng.random(n), np.ones(n), n)

    def __len__(self) -> int:
        return len(self.X)

    @property
    def sample_weight(self) -> Array | None:
        """The weights as `fit` takes them: None where they are all 1, as they are unless given."""
        weights = self.weights * self.factors
        return None if (weights == 1).all() else weights

    def join(self, other: Self) -> Self:
        """The rows of both."""
        names = ("X", "weights", "keys", "factors")
        joined = {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in names}
        y = None if self.y is None or other.y is None else np.concatenate([self.y, other.y])
        return replace(self, **joined, y=y, n_seen=self.n_seen + other.n_seen)

    def at_most(self, most: int | None) -> Self:
        """Those with the smallest keys, at most so many; they stand for all."""
        if most is None or len(self) <= most:
            return self
        return self.take(smallest(self.keys, most), np.full(most, self.n_seen / most))

    def take(self, index: Array, factors: Array) -> Self:
        """Some of the rows, with factors of their weights."""
        y = None if self.y is None else self.y[index]
        return replace(
            self,
            X=self.X[index],
            y=y,
            weights=self.weights[index],
            keys=self.keys[index],
            factors=factors,
        )


Rows = TypeVar("Rows", bound=KeptRows)


def smallest(keys: Array, most: int) -> Array:
    """Numbers of the entries with the smallest keys, in ascending order."""
    return np.arange(len(keys)) if len(keys) <= most else np.sort(np.argpartition(keys, most)[:most])


def add_chunk(
    estimator: Any,
    X: Array,
    y: Array | None,
    sample_weight: Any,
    *,
    kept: Rows | None,
    most: Any,
    of: Callable[..., Rows],
) -> Rows:
    """The rows that are at hand with one more chunk.

    Args:
        estimator: that learns; its `random_state` seeds what is random.
        kept: the rows of earlier chunks; None where there were none, or where they are not known.
        most: the number of rows to keep; None keeps all.
        of: makes them of arrays, as `KeptRows.of` does.
    """
    check_most(most)
    if kept is None and hasattr(estimator, "module_"):
        kept = _stand_ins(estimator, most, of)
    new = of(X, y, sample_weight, generator_of(estimator, 0 if kept is None else kept.n_seen))
    return new if kept is None else kept.join(new)


def generator_of(estimator: Any, *numbers: int) -> np.random.Generator:
    """Random numbers of one step; they repeat where the estimator's `random_state` is a number."""
    state = estimator.random_state
    return np.random.default_rng(
        [int(state), *numbers, _STREAM] if isinstance(state, int | np.integer) else None
    )


def check_most(most: Any) -> None:
    """Checks the number of rows to keep."""
    if most is not None:
        check_count("max_rows", most, "a whole number ≥ 1 or None")


def _stand_ins(estimator: Any, most: int | None, of: Callable[..., Rows]) -> Rows:
    """Draws from a fitted model in place of the rows of its fit, which were not kept."""
    n_seen = getattr(estimator, "n_samples_seen_", None)
    if n_seen is None:
        wanted = "an estimator that knows its number of rows: fit it again"
        raise ValueError(bad_argument("partial_fit", wanted, "a file of an earlier version"))
    n = n_seen if most is None else min(n_seen, most)
    rng = np.random.default_rng(estimator._seed)
    drawn = of(*estimator._draw_rows(n), None, rng)
    # Where fewer are kept than there were, their keys are the smallest of as many.
    keys = np.sort(rng.random(n_seen))[:n]
    return replace(drawn, keys=keys, factors=np.full(n, n_seen / n), n_seen=n_seen)
