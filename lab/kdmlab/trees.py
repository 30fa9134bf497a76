"""Adult, all fifteen columns: a tree of joint KDMs beside flat joint KDMs with the same kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import kdmkit as kdm
from kdmkit.nn import JointLayer, TreeLayer, Variable
from kdmkit.training import TREE_RECIPE, FitOptions, Table, fit_tree, tree_options
from kdmlab.common import (
    Claim,
    Mean,
    Report,
    Row,
    Task,
    claims_table,
    processes,
    provenance,
    read_rows,
    run_tasks,
    select,
    write_report,
)
from kdmlab.datasets import load
from kdmlab.flat import fit_flat
from kdmlab.likelihoods import Columns, likelihoods, n_rows

COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation"),
    *("relationship", "race", "sex", "capital_gain", "capital_loss", "hours_per_week", "native_country"),
    "income",
)
#: Whole numbers of years and hours; other numbers; the remaining columns are levels.
WHOLE = ("age", "hours_per_week")
NUMBERS = ("fnlwgt", "capital_gain", "capital_loss")
SEEDS = (0, 1, 2)
TREE, FLAT = "tree", "flat"
#: Components of the models: states of each variable of a tree, components of a flat joint.
SIZES = {TREE: (256,), FLAT: (512, 2048, 4096)}
#: Learning rates; validation rows choose one for every model and size, with the first seed.
RATES = (0.1, 0.03)
# Steps at most, and steps without a better validation loss that end a fit before.
_STEPS = 20_000
_PATIENCE = 2_000
# About how many steps the averaged weights reach back.
_HORIZON = 400
_VALIDATION_ROWS = 3000
_LOOP = {
    "schedule": "constant",
    "steps": _STEPS,
    "patience": _PATIENCE,
    "averaging": _HORIZON,
    "validation_rows": _VALIDATION_ROWS,
}
#: Settings of every model; a line measured with other settings is out of date.
SETTINGS: dict[str, dict[str, Any]] = {FLAT: _LOOP, TREE: {**_LOOP, "recipe": asdict(TREE_RECIPE)}}
_LEVEL_SMOOTHING = 0.01
_MARGIN = 0.5


def run(
    folder: Path,
    data_dir: Path,
    *,
    workers: int = 1,
    device: Any = "auto",
    fresh: bool = False,
    verbose: bool = True,
) -> Report:
    """Fits trees and flat joints to Adult and writes `adult-tree.jsonl` and `adult-tree.md`.

    Every model and size is fitted with all learning rates and the first seed. The rate that is best on the
    validation rows is then fitted with the other seeds.

    Args:
        folder: where the results are and go.
        data_dir: the folder of `adult.data` and `adult.test`, plain or `.gz`.
        workers: processes that measure at the same time.
        device: as in `FitOptions`.
        fresh: whether to measure again what was measured before.
        verbose: whether to show progress.
    """
    path = folder / "adult-tree.jsonl"
    with processes(workers) as pool:
        first = run_tasks(tasks(data_dir, device), path, fresh=fresh, verbose=verbose, pool=pool)
        others = tasks(data_dir, device, best_rates(first), SEEDS[1:])
        run_tasks(others, path, fresh=fresh, verbose=verbose, pool=pool)
    return summarize(folder)


def tasks(
    data_dir: Path,
    device: Any = "auto",
    rates: Mapping[tuple[str, int], float] | None = None,
    seeds: Sequence[int] = SEEDS[:1],
) -> list[Task]:
    """The slowest first, so that processes end at about the same time.

    Args:
        rates: by model and size; None is all rates for each.
        seeds: of the fits.
    """
    models = [(model, size) for model in (FLAT, TREE) for size in reversed(SIZES[model])]
    return [
        Task(
            {"model": model, "components": size, "rate": rate, "seed": seed, "settings": SETTINGS[model]},
            partial(measure, data_dir, model, size, rate, seed, device),
        )
        for model, size in models
        for rate in (RATES if rates is None else [rates[model, size]])
        for seed in seeds
    ]


def best_rates(rows: Sequence[Row]) -> dict[tuple[str, int], float]:
    """The learning rate that is best on the validation rows, by model and size."""
    ordered = sorted(rows, key=lambda row: row["validation_log_likelihood"])
    return {(row["model"], row["components"]): row["rate"] for row in ordered}


def summarize(folder: Path) -> Report:
    """Writes `adult-tree.md` from the lines that have the settings of this version."""
    lines = read_rows(folder / "adult-tree.jsonl")
    rows = [row for row in lines if row["settings"] == SETTINGS[row["model"]]]
    return write_report(report(rows), folder / "adult-tree.md")


# ---- data and kernels


def adult(data_dir: Path) -> tuple[Columns, Columns, Columns, dict[str, int]]:
    """Columns of training, validation and test rows, and the number of levels of the discrete ones.

    Levels are those of the training file, in the order of the alphabet; `?` is a level. Income is a column.
    A level that the training file lacks becomes one more code.
    """
    data = load("adult", data_dir, download=False)
    parts = [_frame(data.x_train, data.y_train), _frame(data.x_test, data.y_test)]
    order = np.random.default_rng(0).permutation(len(parts[0]["age"]))
    rows = {"train": np.sort(order[_VALIDATION_ROWS:]), "valid": np.sort(order[:_VALIDATION_ROWS])}
    train: Columns = {}
    valid: Columns = {}
    test: Columns = {}
    sizes: dict[str, int] = {}
    for name in COLUMNS:
        columns = [part[name] for part in parts]
        if name in (*WHOLE, *NUMBERS):
            first, last = (torch.tensor(column.astype(np.float64)).unsqueeze(1) for column in columns)
        else:
            levels = np.unique(columns[0])
            sizes[name] = len(levels) + 1
            first, last = (_codes(column, levels) for column in columns)
        train[name], valid[name], test[name] = first[rows["train"]], first[rows["valid"]], last
    return train, valid, test, sizes


def _frame(x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    return {**dict(zip(COLUMNS, x.T, strict=False)), "income": y.astype(str)}


def _codes(column: np.ndarray, levels: np.ndarray) -> Tensor:
    place = np.searchsorted(levels, column).clip(max=len(levels) - 1)
    return torch.tensor(np.where(levels[place] == column, place, len(levels)))


def variables(train: Columns, sizes: Mapping[str, int], m: int) -> list[Variable]:
    """The same kernels for every model; each component has a bandwidth of its own."""
    listed = []
    for name, column in train.items():
        if name in sizes:
            listed.append(Variable(name, kdm.Levels(sizes[name], _LEVEL_SMOOTHING), ()))
        else:
            listed.append(Variable(name, _kernel(name, column, kdm.RBF(torch.ones(m, 1))), 1))
    return listed


def _kernel(name: str, column: Tensor, kernel: kdm.Kernel) -> kdm.Kernel:
    """Masses of whole numbers, atoms at frequent values, quantile-normal densities of the rest."""
    atoms = kdm.find_atoms(column.flatten())
    if name in WHOLE:
        spread = kdm.Transformed.affine(kernel, float(column.mean()), float(column.std()))
        rounded = kdm.Rounded(spread, 1.0)
        return rounded if name == "age" else kdm.Inflated(rounded, atoms)
    rest = column[~torch.isin(column, atoms)]
    smooth = kdm.Transformed.quantile_normal(kernel, rest)
    return kdm.Inflated(smooth, atoms) if len(atoms) else smooth


# ---- measurements


def measure(
    data_dir: Path, model: str, size: int, rate: float, seed: int, device: Any = "auto", steps: int = _STEPS
) -> dict[str, Any]:
    """Fits one model until its validation loss no longer falls; the test rows are scored once."""
    train, valid, test, sizes = adult(data_dir)
    options = fit_options(n_rows(train), steps, seed=seed, device=device, learning_rate=rate)
    layer, history = fitted(model, size, train, valid, sizes, options)
    return {
        **likelihoods(layer, history, train, test),
        "max_epochs": options.max_epochs,
        "rows": {"train": n_rows(train), "validation": n_rows(valid), "test": n_rows(test)},
    }


def fit_options(n: int, steps: int, **changes: Any) -> FitOptions:
    """A constant rate and averaged weights. Early stopping decides the length, at most `steps`."""
    epochs = tree_options(n, steps=steps).max_epochs
    patience = max(1, math.ceil(_PATIENCE / steps * epochs))
    averaging = min(1.0, _HORIZON / steps)
    return tree_options(
        n, steps=steps, schedule="constant", patience=patience, averaging=averaging, **changes
    )


def fitted(
    model: str, size: int, train: Columns, valid: Columns, sizes: Mapping[str, int], options: FitOptions
) -> tuple[TreeLayer | JointLayer, list[dict[str, float]]]:
    """A fitted model, and the history of its fit."""
    generator = torch.Generator().manual_seed(options.seed)
    columns = variables(train, sizes, size)
    if model == TREE:
        tree = TreeLayer(columns, size, generator=generator).initialize(**train, generator=generator)
        return tree, fit_tree(tree, Table(train), Table(valid), options=options)
    joint = JointLayer.from_variables(columns, size, inputs=COLUMNS[:-1], generator=generator)
    return joint, fit_flat(joint.initialize(**train, generator=generator), train, valid, options)


def report(rows: Sequence[Row]) -> Report:
    """Means over seeds, and the distance between the tree and the best flat joint."""
    rates = best_rates(select(rows, seed=SEEDS[0]))
    table = [_cells(select(rows, model=m, components=k, rate=r)) for m, k, r in _combinations(rows)]
    chosen = {key: select(rows, model=key[0], components=key[1], rate=rate) for key, rate in rates.items()}
    ordered = sorted(chosen, key=lambda key: _mean(chosen[key], "validation"))
    best = dict(ordered)
    gaps = []
    if len(best) == len(SIZES):
        flat, tree = (
            {row["seed"]: row["test_log_likelihood"] for row in chosen[model, best[model]]}
            for model in (FLAT, TREE)
        )
        gaps = [tree[seed] - flat[seed] for seed in tree if seed in flat]
    size = f" ({best[FLAT]:,} components)" if FLAT in best else ""
    claim = Claim(f"tree less the best flat joint{size}", gaps, least=_MARGIN, runs=len(SEEDS))
    notes = (
        claims_table([claim], ".3f"),
        "Mean log p(x) in nats: masses of levels, of whole years and hours, and of atoms (values of at least "
        "1 % of the rows, `find_atoms`), densities elsewhere, so that only differences between models count. "
        f"UCI's training file without {_VALIDATION_ROWS:,} rows, which choose the best epoch, the learning "
        f"rate, and the size of the flat joint; UCI's test file. Seed {SEEDS[0]} has all rates; the best of "
        f"each model and size has the seeds {SEEDS}. `?` is a level of its own, as in published runs. All "
        "models have the same kernels, with a bandwidth for every component, a constant rate, and averaged "
        f"weights. A fit ends after {_PATIENCE:,} steps without a better validation loss, or after "
        f"{_STEPS:,} steps; epochs that are marked with * reached this limit.",
        provenance(rows),
        "Written by `kdmlab reproduce adult-tree --data-dir DIR` from the lines in `adult-tree.jsonl`.",
    )
    names = ["model", "components", "rate", "seeds", "test", "validation", "training", "epochs"]
    return Report("Adult: a tree and flat joints", [*names, "parameters", "s"], table, notes)


def _combinations(rows: Sequence[Row]) -> list[tuple[str, int, float]]:
    """Models, sizes and rates that were measured, in the order of the report."""
    combinations = {(row["model"], row["components"], row["rate"]) for row in rows}
    return sorted(combinations, key=lambda each: (list(SIZES).index(each[0]), each[1], -each[2]))


def _cells(rows: Sequence[Row]) -> list[str]:
    """A row of the report's table: the means of some seeds."""
    one = rows[0]
    scores = [f"{_mean(rows, part):.3f}" for part in ("test", "validation", "training")]
    epochs, seconds = (f"{Mean.of([row[name] for row in rows]).mean:.0f}" for name in ("epochs", "seconds"))
    limit = "*" if any(row["epochs"] == row["max_epochs"] for row in rows) else ""
    name = [one["model"], f"{one['components']:,}", f"{one['rate']:g}", str(len(rows))]
    return [*name, *scores, epochs + limit, f"{one['parameters']:,}", seconds]


def _mean(rows: Sequence[Row], part: str) -> float:
    return Mean.of([row[f"{part}_log_likelihood"] for row in rows]).mean
