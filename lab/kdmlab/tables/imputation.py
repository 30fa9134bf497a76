"""Missing cells filled in by several methods, compared with what was there.

Protocol: 30 % of the cells of every column, the target among them, are removed completely at random. A method
is fitted to the incomplete rows and fills in the same rows; no method sees a complete row or a removed cell.
Cells that were missing from the start stay missing and are not judged.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.impute import KNNImputer
from sklearn.linear_model import BayesianRidge

from kdmkit import KDMTable
from kdmlab.tables.data import Array, Rows, is_missing
from kdmlab.tables.frames import frames, levels_of

SHARE = 0.3
#: Levels with a smaller share of the rows have no indicator of their own in the peers' matrices.
_RARE = 0.01


def remove_cells(rows: Mapping[str, Array], seed: int, share: float = SHARE) -> tuple[Rows, Rows]:
    """The rows without some of their cells, and masks of the removed cells by column."""
    rng = np.random.default_rng(seed)
    removed = {name: (rng.random(len(column)) < share) & ~is_missing(column) for name, column in rows.items()}
    return {name: _without(column, removed[name]) for name, column in rows.items()}, removed


def _without(column: Array, removed: Array) -> Array:
    nothing: Any = None if column.dtype == object else np.nan
    return np.where(removed, nothing, column)


def errors(
    truth: Mapping[str, Array], filled: Mapping[str, Array], removed: Mapping[str, Array]
) -> dict[str, Any]:
    """Errors in the removed cells of the columns that were filled in, by column and their means.

    `nrmse`: the root mean squared error of a column of numbers over its standard deviation. `accuracy`: the
    share of the categories that are right.
    """
    nrmse, accuracy = {}, {}
    for name in filled:
        mask = removed[name]
        true, guess = truth[name][mask], filled[name][mask]
        if truth[name].dtype == object:
            accuracy[name] = float(np.mean(true == guess))
        elif spread := float(np.nanstd(np.asarray(truth[name], np.float64))):
            error = np.asarray(guess, np.float64) - true
            nrmse[name] = float(np.sqrt(np.mean(error**2))) / spread
    return {
        "nrmse": float(np.mean(list(nrmse.values()))) if nrmse else None,
        "accuracy": float(np.mean(list(accuracy.values()))) if accuracy else None,
        "nrmse_by_column": nrmse,
        "accuracy_by_column": accuracy,
    }


# ---- methods


def table_imputed(table: KDMTable, rows: Rows) -> Rows:
    """The conditional mean of numbers and the most probable level of categories."""
    return {name: np.asarray(column) for name, column in table.impute(rows).items()}


def mean_and_mode(rows: Rows, seed: int) -> Rows:
    def fill(column: Array) -> Array:
        observed = column[~is_missing(column)]
        value = _most_frequent(observed) if column.dtype == object else float(observed.mean())
        return np.where(is_missing(column), value, column)

    return {name: fill(column) for name, column in rows.items()}


def _most_frequent(column: Array) -> str:
    levels, counts = np.unique(column.astype(str), return_counts=True)
    return str(levels[counts.argmax()])


def ridge(rows: Rows, seed: int) -> Rows:
    """scikit-learn's IterativeImputer with BayesianRidge, its default, on numbers and indicators."""
    matrix = Matrix.of(rows)
    return matrix.rows(_iterated(BayesianRidge(), matrix.values, seed))


def trees(rows: Rows, seed: int) -> Rows:
    """IterativeImputer with ExtraTrees, on numbers and codes of levels; fills in the numbers only."""
    forest = ExtraTreesRegressor(n_estimators=50, min_samples_leaf=5, n_jobs=-1, random_state=seed)
    names = [name for name, column in rows.items() if column.dtype != object]
    values = np.stack([_coded(column) for column in rows.values()], axis=1)
    filled = dict(zip(rows, _iterated(forest, values, seed).T, strict=True))
    return {name: filled[name] for name in names}


def neighbours(rows: Rows, seed: int) -> Rows:
    """scikit-learn's KNNImputer with its defaults, on standardised numbers and indicators of levels."""
    matrix = Matrix.of(rows)
    return matrix.rows(KNNImputer().fit_transform(matrix.values))


