"""Simulated regression problems: few rows, skewed or discrete targets, many features, pure noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from sklearn import datasets

from kdmlab.regression.data import Split

Array = NDArray[Any]
N_TEST = 2000
_SLOPES = np.array([1.0, -2.0, 0.5, 0.0, 1.5])


@dataclass(frozen=True)
class Problem:
    """A distribution of rows, and of targets given rows.

    Args:
        n: the number of training rows.
        rows: draws that many rows.
        targets: draws a target for every row.
    """

    n: int
    rows: Callable[[Generator, int], Array]
    targets: Callable[[Generator, Array], Array]

    def split(self, seed: int) -> Split:
        """Training rows, and 2,000 test rows."""
        rng = np.random.default_rng([seed, self.n])
        X = self.rows(rng, self.n + N_TEST)
        y = self.targets(rng, X)
        return Split(X[: self.n], y[: self.n], X[self.n :], y[self.n :])


def _normal(d: int) -> Callable[[Generator, int], Array]:
    return lambda rng, n: rng.normal(size=(n, d))


def _uniform(low: float, high: float, d: int) -> Callable[[Generator, int], Array]:
    return lambda rng, n: rng.uniform(low, high, (n, d))


def _linear(rng: Generator, X: Array) -> Array:
    return X[:, :5] @ _SLOPES + rng.normal(size=len(X))


def _wave(rng: Generator, X: Array) -> Array:
    return np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=len(X))


def _spreading(rng: Generator, X: Array) -> Array:
    return X @ _SLOPES + np.exp(0.8 * X[:, 3]) * rng.normal(size=len(X))


def _branches(rng: Generator, X: Array) -> Array:
    return rng.choice([-1, 1], len(X)) * (1 + X[:, 0] ** 2 / 2) + 0.15 * rng.normal(size=len(X))


def _heavy(rng: Generator, X: Array) -> Array:
    return X @ _SLOPES + rng.standard_t(2, size=len(X))


def _skewed(rng: Generator, X: Array) -> Array:
    return np.exp(0.18 * X @ _SLOPES + 0.8 * rng.normal(size=len(X)))


def _counts(rng: Generator, X: Array) -> Array:
    return rng.poisson(2 * np.exp(0.5 * X[:, 0] - 0.3 * X[:, 1])).astype(float)


def _friedman(rng: Generator, X: Array) -> Array:
    """Friedman's first function, as scikit-learn has it."""
    smooth = 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4]
    return np.asarray(smooth + rng.normal(size=len(X)))


def _steps(rng: Generator, X: Array) -> Array:
    return 5.0 * (X[:, 0] > 0) - 3.0 * (X[:, 1] > 0.5) + 0.3 * rng.normal(size=len(X))


def _nothing(rng: Generator, X: Array) -> Array:
    return rng.normal(size=len(X))


def _scales(rng: Generator, n: int) -> Array:
    """A feature in millions, one in millionths, one far from zero, one constant."""
    X = rng.normal(size=(n, 5)) * [1e6, 1, 1e-6, 1, 1] + [0, 1e6, 0, 0, 0]
    return np.column_stack([X, np.full(n, 3.0)])


def _of_scales(rng: Generator, X: Array) -> Array:
    return _linear(rng, (X[:, :5] - [0, 1e6, 0, 0, 0]) / [1e6, 1, 1e-6, 1, 1])


@dataclass(frozen=True)
class Diabetes:
    """scikit-learn's diabetes set, with a fifth of its 442 rows for tests."""

    n: int = 353

    def split(self, seed: int) -> Split:
        X, y = datasets.load_diabetes(return_X_y=True)
        order = np.random.default_rng(seed).permutation(len(y))
        train, test = order[: self.n], order[self.n :]
        return Split(X[train], y[train], X[test], y[test])


PROBLEMS: dict[str, Problem | Diabetes] = {
    **{f"linear, {n} rows": Problem(n, _normal(5), _linear) for n in (10, 20, 40, 60, 100)},
    **{f"wave, {n} rows": Problem(n, _uniform(-2, 2, 1), _wave) for n in (10, 20, 200)},
    **{f"Friedman's first, {n} rows": Problem(n, _uniform(0, 1, 10), _friedman) for n in (100, 1000)},
    "linear, 100 features, 60 rows": Problem(60, _normal(100), _linear),
    "nothing to learn, 300 rows": Problem(300, _normal(5), _nothing),
    "spread that grows, 300 rows": Problem(300, _normal(5), _spreading),
    "two branches, 500 rows": Problem(500, _uniform(-2, 2, 1), _branches),
    "Student's noise, 300 rows": Problem(300, _normal(5), _heavy),
    "log-normal targets, 300 rows": Problem(300, _normal(5), _skewed),
    "counts, 300 rows": Problem(300, _normal(5), _counts),
    "steps, 300 rows": Problem(300, _normal(5), _steps),
    "features of all scales, 200 rows": Problem(200, _scales, _of_scales),
    "diabetes, 353 rows": Diabetes(),
}
