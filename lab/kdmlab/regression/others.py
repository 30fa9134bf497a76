"""The regressor on problems that its defaults were not tuned for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from kdmlab.common import (
    Mean,
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
from kdmlab.regression.data import Split
from kdmlab.regression.methods import METHODS, Method, measure
from kdmlab.regression.problems import N_TEST, PROBLEMS
from kdmlab.regression.scores import Gaussians

NAME = "regression-others"


def constant(split: Split, seed: int) -> Gaussians:
    """The same Gaussian for every row: mean and standard deviation of the targets."""
    ones = np.ones(len(split.y_test))
    return Gaussians(split.y.mean() * ones, split.y.std(ddof=1) * ones)


PEERS = {**{name: METHODS[name] for name in ("kdm", "gp")}, "constant": Method(constant, {})}


def run(
    folder: Path,
    *,
    problems: Sequence[str] = (),
    seeds: int = 5,
    workers: int = 1,
    fresh: bool = False,
    verbose: bool = True,
) -> Report:
    """Measures what is missing and writes `regression-others.jsonl` and `regression-others.md`.

    Args:
        folder: where the results are and go.
        problems: some of them; none means all.
        seeds: draws of every problem.
        workers: processes that measure at the same time, with one thread each.
        fresh: whether to measure again what was measured before.
        verbose: whether to show progress.
    """
    names = list(problems or PROBLEMS)
    tasks = [
        Task(
            {"dataset": name, "seed": seed, "method": method, "settings": dict(PEERS[method].settings)},
            partial(_measured, name, method, seed),
        )
        for seed in range(seeds)
        for name in names
        for method in PEERS
    ]
    with processes(workers) as pool:
        rows = run_tasks(tasks, folder / f"{NAME}.jsonl", fresh=fresh, verbose=verbose, pool=pool)
    return write_report(report(rows), folder / f"{NAME}.md")


def summarize(folder: Path) -> Report:
    """Writes `regression-others.md` from the lines that there are."""
    rows = newest(read_rows(folder / f"{NAME}.jsonl"), ("dataset", "method"))
    return write_report(report(rows), folder / f"{NAME}.md")


def _measured(name: str, method: str, seed: int) -> dict[str, object]:
    return measure(PEERS[method], PROBLEMS[name].split(seed), seed)


def report(rows: Sequence[Row]) -> Report:
    """NLL, RMSE and coverage of every method, side by side."""
    header = ["problem", "draws"]
    header += [f"{what}, {method}" for what in ("NLL", "RMSE", "coverage") for method in PEERS]
    cells = []
    for name in dict.fromkeys(row["dataset"] for row in rows):
        some = {method: select(rows, dataset=name, method=method) for method in PEERS}
        means = [
            format(Mean.of([row[field] for row in of_method]).mean, form)
            for field, form in (("nll", ".3f"), ("rmse", ".4g"), ("coverage90", ".3f"))
            for of_method in some.values()
        ]
        cells.append([name, str(len(some["kdm"])), *means])
    notes = [
        f"Means over draws; {N_TEST:,} rows to judge by (diabetes: 89). Coverage of central 90 % intervals. "
        "`kdm` is `KDMRegressor()`, `gp` scikit-learn's with a length scale per feature, `constant` a "
        "Gaussian with the mean and spread of the targets.",
        provenance(rows),
        "Written by `kdmlab reproduce regression-others`.",
    ]
    return Report("Regression on other problems", header, cells, notes)
