"""Novelty: how well p-values tell anomalies from held-out normal rows, beside nearest neighbours."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors
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

#: Twelve sets of ADBench in a random order (seed 0): defaults are chosen on the first six, the others are
#: measured once.
DEVELOPMENT = ("24_mnist", "43_WDBC", "20_letter", "2_annthyroid", "6_cardio", "40_vowels")
TEST = ("18_Ionosphere", "44_Wilt", "12_fault", "38_thyroid", "23_mammography", "29_Pima")
PARTS: dict[Part, tuple[str, ...]] = {"development": DEVELOPMENT, "test": TEST}
SEEDS = (0, 1, 2)
NEIGHBOURS = 5


def kdm(train: Array, rows: Array) -> Array:
    return -KDMDensity(device="cpu", random_state=0).fit(train).novelty(rows)


def neighbours(train: Array, rows: Array) -> Array:
    """The distance to the fifth neighbour among standardised rows."""
    scaler = StandardScaler().fit(train)
    model = NearestNeighbors(n_neighbors=NEIGHBOURS).fit(scaler.transform(train))
    return np.asarray(model.kneighbors(scaler.transform(rows))[0][:, -1])


def forest(train: Array, rows: Array) -> Array:
    return np.asarray(-IsolationForest(random_state=0).fit(train).score_samples(rows))


METHODS: dict[str, Callable[[Array, Array], Array]] = {
    "KDMDensity()": kdm,
    f"{NEIGHBOURS} nearest neighbours": neighbours,
    "IsolationForest": forest,
}
KDM, KNN, _ = METHODS


def measure(method: str, file: Path, seed: int) -> dict[str, Any]:
    """The area under the ROC curve, and the seconds to learn half of the normal rows and to score."""
    with np.load(file) as data:
        X, is_anomaly = data["X"].astype(float), data["y"] == 1
    normal = np.random.default_rng(seed).permutation(np.flatnonzero(~is_anomaly))
    train, held_out = X[normal[: len(normal) // 2]], X[normal[len(normal) // 2 :]]
    rows = np.concatenate([held_out, X[is_anomaly]])
    METHODS[method](train[:100], rows[:100])  # imports and first calls are not counted
    start = time.perf_counter()
    score = METHODS[method](train, rows)
    seconds = time.perf_counter() - start
    truth = np.arange(len(rows)) >= len(held_out)
    return {"auroc": float(roc_auc_score(truth, score)), "fit_and_score": seconds, "rows": len(train)}


def run(
    folder: Path, data_dir: Path, *, part: Part | None = None, fresh: bool = False, verbose: bool = True
) -> Report:
    """Measures what is missing and writes `novelty.jsonl` and `novelty.md`.

    Args:
        folder: where the results are and go.
        data_dir: the folder of the sets, `2_annthyroid.npz` and so on.
        part: the sets to measure; None is all of them.
        fresh: whether to measure again what was measured before.
        verbose: whether to show progress.
    """
    wanted = [
        Task(
            {"part": name, "data": data, "method": method, "seed": seed},
            partial(measure, method, data_dir / f"{data}.npz", seed),
        )
        for name in ([part] if part else PARTS)
        for data in PARTS[name]
        for seed in SEEDS
        for method in METHODS
    ]
    run_tasks(wanted, folder / "novelty.jsonl", fresh=fresh, verbose=verbose)
    return summarize(folder)


def summarize(folder: Path) -> Report:
    """Writes `novelty.md` from the lines that there are."""
    rows = newest(read_rows(folder / "novelty.jsonl"), ("data", "method", "seed"))
    return write_report(report(rows), folder / "novelty.md")


def report(rows: Sequence[Row]) -> Report:
    """AUROC and time of every method on every set, and the targets on the test sets."""

    def mean(data: str, method: str, result: str) -> float:
        return Mean.of([row[result] for row in select(rows, data=data, method=method)]).mean

    every = [data for sets in PARTS.values() for data in sets if select(rows, data=data, method=KDM)]
    mean_of_all = float(np.mean([mean(data, KDM, "auroc") for data in every]))
    table, claims = [], [Claim("all sets: mean AUROC", [mean_of_all], least=0.885)]
    for part, sets in PARTS.items():
        done = [data for data in sets if data in every]
        auroc = {method: [mean(data, method, "auroc") for data in done] for method in METHODS}
        seconds = {method: [mean(data, method, "fit_and_score") for data in done] for method in METHODS}
        for i, data in enumerate(done):
            cells = [f"{auroc[m][i]:.4f}" for m in METHODS] + [f"{seconds[m][i]:.3f}" for m in METHODS]
            table.append([part, data, *cells])
        if done:
            gaps = np.subtract(auroc[KDM], auroc[KNN])
            claims += [
                Claim(f"{part}: mean AUROC less that of {KNN}", [float(gaps.mean())], least=0),
                Claim(f"{part}: sets within .02 of it", [float((gaps >= -0.02).sum())], least=5),
                Claim(f"{part}: time over its time", [sum(seconds[KDM]) / sum(seconds[KNN])], most=5),
            ]
    notes = (
        claims_table(claims, ".4g"),
        f"Area under the ROC curve, mean over seeds {SEEDS}: half of the normal rows to learn from, the "
        "rest and all anomalies to test. Seconds are those of fit and scores. Neighbours are among "
        "standardised columns, their score is the distance to the last of them. That of a density is the "
        "p-value `novelty`. Defaults were chosen on the development sets; the test sets were measured once.",
        provenance(rows),
        "Written by `kdmlab reproduce novelty --data-dir DIR` from the lines in `novelty.jsonl`.",
    )
    names = list(METHODS)
    return Report("Novelty", ["part", "data", *names, *(f"s, {name}" for name in names)], table, notes)