def miceforest(rows: Rows, seed: int) -> Rows:
    """Chained boosted trees, five rounds, with predictions in place of draws: these err less."""
    from miceforest import ImputationKernel

    (frame,) = frames(rows)
    names = [f"c{i}" for i in range(frame.shape[1])]  # LightGBM takes no special characters in names
    kernel = ImputationKernel(
        frame.set_axis(names, axis=1), num_datasets=1, mean_match_candidates=0, random_state=seed
    )
    kernel.mice(5)
    done = kernel.complete_data(0)
    return {name: np.asarray(done[c], rows[name].dtype) for c, name in zip(names, rows, strict=True)}


PEERS: dict[str, Callable[[Rows, int], Rows]] = {
    "mean and mode": mean_and_mode,
    "BayesianRidge": ridge,
    "ExtraTrees": trees,
    "KNN": neighbours,
    "miceforest": miceforest,
}


def _iterated(model: Any, values: Array, seed: int) -> Array:
    """The matrix filled in by ten rounds, the default.

    Values stay within those of their column: where columns determine each other (a code and its text), the
    rounds would drift away in rows that lack both.
    """
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        low, high = np.nanmin(values, axis=0), np.nanmax(values, axis=0)
        imputer = IterativeImputer(model, min_value=low, max_value=high + (high == low), random_state=seed)
        return np.asarray(imputer.fit_transform(values))


def _coded(column: Array) -> Array:
    """Numbers as they are; levels by their place in the order of the alphabet."""
    if column.dtype != object:
        return np.asarray(column, np.float64)
    missing = is_missing(column)
    codes = np.full(len(column), np.nan)
    codes[~missing] = np.unique(column[~missing].astype(str), return_inverse=True)[1]
    return codes


@dataclass(frozen=True)
class Matrix:
    """Rows as one matrix: standardised numbers, and indicators of the frequent levels of categories.

    The most frequent level has no indicator: with it, the indicators of a missing cell would determine each
    other, and chained equations would never leave their start.

    Args:
        values: the matrix; all indicators of a missing category are NaN.
        sources: the rows that it was made of.
        levels: of every category, the most frequent level and those that have an indicator.
    """

    values: Array
    sources: Rows
    levels: Mapping[str, list[str]]

    @classmethod
    def of(cls, rows: Rows) -> Matrix:
        levels = {name: _frequent(column) for name, column in rows.items() if column.dtype == object}
        parts = [
            _indicators(column, levels[name]) if name in levels else _standardised(column)[:, None]
            for name, column in rows.items()
        ]
        return cls(np.concatenate(parts, axis=1), rows, levels)

    def rows(self, filled: Array) -> Rows:
        """Rows of a filled-in matrix: numbers in their units, of the indicators the largest one."""
        columns, start = {}, 0
        for name, column in self.sources.items():
            width = len(self.levels[name]) - 1 if name in self.levels else 1
            part = filled[:, start : start + width]
            if name in self.levels:
                shares = np.concatenate([1 - part.sum(axis=1, keepdims=True), part], axis=1)
                value = np.array(self.levels[name], dtype=object)[shares.argmax(axis=1)]
            else:
                value = part[:, 0] * (np.nanstd(column) or 1.0) + np.nanmean(column)
            columns[name] = np.where(is_missing(column), value, column)
            start += width
        return columns


def _frequent(column: Array) -> list[str]:
    """Levels with rows enough, the most frequent one first."""
    shares = {level: float(np.mean(column == level)) for level in levels_of(column)}
    first, *others = sorted(shares, key=lambda level: -shares[level])
    return [first, *(level for level in others if shares[level] >= _RARE)]


def _indicators(column: Array, levels: list[str]) -> Array:
    indicators = (column[:, None] == np.array(levels[1:], dtype=object)).astype(np.float64)
    indicators[is_missing(column)] = np.nan
    return indicators


def _standardised(column: Array) -> Array:
    return (np.asarray(column, np.float64) - np.nanmean(column)) / (np.nanstd(column) or 1.0)
