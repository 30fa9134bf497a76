"""Cells removed by three mechanisms and filled in: missing cells as outcomes, or as unknown values.

30 % of the cells are removed on average:

- completely at random: every cell with the same probability;
- at random: a third of the columns stay complete; a cell of another column is missing with the probability
  0.9 · u, where u in (0, 1) is the rank of one of the complete cells of its row, averaged to 0.45, so that
  30 % of all cells are missing;
- not at random: with the probability 0.6 · u, where u is the rank of the cell itself.

Levels have a random order. A table is fitted to the incomplete rows and fills in the same rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from kdmkit import KDMTable
from kdmlab.missing.data import load
from kdmlab.tables.data import Array, Rows
from kdmlab.tables.imputation import errors

METHODS = ("outcome", "unknown")
_SHARE, _COMPLETE, _MOST_ROWS = 0.3, 1 / 3, 1500


def measure(dataset: str, mechanism: str, seed: int) -> dict[str, Any]:
    """Errors of both meanings of empty cells, in the same removed cells."""
    frame = load(dataset, most=_MOST_ROWS)
    truth: Rows = {
        name: np.asarray(column, dtype=np.float64 if _is_number(column) else object)
        for name, column in frame.items()
    }
    truth = {
        n: c if c.dtype != object else np.array([str(v) for v in c], dtype=object) for n, c in truth.items()
    }
    rng = np.random.default_rng(seed)
    removed = MECHANISMS[mechanism](truth, rng)
    incomplete = {name: np.where(removed[name], _nothing(cells), cells) for name, cells in truth.items()}
    judged = {name: mask for name, mask in removed.items() if mask.any()}
    scores: dict[str, Any] = {"rows": len(frame), "columns": frame.shape[1]}
    for method in METHODS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            table = KDMTable(missing=method, random_state=seed).fit(incomplete)  # type: ignore[arg-type]
            filled = table.impute(incomplete)
        some = {name: np.asarray(filled[name]) for name in judged if name in table.schema_.modelled}
        scores[method] = errors(truth, some, removed)
        scores[method]["mean"] = mean_error(scores[method])
    return scores


def mean_error(scores: dict[str, Any]) -> float:
    """The mean of the errors of columns: of numbers in standard deviations, of levels the share wrong."""
    numbers, levels = scores["nrmse_by_column"].values(), scores["accuracy_by_column"].values()
    return float(np.mean([*numbers, *(1 - share for share in levels)]))


def _is_number(column: Any) -> bool:
    return column.dtype.kind in "iuf" and column.nunique() > 2


def _nothing(cells: Array) -> Any:
    return None if cells.dtype == object else np.nan


def _ranks(cells: Array, rng: np.random.Generator) -> Array:
    """Ranks in (0, 1); equal cells have the same one, and levels are in a random order."""
    _, codes, counts = np.unique(cells, return_inverse=True, return_counts=True)
    order = rng.permutation(len(counts)) if cells.dtype == object else np.arange(len(counts))
    below = np.empty(len(counts))
    below[order] = np.cumsum(counts[order]) - counts[order] / 2
    return np.asarray(below[codes] / len(cells))


def completely_at_random(rows: Rows, rng: np.random.Generator) -> Rows:
    return {name: rng.random(len(cells)) < _SHARE for name, cells in rows.items()}


def at_random(rows: Rows, rng: np.random.Generator) -> Rows:
    names = list(rows)
    complete = set(rng.choice(names, max(1, round(_COMPLETE * len(names))), replace=False).tolist())
    ranks = {name: _ranks(rows[name], rng) for name in sorted(complete)}
    most = 2 * _SHARE * len(names) / (len(names) - len(complete))
    return {
        name: np.zeros(len(cells), bool)
        if name in complete
        else rng.random(len(cells)) < most * ranks[rng.choice(sorted(complete))]
        for name, cells in rows.items()
    }


def not_at_random(rows: Rows, rng: np.random.Generator) -> Rows:
    return {name: rng.random(len(cells)) < 2 * _SHARE * _ranks(cells, rng) for name, cells in rows.items()}


MECHANISMS: dict[str, Callable[[Rows, np.random.Generator], Rows]] = {
    "completely at random": completely_at_random,
    "at random": at_random,
    "not at random": not_at_random,
}
