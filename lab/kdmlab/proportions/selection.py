"""Compares settings on held-out training bags; test rows take no part."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdmlab.common import (
    Mean,
    Report,
    Row,
    Task,
    processes,
    provenance,
    read_rows,
    run_tasks,
    write_report,
)
from kdmlab.common.checks import bad_argument
from kdmlab.proportions.data import DATASETS
from kdmlab.proportions.methods import LEARN, TrainingBags
from kdmlab.proportions.settings import BAG_SIZES, FURTHER, GRID, INTERVALS, settings
from kdmlab.proportions.trials import Trial, loaded

Array = NDArray[Any]

_FOLDS = 1
_HELD = 0.2


def search(
    folder: Path,
    data_dir: Path,
    *,
    datasets: Sequence[str] = (),
    bag_sizes: Sequence[int] = (),
    methods: Sequence[str] = (),
    device: str = "cpu",
    workers: int = 1,
    fresh: bool = False,
    verbose: bool = True,
) -> Report:
    """Compares the grid's settings by their loss on held-out bags; writes `table2-search.jsonl` and `.md`."""
    unknown = [method for method in methods if method not in GRID]
    if unknown:
        raise ValueError(
            bad_argument("method", f"one with settings to search, {', '.join(GRID)}", unknown[0])
        )
    cells = (datasets or list(DATASETS), bag_sizes or BAG_SIZES, methods or list(GRID))
    asked = tasks(data_dir, *cells, device)
    with processes(workers) as pool:
        run_tasks(asked, folder / "table2-search.jsonl", fresh=fresh, verbose=verbose, pool=pool)
    return summarize(folder)


def summarize(folder: Path) -> Report:
    """Writes `table2-search.md` from the lines that there are."""
    path = folder / "table2-search.jsonl"
    return write_report(report(current(read_rows(path))), path.with_suffix(".md"))


def tasks(
    data_dir: Path, datasets: Sequence[str], bag_sizes: Sequence[int], methods: Sequence[str], device: str
) -> list[Task]:
    every_task = []
    for method, dataset, interval, size in product(methods, datasets, INTERVALS, bag_sizes):
        for fold, choice in product(range(_FOLDS), choices(method, dataset, size)):
            key = {
                "dataset": dataset,
                "interval": list(interval),
                "bag_size": size,
                "method": method,
                "choice": choice,
                "fold": fold,
            }
            trial = Trial(dataset, interval, size, 0)
            every_task.append(Task(key, partial(held_out, trial, method, choice, fold, data_dir, device)))
    return every_task


def choices(method: str, dataset: str, bag_size: int) -> list[dict[str, float]]:
    """Every combination of the grid, and what is compared beyond it."""
    grid = GRID[method]
    combinations = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    further = FURTHER.get((method, dataset), ()) if bag_size == min(BAG_SIZES) else ()
    return [*combinations, *further]


def held_out(
    trial: Trial, method: str, choice: dict[str, float], fold: int, data_dir: Path, device: str
) -> dict[str, Any]:
    """The loss on held-out bags of the first trial, of a model that learned from the other bags."""
    training, _, _ = trial.draw(loaded(trial.dataset, data_dir))
    train, validation = split(training, fold)
    options = settings(method, trial.dataset, trial.interval, trial.bag_size, choice)
    if "members" in options:
        options["members"] = 1
    score = LEARN[method](train, fold, **options, device=device)
    return {"loss": loss(score(validation.X), validation, float(train.share.mean()))}


def split(training: TrainingBags, fold: int) -> tuple[TrainingBags, TrainingBags]:
    """Four fifths of the bags, and the others."""
    n = len(training.share)
    order = np.random.default_rng(fold).permutation(n)
    held_out = np.isin(np.arange(n), order[: max(1, round(_HELD * n))])
    return _some(training, ~held_out), _some(training, held_out)


def _some(training: TrainingBags, wanted: Array) -> TrainingBags:
    rows = wanted[training.bags]
    numbers = np.cumsum(wanted) - 1
    return TrainingBags(training.X[rows], numbers[training.bags[rows]], training.share[wanted])


def loss(probs: Array, held_out: TrainingBags, prior: float) -> float:
    """−log Σ_y γ_y p(y|x)/p(y), the mean over rows: how well their bags' proportions explain them."""
    share = held_out.share[held_out.bags]
    return float(-np.log(share * probs / prior + (1 - share) * (1 - probs) / (1 - prior)).mean())


def current(rows: Sequence[Row]) -> list[Row]:
    """The lines whose choice is in the grid."""
    searched = [row for row in rows if row["method"] in GRID and row["bag_size"] in BAG_SIZES]
    return [
        row for row in searched if row["choice"] in choices(row["method"], row["dataset"], row["bag_size"])
    ]


def report(rows: Sequence[Row]) -> Report:
    """The mean loss of every choice over all bag sizes and over the smallest, the best first."""
    groups: dict[tuple[str, str, str, str], list[float]] = {}
    for row in rows:
        words = ", ".join(f"{name} {value:g}" for name, value in row["choice"].items())
        sizes = [] if row["choice"] in FURTHER.get((row["method"], row["dataset"]), ()) else ["all"]
        sizes += [str(min(BAG_SIZES))] if row["bag_size"] == min(BAG_SIZES) else []
        for size in sizes:
            groups.setdefault((row["method"], row["dataset"], size, words), []).append(row["loss"])
    ordered = sorted(groups.items(), key=lambda item: (item[0][:3], Mean.of(item[1]).mean))
    table = [[*key, f"{Mean.of(values).mean:.5f}", str(len(values))] for key, values in ordered]
    notes = (
        "Mean −log Σ_y γ_y p(y|x)/p(y) over the rows of held-out bags, a fifth of the first trial's training "
        "bags in every cell; smaller is better. Test rows take no part. `kdm-encoder` and "
        "`network-likelihood` have a single member here. Choices were made by data set; 30 epochs were "
        "compared on the smallest bags only.",
        provenance(rows),
        "Written by `kdmlab reproduce table2 --search` from the lines in `table2-search.jsonl`.",
    )
    header = ["method", "data", "bag size", "settings", "loss", "fits"]
    return Report("Settings for Table 2", header, table, notes)
