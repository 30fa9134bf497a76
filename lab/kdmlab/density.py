"""Held-out log-likelihood of densities, beside scikit-learn's mixtures and kernel density estimates."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.datasets import load_breast_cancer, load_iris, load_wine, make_moons
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.neighbors import KernelDensity
from sklearn.preprocessing import StandardScaler

from kdmkit import KDMDensity
from kdmlab.common import (
    Mean,
    Report,
    Row,
    Task,
    newest,
    provenance,
    read_rows,
    run_tasks,
    select,
    write_report,
)
from kdmlab.common.checks import bad_argument

Array = NDArray[Any]

SEED = 0
INNER_FOLDS = 5
COUNTS = [1, 2, 4, 8, 16, 32, 64]
BANDWIDTHS = [round(float(h), 4) for h in np.geomspace(0.05, 2.0, 30)]


@dataclass(frozen=True)
class Method:
    """An estimator, and the values that inner cross-validation chooses from."""

    name: str
    estimator: BaseEstimator
    grid: Mapping[str, Sequence[Any]] | None = None
    peer: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """Options that differ from the estimator's defaults."""
        chosen = {"estimator": repr(self.estimator)}
        return chosen if self.grid is None else {**chosen, **self.grid, "inner_folds": INNER_FOLDS}

    def fit(self, X: Array) -> tuple[Any, dict[str, Any]]:
        """The fitted estimator, and what inner cross-validation chose."""
        if self.grid is None:
            return clone(self.estimator).fit(X), {}
        inner = KFold(INNER_FOLDS, shuffle=True, random_state=SEED)
        search = GridSearchCV(self.estimator, dict(self.grid), cv=inner).fit(X)
        return search.best_estimator_, search.best_params_


_LIKELIHOOD = KDMDensity(method="likelihood", random_state=SEED)
METHODS = (
    Method("KDM likelihood", _LIKELIHOOD),
    Method("KDM likelihood, count by CV", _LIKELIHOOD, {"n_components": COUNTS}),
    Method("KDM nonparametric", KDMDensity(random_state=SEED)),
    *(
        Method(
            f"GaussianMixture {shape}",
            GaussianMixture(covariance_type=shape, random_state=SEED),
            {"n_components": COUNTS},
            peer=True,
        )
        for shape in ("diag", "tied")
    ),
    Method("KernelDensity", KernelDensity(), {"bandwidth": BANDWIDTHS}, peer=True),
)


def datasets() -> dict[str, Array]:
    """The rows of all data, as they come."""
    return {
        "iris": load_iris().data,
        "wine": load_wine().data,
        "breast cancer": load_breast_cancer().data,
        "two moons": make_moons(1000, noise=0.2, random_state=SEED)[0],
    }


def run(folder: Path, *, folds: int = 5, fresh: bool = False, verbose: bool = True) -> Report:
    """Measures every method on every fold and writes `density.jsonl` and `density.md`.

    Args:
        folder: where the results are and go.
        folds: of the outer cross-validation.
        fresh: whether to measure again what was measured before.
        verbose: whether to show progress.
    """
    rows = run_tasks(tasks(folds), folder / "density.jsonl", fresh=fresh, verbose=verbose)
    return write_report(report(rows, folds), folder / "density.md")


def summarize(folder: Path, *, folds: int = 5) -> Report:
    """Writes `density.md` from the lines that there are."""
    rows = [row for row in read_rows(folder / "density.jsonl") if row["folds"] == folds]
    return write_report(report(newest(rows, ("dataset", "method")), folds), folder / "density.md")


def tasks(folds: int) -> list[Task]:
    data = datasets()
    most = min(map(len, data.values()))
    if not 2 <= folds <= most:
        raise ValueError(bad_argument("folds", f"2 to {most}, the rows of the smallest data set", folds))
    return [
        Task(
            {
                "dataset": name,
                "fold": fold,
                "folds": folds,
                "method": method.name,
                "settings": method.settings,
                "seed": SEED,
            },
            partial(held_out, method, X[train], X[test]),
        )
        for name, X in data.items()
        for fold, (train, test) in enumerate(KFold(folds, shuffle=True, random_state=SEED).split(X))
        for method in METHODS
    ]


def held_out(method: Method, train: Array, test: Array) -> dict[str, Any]:
    """The mean log-density of test rows, in units of the training rows' standard deviations."""
    scaler = StandardScaler().fit(train)
    with warnings.catch_warnings():
        # Mixtures of many components on few rows; cross-validation does not choose those.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model, chosen = method.fit(scaler.transform(train))
    log_likelihood = float(model.score_samples(scaler.transform(test)).mean())
    return {"log_likelihood": log_likelihood, "chosen": chosen, "rows": len(test)}


def report(rows: Sequence[Row], folds: int) -> Report:
    """Means over folds, and the distance of every KDM from the best of the others."""
    names = list(dict.fromkeys(row["dataset"] for row in rows))
    means = {method.name: {name: _mean(rows, method.name, name) for name in names} for method in METHODS}
    best = {name: max(means[method.name][name] for method in METHODS if method.peer) for name in names}
    table = [[method.name, *(f"{means[method.name][name]:.3f}" for name in names)] for method in METHODS]
    for method in METHODS:
        if not method.peer:
            gaps = (f"{means[method.name][name] - best[name]:+.3f}" for name in names)
            table.append([f"{method.name} − best peer", *gaps])
    inner = f"{INNER_FOLDS}-fold cross-validation"
    notes = (
        f"Mean log p(x) of held-out rows in nats, higher is better: {folds}-fold cross-validation (shuffled, "
        f"seed {SEED}), scaler fitted to each training fold. Component counts from {_braced(COUNTS)} "
        f"and {len(BANDWIDTHS)} bandwidths from {BANDWIDTHS[0]} to {BANDWIDTHS[-1]} chosen by inner {inner}; "
        "“KDM likelihood” has its default count.",
        provenance(rows),
        f"Written by `kdmlab reproduce density --folds {folds}` from the lines in `density.jsonl`.",
    )
    return Report("Held-out log-likelihood", ["method", *names], table, notes)


def _mean(rows: Sequence[Row], method: str, dataset: str) -> float:
    some = select(rows, method=method, dataset=dataset)
    return Mean.of([row["log_likelihood"] for row in some]).mean if some else math.nan


def _braced(values: Sequence[int]) -> str:
    return "{" + ", ".join(map(str, values)) + "}"
