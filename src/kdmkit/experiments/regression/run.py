"""All methods on all splits of all sets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from kdmkit._core.checks import bad_argument
from kdmkit.experiments._processes import processes
from kdmkit.experiments._results import Report, Row, Task, complete, read_rows, write_report
from kdmkit.experiments.regression.data import DATASETS, Table, load
from kdmkit.experiments.regression.methods import METHODS, check_methods, measure
from kdmkit.experiments.regression.report import report

NAME = "uci-regression"


def run(
    folder: Path,
    data_dir: Path,
    *,
    datasets: Sequence[str] = (),
    methods: Sequence[str] = (),
    splits: int = 20,
    figures: bool = True,
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
        complete(tasks(tables, chosen, splits), path, fresh=fresh, verbose=verbose, flat=True, pool=pool)
    return summarize(folder, figures=figures)


def tasks(tables: dict[str, Table], methods: Sequence[str], splits: int) -> list[Task]:
    """Split after split, so that an interrupted run has whole ones."""
    return [
        Task(
            {
                "dataset": name,
                "split": split,
                "method": method,
                "settings": dict(METHODS[method].settings),
                "seed": split,
            },
            partial(measure, METHODS[method], table.split(split), split),
        )
        for split in range(splits)
        for name, table in tables.items()
        for method in methods
    ]


def summarize(folder: Path, *, figures: bool) -> Report:
    """The table and the figures of all lines that were ever measured."""
    rows = _ordered(read_rows(folder / f"{NAME}.jsonl"))
    drawn = _draw(rows, folder) if figures else []
    return write_report(report(rows, drawn), folder / f"{NAME}.md")


def _ordered(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["dataset"], row["method"], row["split"]))


def _draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    from kdmkit.experiments.regression.figures import save_bands, save_calibration, save_pit

    drawn = [save_bands(folder / f"{NAME}-bands.png")]
    if any(row["method"] == "kdm" for row in rows):
        drawn += [
            save_pit(rows, folder / f"{NAME}-pit.png"),
            save_calibration(rows, folder / f"{NAME}-calibration.png"),
        ]
    return drawn
