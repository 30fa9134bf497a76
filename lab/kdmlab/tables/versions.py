"""log p of test rows by this version and by an earlier one, on the second list of tables."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kdmlab.common import (
    Claim,
    Mean,
    Report,
    Row,
    Task,
    claims_table,
    markdown_table,
    newest,
    provenance,
    read_rows,
    run_tasks,
    select,
    some_of,
    write_report,
)
from kdmlab.tables import methods
from kdmlab.tables.data import Array, Rows, is_missing
from kdmlab.tables.others import CHECK, read

NAME = "tables-versions"
#: This version and an earlier one.
NOW, BEFORE = "now", "before"
_LEAST_GAIN = 0.2


def run(
    folder: Path,
    *,
    before: Path,
    datasets: Sequence[str] = (),
    seeds: int = 1,
    fresh: bool = False,
    verbose: bool = True,
) -> Report:
    """Measures what is missing and writes `tables-versions.jsonl` and `.md`.

    Args:
        folder: where the results are and go.
        before: the folder with the source of the earlier version.
        datasets: some tables of the second list; none: all.
        seeds: how many, from 0.
        fresh: whether to measure again what was measured before.
        verbose: whether to show progress.
    """
    sources = {NOW: this_source(), BEFORE: before}
    tasks = [
        Task(_key(dataset, method, seed), partial(measure, dataset, source, method == NOW, seed))
        for dataset in some_of("dataset", datasets, CHECK)
        for seed in range(seeds)
        for method, source in sources.items()
    ]
    run_tasks(tasks, folder / f"{NAME}.jsonl", fresh=fresh, verbose=verbose)
    return summarize(folder)


def this_source() -> Path:
    """The folder with the source of this version."""
    spec = importlib.util.find_spec("kdmkit")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parents[1]


def _key(dataset: str, method: str, seed: int) -> dict[str, Any]:
    settings = methods.settings(methods.KDM) if method == NOW else {}
    return {"dataset": dataset, "method": method, "seed": seed, "settings": settings}


def measure(dataset: str, source: Path, is_now: bool, seed: int) -> dict[str, Any]:
    """Mean log p of the test rows and seconds of the fit, by the version whose source is in a folder.

    Earlier versions leave missing cells out of log p. This version does the same where cells are unknown, so
    that both are about the same cells.
    """
    data = read(dataset)
    has_gaps = any(is_missing(column).any() for column in data.train.values())
    unknown = {"missing": "unknown"} if is_now and has_gaps else {}
    task = {
        "settings": {"random_state": seed, **unknown},
        "dtypes": {name: column.dtype.str for name, column in data.train.items()},
        "train": _cells(data.train),
        "test": _cells(data.test),
    }
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("any_version.py"))],
        input=json.dumps(task),
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**answer, "train_rows": len(data.train[data.target]), **unknown}


def _cells(rows: Rows) -> dict[str, list[Any]]:
    return {name: _plain(column) for name, column in rows.items()}


def _plain(column: Array) -> list[Any]:
    """Cells that JSON can hold; None in place of NaN among numbers becomes NaN again."""
    return [None if gone else cell for cell, gone in zip(column.tolist(), is_missing(column), strict=True)]


def summarize(folder: Path) -> Report:
    """Writes the report from the lines of this version's defaults and of the earlier version."""
    keys = {method: _key("", method, 0)["settings"] for method in (NOW, BEFORE)}
    lines = [row for row in read_rows(folder / f"{NAME}.jsonl") if row["settings"] == keys[row["method"]]]
    rows = newest(lines, ("dataset", "method", "seed"))
    names = [name for name in CHECK if all(select(rows, dataset=name, method=method) for method in keys)]
    gains = [_gain(rows, name) for name in names]
    mean_gain = Claim("log p of test rows, mean gain over tables", gains, least=_LEAST_GAIN, runs=len(CHECK))
    cells = [_line(rows, name, gain) for name, gain in zip(names, gains, strict=True)]
    header = ["data", "rows", "before", "now", "gain", "processor s, before", "now", "seeds"]
    versions = ", ".join(sorted({row["version"] for row in select(rows, method=BEFORE)}))
    notes = [
        claims_table([mean_gain], "+.3f"),
        markdown_table(header, cells),
        f"Mean log p of test rows in nats, and processor seconds of the fit. Before: version {versions}. "
        "Cells that are missing count in neither version: where training rows lack cells, this one has "
        '`missing="unknown"`.',
        provenance(rows),
        "Written by `kdmlab reproduce table-versions --before SOURCE` from the lines beside it.",
    ]
    report = Report("Second list of tables: this version and an earlier one", notes=notes)
    return write_report(report, folder / f"{NAME}.md")


def _mean(rows: Sequence[Row], dataset: str, method: str, what: str) -> float:
    return Mean.of([row[what] for row in select(rows, dataset=dataset, method=method)]).mean


def _gain(rows: Sequence[Row], dataset: str) -> float:
    now, before = (_mean(rows, dataset, method, "test_log_prob") for method in (NOW, BEFORE))
    return now - before


def _line(rows: Sequence[Row], dataset: str, gain: float) -> list[str]:
    some = select(rows, dataset=dataset, method=NOW)
    scores = [f"{_mean(rows, dataset, method, 'test_log_prob'):.3f}" for method in (BEFORE, NOW)]
    seconds = [f"{_mean(rows, dataset, method, 'fit_processor_seconds'):.0f}" for method in (BEFORE, NOW)]
    return [dataset, f"{some[0]['train_rows']:,}", *scores, f"{gain:+.3f}", *seconds, str(len(some))]
