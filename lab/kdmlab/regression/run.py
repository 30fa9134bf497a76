"""All methods on all splits of all sets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from kdmlab.common import Report, Task, newest, processes, read_rows, run_tasks, write_report
from kdmlab.common.checks import bad_argument
from kdmlab.regression.data import DATASETS, Table, load
from kdmlab.regression.methods import METHODS, check_methods, measure
from kdmlab.regression.report import report

NAME = "uci-regression"
FIGURES = ("bands", "pit", "calibration")


def run(
    folder: Path,
    data_dir: Path,
    *,
    datasets: Sequence[str] = (),
    methods: Sequence[str] = (),
    splits: int = 20,
    figures: bool = True,
    device: str = "cpu",
    workers: int = 1,
    fresh: bool = False,
    verbose: bool = True,
) -> Report:
    """Measures what is missing and writes `uci-regression.jsonl`, `uci-regression.md` and the figures.

    Args:
        folder: where the results are and go.
        data_dir: the folder of the data files.
        datasets, methods: some of them; none means all.
        splits: how many of the standard splits.
        figures: whether to draw.
        device: where the matrices of `gp-tuned` lie.
        workers: processes that measure at the same time, with one thread each.
        fresh: whether to measure again what was measured before.
        verbose: whether to show progress.
    """
    names, chosen = list(datasets or DATASETS), list(methods or METHODS)
    check_methods(chosen)
    tables = {name: load(data_dir, name) for name in names}
    for name, table in tables.items():
        if splits > table.n_splits:
            raise ValueError(bad_argument("splits", f"at most {table.n_splits} for {name}", splits))
    path = folder / f"{NAME}.jsonl"
    with processes(workers) as pool:
        run_tasks(tasks(tables, chosen, splits, device), path, fresh=fresh, verbose=verbose, pool=pool)
    if figures:
        from kdmlab.regression.figures import save_bands

        save_bands(_figure(folder, "bands"))
    return summarize(folder, figures=figures)


def tasks(tables: dict[str, Table], methods: Sequence[str], splits: int, device: str = "cpu") -> list[Task]:
    """Tasks by split: an interrupted run has measured all methods on some splits."""
    return [
        Task(
            {
                "dataset": name,
                "split": split,
                "method": method,
                "settings": dict(METHODS[method].settings),
                "seed": split,
            },
            partial(measure, METHODS[method], table.split(split), split, device),
        )
        for split in range(splits)
        for name, table in tables.items()
        for method in methods
    ]


def summarize(folder: Path, *, figures: bool = True) -> Report:
    """Writes the table and, if wanted, the figures of calibration from the lines that there are."""
    rows = newest(read_rows(folder / f"{NAME}.jsonl"), ("dataset", "method"))
    rows = sorted(rows, key=lambda row: (row["dataset"], row["method"], row["split"]))
    if figures and any(row["method"] == "kdm" for row in rows):
        from kdmlab.regression.figures import save_calibration, save_pit

        save_pit(rows, _figure(folder, "pit"))
        save_calibration(rows, _figure(folder, "calibration"))
    there = [path for what in FIGURES if (path := _figure(folder, what)).exists()]
    return write_report(report(rows, there), folder / f"{NAME}.md", *there)


def _figure(folder: Path, what: str) -> Path:
    return folder / f"{NAME}-{what}.png"
