"""The benchmark command: measures every case and writes JSON lines, a table and a figure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from kdmlab.bench.cases import Case, cpu_cases, cuda_cases, growth_cases
from kdmlab.bench.fitting import EpochCase, epoch_cases
from kdmlab.bench.history import keep
from kdmlab.bench.report import report, save_growth
from kdmlab.bench.whole_fits import FitCase, PredictCase, fit_cases, predict_cases
from kdmlab.common import Report, Task, read_rows, run_tasks, write_report
from kdmlab.common.checks import bad_argument

# Seconds of repetitions of each measurement of how cost grows, at most.
_GROWTH_SECONDS = 0.5


def run(
    folder: Path,
    *,
    device: Literal["cpu", "cuda"],
    seconds: float = 3.0,
    growth: bool = True,
    only: str = "",
    verbose: bool = True,
) -> Report:
    """Benchmarks one device; on a CPU with two threads. Earlier lines of the same cases go to the history.

    Args:
        folder: where `bench-<device>.jsonl`, `.md` and `.png` go.
        device: what to measure.
        seconds: spent on repetitions of each measurement.
        growth: whether to measure how cost grows, too.
        only: measures the cases with this text in their name; lines of others stay as they are.
        verbose: whether to show progress.
    """
    reductions = [*cpu_cases(), *epoch_cases(), *predict_cases()] if device == "cpu" else cuda_cases()
    asked = tasks([*reductions, *fit_cases(torch.device(device))], seconds)
    if growth:
        grown = growth_cases(torch.device(device))
        asked += tasks(grown, min(seconds, _GROWTH_SECONDS), growth=True)
    asked = [task for task in asked if only in task.key["case"]]
    if not asked:
        raise ValueError(bad_argument("only", "part of the name of a case", repr(only)))
    path = folder / f"bench-{device}.jsonl"
    keep(path, {task.key["case"] for task in asked})
    threads = torch.get_num_threads()
    if device == "cpu":
        torch.set_num_threads(2)
    try:
        run_tasks(asked, path, verbose=verbose)
    finally:
        torch.set_num_threads(threads)
    return summarize(folder, device)


def tasks(
    cases: Sequence[Case | EpochCase | FitCase | PredictCase], seconds: float, *, growth: bool = False
) -> list[Task]:
    """One task for every case and peer."""
    return [
        Task({**case.key, "peer": peer, "growth": growth}, partial(case.measure, peer, seconds))
        for case in cases
        for peer in case.peers()
    ]


def summarize(folder: Path, device: str) -> Report:
    """Writes the table and the figure from the lines that there are."""
    path = folder / f"bench-{device}.jsonl"
    rows = read_rows(path)
    grown = [row for row in rows if row["growth"]]
    figures = [save_growth(grown, path.with_suffix(".png"))] if grown else []
    return write_report(report([row for row in rows if not row["growth"]]), path.with_suffix(".md"), *figures)
