"""Tasks of the experiment, in turns, and its files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from kdmlab.common import Part, Report, Task, newest, processes, read_rows, run_tasks, write_report
from kdmlab.pace.data import TABLES, Kind
from kdmlab.pace.measure import EFFORTS, FOLDS, OLD, PEERS, SEED, measure
from kdmlab.pace.report import report

KINDS: tuple[Kind, ...] = ("classifier", "regressor")
#: The name of the settings of all methods, unless something else is tried.
SETTINGS = "defaults"


def run(
    folder: Path,
    *,
    part: Part,
    methods: Sequence[str] = (),
    settings: str = SETTINGS,
    old: Path | None = None,
    folds: int = FOLDS,
    workers: int = 1,
    fresh: bool = False,
    verbose: bool = True,
) -> Report:
    """Measures all methods in turns, table by table; writes `pace-<part>.jsonl` and `.md`.

    Args:
        folder: where the results are and go.
        part: which tables.
        methods: efforts, `boosting`, `forest`, `linear` or `0.2.0`; none: all of them, the last one only
            with `old`.
        settings: a name of what is tried, on development tables. The report has the last lines of a method.
        old: the folder with the source of kdmkit 0.2.0.
        folds: the number of folds to measure.
        workers: processes; more than one share out the fits, each of which has one thread.
        fresh: whether to measure again what was measured before.
        verbose: whether to show progress.
    """
    chosen = [task for task in tasks(part, settings, old) if task.key["fold"] < folds]
    wanted = [task for task in chosen if not methods or task.key["method"] in methods]
    with processes(workers) as pool:
        run_tasks(wanted, folder / f"pace-{part}.jsonl", fresh=fresh, verbose=verbose, pool=pool)
    return summarize(folder, part=part)


def tasks(part: Part, settings: str = SETTINGS, old: Path | None = None) -> list[Task]:
    """All tasks of a part. Only the efforts have settings that may be tried."""
    return [
        Task(
            {
                "kind": kind,
                "table": table,
                "fold": fold,
                "method": method,
                "settings": settings if method in EFFORTS else SETTINGS,
                "seed": SEED,
            },
            partial(measure, kind, table, fold, method, old),
        )
        for fold in range(FOLDS)
        for kind in KINDS
        for table in TABLES[kind][part]
        for method in (*EFFORTS, *PEERS[kind], *([OLD] if old else []))
    ]


def summarize(folder: Path, *, part: Part) -> Report:
    """Writes the tables from the lines that there are."""
    path = folder / f"pace-{part}.jsonl"
    rows = newest(read_rows(path), ("kind", "table", "method"))
    return write_report(report(rows, part), path.with_suffix(".md"))
