"""The two data sets as pools to draw bags from, and their rows as features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.preprocessing import OneHotEncoder

from kdmlab.common.checks import bad_argument
from kdmlab.datasets import read_adult, read_magic

Array = NDArray[Any]


@dataclass(frozen=True)
class Dataset:
    """Rows with labels. The first `numeric` columns are numbers, the others one-hot categories.

    Args:
        X: of shape `(n, d)`.
        y: of shape `(n,)`, 0 or 1.
        numeric: how many columns are numbers.
        test: the rows of the official test part; None where every trial draws one of a fifth.
        total: T, how many rows a trial puts into bags.
    """

    name: str
    X: Array
    y: Array
    numeric: int
    test: Array | None
    total: int

    def split(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """The rows of a trial's pool and of its test part."""
        order = rng.permutation(len(self.y))
        test = order[: len(self.y) // 5] if self.test is None else self.test
        return np.setdiff1d(order, test), np.sort(test)

    def standardized(self, rows: Array) -> Array:
        """All features, numbers with mean 0 and variance 1 on `rows`; constant ones are left alone."""
        numbers = self.X[:, : self.numeric]
        scale = numbers[rows].std(0)
        scaled = (numbers - numbers[rows].mean(0)) / np.where(scale > 0, scale, 1.0)
        return np.concatenate([scaled, self.X[:, self.numeric :]], 1)


def _adult(folder: Path) -> Dataset:
    train, test = read_adult(folder)
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(train.categorical)
    X = [np.concatenate([part.numeric, encoder.transform(part.categorical)], 1) for part in (train, test)]
    rows = np.arange(len(train.y), len(train.y) + len(test.y))
    y = np.concatenate([train.y, test.y])
    return Dataset("adult", np.concatenate(X), y, train.numeric.shape[1], rows, total=8192)


def _magic(folder: Path) -> Dataset:
    X, y = read_magic(folder)
    return Dataset("magic", X, y, X.shape[1], None, total=6144)


DATASETS: dict[str, Callable[[Path], Dataset]] = {"adult": _adult, "magic": _magic}


def load(name: str, folder: Path) -> Dataset:
    """Adult (32,561 rows and 16,281 to test, 108 features) or MAGIC (19,020 rows, ten features)."""
    if name not in DATASETS:
        raise ValueError(bad_argument("dataset", f"one of {', '.join(DATASETS)}", name))
    return DATASETS[name](folder)
