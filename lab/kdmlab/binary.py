"""Test log-likelihood of trees on binary tables, with the splits of the literature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import kdmkit as kdm
from kdmkit.nn import TreeLayer, Variable
from kdmkit.training import TREE_RECIPE, Table, fit_tree, tree_options
from kdmlab.common import (
    Claim,
    Mean,
    Report,
    Row,
    Task,
    claims_table,
    newest,
    processes,
    provenance,
    read_rows,
    run_tasks,
    select,
    some_of,
    write_report,
)
from kdmlab.likelihoods import Columns, likelihoods, n_rows

#: The lowest test log-likelihood that a tree may have on each data set, and the published ones of hidden
#: Chow–Liu trees.
TARGETS = {"nltcs": -6.00, "plants": -12.7, "audio": -39.70, "jester": -52.40, "dna": -79.8}
PUBLISHED = {"nltcs": -6.00, "plants": -14.26, "audio": -39.77, "jester": -52.46, "dna": -79.06}
SEEDS = (0, 1, 2)
#: The default number of states of a variable, and two others: more states must not overfit.
STATES = 128
FEW, MANY = 64, 512
# How far the larger tree may be below the smaller one.
_OVERFIT = 0.1
_SMOOTHING = 1e-4
#: What outdates a line when it changes: the defaults of `fit_tree` and `tree_options`.
SETTINGS = asdict(TREE_RECIPE)


def run(
    folder: Path,
    data_dir: Path,
    *,
    datasets: Sequence[str] = (),
    workers: int = 1,
    device: Any = "auto",
    fresh: bool = False,
    verbose: bool = True,
) -> Report:
    """Fits trees to every set and writes `binary.jsonl` and `binary.md`.

    Args:
        folder: where the results are and go.
        data_dir: the folder of `nltcs.npz` and the others, each with `train`, `valid` and `test`.
        datasets: some of the sets; none means all.
        workers: processes that measure at the same time.
        device: as in `FitOptions`.
        fresh: whether to measure again what was measured before.
        verbose: whether to show progress.
    """
    wanted = tasks(data_dir, datasets, device)
    with processes(workers) as pool:
        run_tasks(wanted, folder / "binary.jsonl", fresh=fresh, verbose=verbose, pool=pool)
    return summarize(folder)


def summarize(folder: Path) -> Report:
    """Writes `binary.md` from the newest lines of every set, those of one recipe."""
    rows = newest(read_rows(folder / "binary.jsonl"), ("dataset",))
    return write_report(report(rows), folder / "binary.md")


def tasks(data_dir: Path, datasets: Sequence[str], device: Any) -> list[Task]:
    """The slowest first, so that processes end at about the same time."""
    runs = [(MANY, 0), *((STATES, seed) for seed in SEEDS), (FEW, 0)]
    return [
        Task(
            {"dataset": name, "states": states, "seed": seed, "settings": SETTINGS},
            partial(measure, data_dir / f"{name}.npz", states, seed, device),
        )
        for name in reversed(some_of("dataset", datasets, tuple(TARGETS)))
        for states, seed in runs
    ]


def measure(
    path: Path, states: int, seed: int, device: Any = "auto", steps: int | None = None
) -> dict[str, Any]:
    """Fits a tree to the training rows, stops by the validation rows, and scores the test rows.

    Args:
        steps: of the fit; None is the default.
    """
    with np.load(path) as data:
        train, valid, test = (columns(data[part]) for part in ("train", "valid", "test"))
    generator = torch.Generator().manual_seed(seed)
    variables = [Variable(name, kdm.Levels(2, _SMOOTHING), ()) for name in train]
    layer = TreeLayer(variables, states, generator=generator).initialize(**train, generator=generator)
    count = {} if steps is None else {"steps": steps}
    options = tree_options(n_rows(train), seed=seed, device=device, **count)
    history = fit_tree(layer, Table(train), Table(valid), options=options)
    return {
        **likelihoods(layer, history, train, test),
        "max_epochs": options.max_epochs,
        "rows": {"train": n_rows(train), "test": n_rows(test)},
        "columns": len(variables),
    }


def columns(table: np.ndarray) -> Columns:
    """0/1 columns as codes."""
    return {f"x{i}": column for i, column in enumerate(torch.tensor(table).long().unbind(1))}


def report(rows: Sequence[Row]) -> Report:
    """Means over seeds with their targets, and what more states do."""
    table, claims = [], []
    for name, target in TARGETS.items():
        mine = select(rows, dataset=name, states=STATES)
        test = [row["test_log_likelihood"] for row in mine]
        claims.append(Claim(f"{name}: test log-likelihood", test, least=target, runs=len(SEEDS)))
        if mine:
            validation = Mean.of([row["validation_log_likelihood"] for row in mine]).mean
            cells = [f"{value:.3f}" for value in test]
            seconds = Mean.of([row["seconds"] for row in mine]).mean
            cost = [f"{mine[0]['parameters']:,}", f"{seconds:.0f}"]
            published = f"{PUBLISHED[name]:.2f}"
            table.append(
                [name, f"{np.mean(test):.3f}", ", ".join(cells), f"{validation:.3f}", published, *cost]
            )
    claims += [_overfit(rows, name) for name in TARGETS]
    notes = (
        claims_table(claims, ".4f"),
        f"Mean log p(x) of test rows in nats. A tree has {STATES} states per variable and the defaults of "
        f"`TreeLayer`, `tree_options` and `fit_tree`; columns have `Levels(2, {_SMOOTHING:g})`. The "
        f"validation rows choose when to stop. Seeds {SEEDS}; {FEW} and {MANY} states: seed 0. Published: "
        "hidden Chow–Liu trees. Seconds are those of a fit and its scores, several at once on one device.",
        *_outdated(rows),
        provenance(rows),
        "Written by `kdmlab reproduce binary --data-dir DIR` from the lines in `binary.jsonl`.",
    )
    header = ["data", "test, mean", "seeds", "validation", "published", "parameters", "s"]
    return Report("Binary tables", header, table, notes)


def _overfit(rows: Sequence[Row], name: str) -> Claim:
    pairs = [select(rows, dataset=name, states=states, seed=0) for states in (MANY, FEW)]
    gaps = [
        many["test_log_likelihood"] - few["test_log_likelihood"] for many, few in zip(*pairs, strict=False)
    ]
    return Claim(f"{name}: {MANY} states less {FEW}", gaps, least=-_OVERFIT)


def _outdated(rows: Sequence[Row]) -> list[str]:
    """A note on the sets that were measured with other defaults than the present ones."""
    names = [name for name in TARGETS if any(r["settings"] != SETTINGS for r in select(rows, dataset=name))]
    if not names:
        return []
    return [
        f"Measured with defaults of an earlier version: {', '.join(names)}. The command measures them again."
    ]
