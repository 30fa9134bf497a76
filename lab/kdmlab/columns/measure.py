"""Fits of every column and pair, and the table of their held-out likelihoods."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import KFold

from kdmkit import KDMDensity
from kdmlab.columns.data import DEVELOPMENT, TEST, Columns, rows_of
from kdmlab.columns.mass import Mixture, cell_width, log_mass
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

SEED, FOLDS, MOST_COMPONENTS = 0, 5, 10
# Held-out rows per fold: more would change the third digit and take long.
MOST_HELD_OUT = 400
PARTS: dict[Part, tuple[Columns, ...]] = {"development": DEVELOPMENT, "test": TEST}


def kdm(train: Array) -> Mixture:
    rho = KDMDensity(random_state=SEED).fit(train).kdm_
    std = np.broadcast_to(np.asarray(rho.kernel.std), rho.components.shape)
    covariances = std[:, :, None] ** 2 * np.eye(train.shape[1])
    return Mixture(np.asarray(rho.components), covariances, np.exp(np.asarray(rho.log_weights)))


def scipy_kde(train: Array) -> Mixture:
    peer = stats.gaussian_kde(train.T)
    return Mixture(train, peer.covariance, peer.weights)


def mixture_by_bic(train: Array) -> Mixture:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        counts = range(1, min(MOST_COMPONENTS, len(train) // 5) + 1)
        fits = [GaussianMixture(k, random_state=SEED).fit(train) for k in counts]
    best = min(fits, key=lambda fit: fit.bic(train))
    return Mixture(best.means_, best.covariances_, best.weights_)


METHODS: dict[str, Callable[[Array], Mixture]] = {
    "KDMDensity()": kdm,
    "scipy gaussian_kde": scipy_kde,
    "GaussianMixture by BIC": mixture_by_bic,
}
KDM, *PEERS = METHODS


def held_out(method: str, names: Columns, fold: int) -> dict[str, Any]:
    """The mean log-likelihood of held-out rows, in units of the training rows' standard deviations."""
    x = rows_of(names)
    widths = np.array([cell_width(column) for column in x.T])
    train, test = list(KFold(FOLDS, shuffle=True, random_state=SEED).split(x))[fold]
    test = test[:: -(-len(test) // MOST_HELD_OUT)]
    shift, scale = x[train].mean(0), x[train].std(0)
    mixture = METHODS[method]((x[train] - shift) / scale)
    nats = log_mass(mixture, (x[test] - shift) / scale, widths / scale)
    return {"log_likelihood": float(nats.mean()), "rows": len(test), "components": len(mixture.means)}


def tasks(part: Part) -> list[Task]:
    return [
        Task(
            {"part": part, "columns": "/".join(names), "fold": fold, "folds": FOLDS, "method": method}
            | {"seed": SEED},
            partial(held_out, method, names, fold),
        )
        for names in PARTS[part]
        for method in METHODS
        for fold in range(FOLDS)
    ]


def run(folder: Path, *, part: Part | None = None, fresh: bool = False, verbose: bool = True) -> Report:
    """Measures what is missing and writes `columns.jsonl` and `columns.md`.

    Args:
        folder: where the results are and go.
        part: the columns to measure; None is all of them.
        fresh: whether to measure again what was measured before.
        verbose: whether to show progress.
    """
    wanted = [task for name in ([part] if part else PARTS) for task in tasks(name)]
    run_tasks(wanted, folder / "columns.jsonl", fresh=fresh, verbose=verbose)
    return summarize(folder)


def summarize(folder: Path) -> Report:
    """Writes `columns.md` from the lines that there are."""
    rows = newest(read_rows(folder / "columns.jsonl"), ("columns", "method", "fold"))
    return write_report(report(rows), folder / "columns.md")


def report(rows: Sequence[Row]) -> Report:
    """Means over folds of every method, and the targets on the test columns."""
    gaps: dict[str, list[float]] = {}
    table = []
    for part, columns in ((part, columns) for part, every in PARTS.items() for columns in every):
        names = "/".join(columns)
        some = {method: select(rows, columns=names, method=method) for method in METHODS}
        if not all(some.values()):
            continue
        means = {method: Mean.of([r["log_likelihood"] for r in lines]).mean for method, lines in some.items()}
        gap = (means[KDM] - max(means[peer] for peer in PEERS)) / (len(columns) - 1)
        gaps.setdefault(part, []).append(gap)
        table.append([part, names, *(f"{means[method]:.3f}" for method in METHODS), f"{gap:+.3f}"])
    claims = [
        Claim(f"{part}: {what}", [float(sum(test(gap) for gap in gaps.get(part, [])))], least, runs=1)
        for part in PARTS
        for what, test, least in (
            ("within .05 nats per dimension of the best", lambda gap: gap >= -0.05, 8),
            ("best", lambda gap: gap > 0, 4),
        )
    ]
    notes = (
        claims_table(claims, ".0f", "columns of ten"),
        f"Mean log-likelihood of held-out rows in nats, higher is better: {FOLDS} folds (shuffled, seed "
        f"{SEED}; at most {MOST_HELD_OUT} rows each), in units of the training rows' standard deviations. "
        "Rounded columns are scored by the mass of their cell. The last column is the distance to the better "
        "peer, per dimension. The columns are what `experiments.columns.data.draw(0)` gives: defaults were "
        "chosen on the first ten, the others were measured once. The mixture has full covariances and 1 to "
        f"{MOST_COMPONENTS} components.",
        provenance(rows),
        "Written by `kdmlab reproduce columns` from the lines in `columns.jsonl`.",
    )
    header = ["part", "columns", *METHODS, "KDM − best peer"]
    return Report("Densities of columns and pairs of columns", header, table, notes)
