"""Cells removed by three mechanisms and filled in: missing cells as outcomes, as unknown values, or by 0.2.0.

30 % of the cells are removed on average:

- completely at random: every cell with the same probability;
- at random: a third of the columns stay complete; a cell of another column is missing with the probability
  0.9 · u, where u in (0, 1) is the rank of one of the complete cells of its row, averaged to 0.45, so that
  30 % of all cells are missing;
- not at random: with the probability 0.6 · u, where u is the rank of the cell itself.

Levels have a random order. A table is fitted to the incomplete rows and fills in the same rows. Version 0.2.0
does so in a process of its own (`version_0_2.py`), on the same cells.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kdmkit import KDMTable
from kdmlab.missing.data import load
from kdmlab.tables.data import Array, Rows
from kdmlab.tables.imputation import errors

METHODS = ("outcome", "unknown")
_SHARE, _COMPLETE, _MOST_ROWS = 0.3, 1 / 3, 1500


class Gaps(NamedTuple):
    """Rows of a data set, the cells removed from them, and what is left."""

    truth: Rows
    removed: Rows
    incomplete: Rows

    @classmethod
    def of(cls, dataset: str, mechanism: str, seed: int) -> Gaps:
        """The same cells in every process."""
        truth = {name: _cells(column) for name, column in load(dataset, most=_MOST_ROWS).items()}
        removed = MECHANISMS[mechanism](truth, np.random.default_rng(seed))
        incomplete = {name: np.where(removed[name], _nothing(cells), cells) for name, cells in truth.items()}
        return cls(truth, removed, incomplete)

    def errors(self, filled: Rows) -> dict[str, Any]:
        """Errors of the columns that were filled in, and their mean."""
        judged = {n: np.asarray(filled[n]) for n, mask in self.removed.items() if mask.any() and n in filled}
        result = errors(self.truth, judged, self.removed)
        return {**result, "mean": mean_error(result)}


def measure(dataset: str, mechanism: str, seed: int) -> dict[str, Any]:
    """Errors of both meanings of empty cells, in the same removed cells."""
    gaps = Gaps.of(dataset, mechanism, seed)
    results: dict[str, Any] = {"rows": len(next(iter(gaps.truth.values()))), "columns": len(gaps.truth)}
    for method in METHODS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            table = KDMTable(missing=method, random_state=seed).fit(gaps.incomplete)  # type: ignore[arg-type]
            filled = table.impute(gaps.incomplete)
        results[method] = gaps.errors({name: filled[name] for name in table.schema_.modelled})
    return results


def measure_0_2(dataset: str, mechanism: str, source: Path | None, seed: int) -> dict[str, Any]:
    """Errors of version 0.2.0, whose source is in a folder."""
    if source is None:
        raise ValueError("old: expected the folder with the source of kdmkit 0.2.0, got None")
    gaps = Gaps.of(dataset, mechanism, seed)
    cells = {
        name: [None if cell is None or cell != cell else cell for cell in column.tolist()]
        for name, column in gaps.incomplete.items()
    }
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("version_0_2.py"))],
        input=json.dumps({"seed": seed, "columns": cells}),
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(done.stdout.splitlines()[-1])
    filled = {n: np.array(column, dtype=gaps.truth[n].dtype) for n, column in answer["columns"].items()}
    return {"version": answer["version"], "0.2.0": gaps.errors(filled)}


def mean_error(result: dict[str, Any]) -> float:
    """The mean of the errors of columns: of numbers in standard deviations, of levels the share wrong."""
    numbers, levels = result["nrmse_by_column"].values(), result["accuracy_by_column"].values()
    return float(np.mean([*numbers, *(1 - share for share in levels)]))


def _cells(column: Any) -> Array:
    """Numbers, or texts of levels."""
    if column.dtype.kind in "iuf" and column.nunique() > 2:
        return np.asarray(column, dtype=np.float64)
    return np.array([str(cell) for cell in column], dtype=object)


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
