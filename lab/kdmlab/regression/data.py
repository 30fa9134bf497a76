"""The UCI regression sets with their standard splits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdmlab.common.checks import bad_argument
from kdmlab.common.files import read_arrays

Array = NDArray[Any]

DATASETS = ("concrete", "energy", "power-plant", "wine-quality-red")
_FOLDERS = (".", "regression", "uci/regression")


@dataclass(frozen=True)
class Split:
    """One standard split: training rows and test rows."""

    X: Array
    y: Array
    X_test: Array
    y_test: Array


@dataclass(frozen=True)
class Table:
    """Rows, targets, and one mask of test rows per split."""

    X: Array
    y: Array
    test_mask: Array

    @property
    def n_splits(self) -> int:
        return len(self.test_mask)

    def split(self, number: int) -> Split:
        test = self.test_mask[number]
        return Split(self.X[~test], self.y[~test], self.X[test], self.y[test])


def load(data_dir: Path, name: str) -> Table:
    """The set `<name>.npz` in a folder: `X` (n, d), `y` (n,), `test_mask` (splits, n)."""
    path = _find(data_dir, name)
    arrays = read_arrays(path, "a NumPy archive")
    missing = {"X", "y", "test_mask"} - set(arrays)
    if missing:
        raise ValueError(bad_argument(str(path), "arrays X, y and test_mask", f"no {sorted(missing)}"))
    X, y, mask = arrays["X"], arrays["y"], arrays["test_mask"]
    _check(path, X, y, mask)
    return Table(X.astype(np.float64), y.astype(np.float64), mask.astype(bool))


def _find(data_dir: Path, name: str) -> Path:
    for folder in _FOLDERS:
        path = data_dir / folder / f"{name}.npz"
        if path.is_file():
            return path
    raise FileNotFoundError(bad_argument("data_dir", f"a folder with {name}.npz", str(data_dir)))


def _check(path: Path, X: Array, y: Array, mask: Array) -> None:
    n = len(X)
    if X.ndim != 2 or y.shape != (n,) or mask.ndim != 2 or mask.shape[1] != n:
        shapes = f"X {X.shape}, y {y.shape}, test_mask {mask.shape}"
        raise ValueError(bad_argument(str(path), "X (n, d), y (n,) and test_mask (splits, n)", shapes))
    if not (np.isfinite(X).all() and np.isfinite(y).all()):
        raise ValueError(bad_argument(str(path), "finite numbers", "NaN or infinity"))
    tests = mask.astype(bool).sum(1)
    if len(tests) == 0 or tests.min() < 1 or tests.max() >= n:
        raise ValueError(bad_argument(str(path), "test and training rows in every split", f"{tests} of {n}"))
