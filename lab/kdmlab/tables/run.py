"""All parts of the comparison on all tables of a list."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from tqdm.auto import tqdm

from kdmlab.common import (
    Report,
    Row,
    Task,
    chosen_device,
    newest,
    processes,
    read_rows,
    run_tasks,
    some_of,
    write_report,
)
from kdmlab.tables import fits, methods
from kdmlab.tables.data import PAPER
from kdmlab.tables.others import CHECK, DEVELOPMENT
from kdmlab.tables.parts import PARTS, Job, PartName
from kdmlab.tables.report import report

ListName = Literal["paper", "development", "check"]
LISTS: dict[ListName, Sequence[str]] = {
    "paper": tuple(PAPER),
    "development": DEVELOPMENT,
    "check": CHECK,
}
#: The table with unknown cells as missing ones is measured in these parts.
_WITH_MISSING = ("generation", "prediction", "intervals")


def run(
    folder: Path,
    data_dir: Path,
    *,
    tables: ListName = "paper",
    datasets: Sequence[str] = (),
    parts: Sequence[str] = (),
    chosen: Sequence[str] = (),
    seeds: int = 5,
    rows: int | None = None,
    device: str = "auto",
    work_dir: Path = Path("runs/tables"),
    only_fits: bool = False,
    workers: int = 1,
    fresh: bool = False,
    verbose: bool = True,
) -> Report:
    """Measures what is missing and writes `tables.jsonl` and `tables.md`; other lists are `tables-<list>.…`.

    Args:
        folder: where the results are and go.
        data_dir: the folder of the files of Adult, MAGIC and Shoppers.
        tables: the list of tables.
        datasets, parts, chosen: some of its tables, parts and methods; none means all, except methods that
            take hours.
        seeds: how many, from 0.
        rows: training rows and test rows at most; None is all.
        device: where table models are fitted, `"cpu"` or `"cuda"`; `"auto"`: a GPU if there is one.
        work_dir: the folder of fits. Fits that were made elsewhere are measured, too.
        only_fits: whether to make fits and measure nothing; this needs none of the peers.
        workers: processes that measure at the same time, with one thread each.
        fresh: whether to fit and measure again.
        verbose: whether to show progress.
    """
    where = chosen_device(device)
    jobs = [
        Job(part, dataset, method, seed, where, rows, data_dir, work_dir, 1 if only_fits else workers)
        for seed in range(seeds)
        for dataset in some_of("dataset", datasets, LISTS[tables])
        for part in some_of("part", parts, tuple(PARTS))
        for method in _methods(part, chosen)
        if dataset != "adult-missing" or part in _WITH_MISSING
    ]
    if fresh:
        for job in jobs:
            if job.fit is not None:
                fits.remove(job.fit, work_dir)
    if only_fits:
        return _make_fits(jobs, work_dir, verbose)
    with processes(workers) as pool:
        run_tasks(tasks(jobs), folder / f"{_name(tables)}.jsonl", fresh=fresh, verbose=verbose, pool=pool)
    return summarize(folder, tables=tables)


def tasks(jobs: Sequence[Job]) -> list[Task]:
    """A task waits for the first one that makes the same fit."""
    makers: dict[Any, Any] = {}
    every_task = []
    for job in jobs:
        first = makers.setdefault(job.fit, job.key) if job.fit is not None else job.key
        every_task.append(Task(job.key, job.measure, after=None if first == job.key else first))
    return every_task


def _make_fits(jobs: Sequence[Job], work_dir: Path, verbose: bool) -> Report:
    """All fits of some jobs, and nothing else."""
    wanted = {job.fit: job for job in jobs if job.fit is not None}
    rows = []
    for fit, job in tqdm(wanted.items(), desc="fits", unit="fit", disable=not verbose):
        facts = fits.facts(fits.make(fit, job.data(), work_dir))
        rows.append([fit.folder(work_dir).name, f"{facts['fit_seconds']:.1f}"])
    return Report("Fits", ["fit", "s"], rows)


def summarize(folder: Path, *, tables: ListName = "paper") -> Report:
    """Writes the report from the lines that were measured with the defaults of this version."""
    name = _name(tables)
    lines = [row for row in read_rows(folder / f"{name}.jsonl") if is_current(row)]
    rows = newest(lines, ("part", "dataset", "method", "seed", "device"))
    return write_report(report(rows, tables), folder / f"{name}.md")


def is_current(row: Row) -> bool:
    """Whether a line has the settings of its method in this version."""
    wanted = methods.settings(row["method"])
    return all(row["settings"].get(name) == value for name, value in wanted.items())


def _name(tables: ListName) -> str:
    return "tables" if tables == "paper" else f"tables-{tables}"


def _methods(part: PartName, wanted: Sequence[str]) -> Sequence[str]:
    """The methods of a part that are wanted; those of other parts are skipped."""
    every = [name for each in PARTS.values() for name in (*each.methods, *each.more_methods)]
    some_of("method", wanted, list(dict.fromkeys(every)))
    measure = PARTS[part]
    return [name for name in (*measure.methods, *measure.more_methods) if name in wanted] or (
        () if wanted else measure.methods
    )
