"""Table 2 of the paper: AUC from label proportions, every method on the same bags."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path

from kdmlab.common import (
    Report,
    Row,
    Task,
    processes,
    read_rows,
    run_tasks,
    some_of,
    write_report,
)
from kdmlab.common.checks import bad_argument
from kdmlab.proportions.data import DATASETS
from kdmlab.proportions.figure import save_figure
from kdmlab.proportions.report import report
from kdmlab.proportions.settings import BAG_SIZES, INTERVALS, METHODS, settings
from kdmlab.proportions.trials import Trial, loaded, measure


def run(
    folder: Path,
    data_dir: Path,
    *,
    datasets: Sequence[str] = (),
    bag_sizes: Sequence[int] = (),
    methods: Sequence[str] = (),
    trials: int = 5,
    device: str = "cpu",
    workers: int = 1,
    fresh: bool = False,
    verbose: bool = True,
) -> Report:
    """Measures what is missing in `table2.jsonl` and writes `table2.md` and `table2.png` from all its lines.

    Args:
        folder: where the results are and go.
        data_dir: the folder of UCI's files.
        datasets, bag_sizes, methods: what to measure; empty is all.
        trials: per cell.
        device: where models are fitted and LMMCM's kernel matrix lies.
        workers: processes that measure at the same time, with one thread each.
        fresh: whether to measure again what was measured before.
        verbose: whether to show progress.
    """
    datasets = some_of("dataset", datasets, tuple(DATASETS))
    methods = some_of("method", methods, METHODS)
    bag_sizes = checked_sizes(bag_sizes, datasets, data_dir)
    asked = tasks(data_dir, datasets, bag_sizes, methods, trials, device)
    with processes(workers) as pool:
        run_tasks(asked, folder / "table2.jsonl", fresh=fresh, verbose=verbose, pool=pool)
    return summarize(folder)


def summarize(folder: Path) -> Report:
    """Writes `table2.md` and `table2.png` from the lines that there are."""
    rows = current(read_rows(folder / "table2.jsonl"))
    return write_report(report(rows), folder / "table2.md", save_figure(rows, folder / "table2.png"))


def tasks(
    data_dir: Path,
    datasets: Sequence[str],
    bag_sizes: Sequence[int],
    methods: Sequence[str],
    trials: int,
    device: str,
) -> list[Task]:
    every_task = []
    for dataset, interval, size in product(datasets, INTERVALS, bag_sizes):
        for number, method in product(range(trials), methods):
            chosen_settings = settings(method, dataset, interval, size)
            key = {
                "dataset": dataset,
                "interval": [_plain(bound) for bound in interval],
                "bag_size": size,
                "trial": number,
                "method": method,
                "settings": chosen_settings,
            }
            trial = Trial(dataset, interval, size, number)
            every_task.append(Task(key, partial(measure, trial, method, chosen_settings, data_dir, device)))
    return every_task


def current(rows: Sequence[Row]) -> list[Row]:
    """The lines that have the settings of this version."""
    return [row for row in rows if row["settings"] == _settings_of(row)]


def _settings_of(row: Row) -> dict[str, object] | None:
    low, high = row["interval"]
    if row["method"] not in METHODS or row["bag_size"] not in BAG_SIZES:
        return None
    return settings(row["method"], row["dataset"], (float(low), float(high)), row["bag_size"])


def checked_sizes(sizes: Sequence[int], datasets: Sequence[str], data_dir: Path) -> Sequence[int]:
    """The bag sizes asked for. Reads all files, so that missing ones are found before anything is fitted."""
    for name in datasets:
        total = loaded(name, data_dir).total
        wrong = [size for size in sizes if size < 1 or total % size]
        if wrong:
            raise ValueError(bad_argument("bag size", f"a divisor of {name}'s {total} rows", wrong[0]))
    unknown = [size for size in sizes if size not in BAG_SIZES]
    if unknown:
        raise ValueError(bad_argument("bag size", f"one of {', '.join(map(str, BAG_SIZES))}", unknown[0]))
    return [size for size in BAG_SIZES if size in sizes] or BAG_SIZES


def _plain(bound: float) -> float | int:
    return int(bound) if bound == int(bound) else bound
