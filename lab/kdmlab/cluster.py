"""Rows of a large file scored by Ray Data, compared with one process; a worker is killed in the middle."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import kdmkit as kdm
from kdmlab.common import (
    Claim,
    Report,
    Row,
    Task,
    claims_table,
    newest,
    provenance,
    read_rows,
    run_tasks,
    write_report,
)

#: Three million flights: date, delay, distance, origin and destination (npm package `vega-datasets`).
FILE = "flights-3m.parquet"
ROW = "row"
FEATURES = ["distance", "hour", "day"]
#: Files that the rows are divided into, and rows that models are fitted to.
PARTS, FITTED = 24, 4000
WORKERS = 2
# About what a row takes.
_BYTES = 60
# Sums of other blocks of rows are rounded in another order.
_LARGEST_DIFFERENCE = 1e-5


@dataclass(frozen=True)
class Question:
    """A question to rows.

    Args:
        what, options: those of `kdmkit.BatchFunction`.
        columns: that the model is told.
    """

    what: str
    columns: Sequence[str]
    options: dict[str, Any]

    def function(self, model: Any) -> kdm.BatchFunction:
        return kdm.BatchFunction(model, self.what, columns=self.columns, keep=[ROW], **self.options)


QUESTIONS = {
    "KDMDensity": Question("score", ["delay", *FEATURES], {}),
    "KDMClassifier": Question("predict", FEATURES, {"proba": True}),
    "KDMRegressor": Question("predict", FEATURES, {"target": "delay", "std": True}),
    "KDMTable": Question("score", ["date", "delay", "distance", "origin", "destination"], {}),
}


def run(
    folder: Path,
    data_dir: Path,
    work_dir: Path,
    *,
    models: Sequence[str] = (),
    fresh: bool = False,
    verbose: bool = True,
) -> Report:
    """Scores all rows twice for every model and writes `cluster.jsonl` and `cluster.md`.

    Args:
        folder: where the results are and go.
        data_dir: the folder of `flights-3m.parquet`.
        work_dir: where models and rows go.
        models: names of `QUESTIONS`; none: all of them.
        fresh: whether to measure again what was measured before.
        verbose: whether to show progress.
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    tasks = [
        Task(
            {"file": FILE, "model": name, "settings": _settings(QUESTIONS[name])},
            partial(measure, name, data_dir / FILE, work_dir),
        )
        for name in models or QUESTIONS
    ]
    run_tasks(tasks, folder / "cluster.jsonl", fresh=fresh, verbose=verbose)
    return summarize(folder)


def _settings(question: Question) -> dict[str, Any]:
    asked = {"what": question.what, "columns": list(question.columns), **question.options}
    return {**asked, "parts": PARTS, "fitted": FITTED, "workers": WORKERS}


def summarize(folder: Path) -> Report:
    """Writes `cluster.md` from the newest lines."""
    rows = newest(read_rows(folder / "cluster.jsonl"), ("model",))
    return write_report(report(rows), folder / "cluster.md")


# ---- measuring


def measure(name: str, path: Path, work_dir: Path) -> dict[str, Any]:
    """Rows and values of one process and of Ray, one of whose workers is killed."""
    parts, model = divide(path, work_dir / "parts"), work_dir / name
    kdm.save(fitted(name, parts), model)
    function = QUESTIONS[name].function(model)
    start = time.perf_counter()
    alone = in_one_process(function, parts)
    between = time.perf_counter()
    together, processes, kills = with_ray(function, parts, work_dir / f"{name}-ray")
    seconds = {"one_process": between - start, "ray": time.perf_counter() - between}
    return {**compare(alone, together), "processes": len(processes), "kills": kills, "seconds_of": seconds}


def divide(path: Path, folder: Path) -> Path:
    """The rows in several Parquet files, with their number, the hour and the day of the year."""
    import pyarrow as arrow
    from pyarrow import compute, parquet

    if (folder / "whole").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    table = parquet.read_table(path)
    hour = compute.add(compute.hour(table["date"]), compute.divide(compute.minute(table["date"]), 60.0))
    numbers = {ROW: np.arange(table.num_rows), "hour": hour, "day": compute.day_of_year(table["date"])}
    for name, values in numbers.items():
        table = table.append_column(name, arrow.array(values) if isinstance(values, np.ndarray) else values)
    ends = np.linspace(0, table.num_rows, PARTS + 1).astype(int)
    for i, (low, high) in enumerate(pairwise(ends)):
        parquet.write_table(table.slice(low, high - low), folder / f"{i:03}.parquet")
    (folder / "whole").touch()
    return folder


def _files(parts: Path) -> list[str]:
    return sorted(map(str, parts.glob("*.parquet")))


def fitted(name: str, parts: Path) -> Any:
    """A small model of some of the rows: the same answers are asked for, not good ones."""
    import pyarrow as arrow
    from pyarrow import parquet

    table = arrow.concat_tables(map(parquet.read_table, _files(parts)))
    chosen = np.sort(np.random.default_rng(0).choice(table.num_rows, min(FITTED, table.num_rows), False))
    rows = table.take(chosen)
    frame = rows.select(["delay", *FEATURES]).to_pandas().astype(float)
    small: dict[str, Any] = {"max_epochs": 5, "random_state": 0}
    if name == "KDMDensity":
        return kdm.KDMDensity("likelihood", **small).fit(frame)
    if name == "KDMClassifier":
        late = np.where(frame["delay"] > 15, "late", "on time")
        return kdm.KDMClassifier(n_members=4, n_components=32, **small).fit(frame[FEATURES], late)
    if name == "KDMRegressor":
        return kdm.KDMRegressor(n_members=4, n_components=32, **small).fit(frame[FEATURES], frame["delay"])
    return kdm.KDMTable(n_components=16, **small).fit(rows.select(QUESTIONS["KDMTable"].columns))


def in_one_process(function: kdm.BatchFunction, parts: Path) -> Any:
    """The answers to all rows, in their order."""
    import pyarrow as arrow
    from pyarrow import parquet

    return arrow.concat_tables(function(parquet.read_table(file)) for file in _files(parts))


@dataclass(frozen=True)
class KillOnce:
    """A function of batches that kills its process where it first meets some row.

    Args:
        row: the row.
        folder: where it leaves a file for every process, and one that tells that it has killed.
    """

    function: kdm.BatchFunction
    row: int
    folder: Path

    def __call__(self, batch: Any) -> Any:
        (self.folder / str(os.getpid())).touch()
        made = self.function(batch)
        if self.row in batch[ROW].to_numpy() and not (self.folder / "killed").exists():
            (self.folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return made


def with_ray(function: kdm.BatchFunction, parts: Path, folder: Path) -> tuple[Any, list[int], int]:
    """The answers to all rows, in any order; the processes that had a part in them; how many were killed."""
    import ray.data
    from pyarrow import parquet

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    n = sum(parquet.ParquetFile(file).metadata.num_rows for file in _files(parts))
    started = not ray.is_initialized()
    if started:
        ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False)
    # Blocks of rows are what workers share.
    context = ray.data.DataContext.get_current()
    largest, context.target_max_block_size = context.target_max_block_size, max(1 << 14, _BYTES * n // PARTS)
    try:
        ray.data.read_parquet(_files(parts)).map_batches(
            KillOnce,
            fn_constructor_args=(function, n // 2, folder),
            compute=ray.data.ActorPoolStrategy(size=WORKERS),
            num_cpus=0.5,  # what reads the files needs a core, too
            batch_format="pyarrow",
            batch_size=None,
        ).write_parquet(str(folder / "rows"))
    finally:
        context.target_max_block_size = largest
        if started:
            ray.shutdown()
    answers = parquet.read_table(folder / "rows")
    return answers, [int(file.name) for file in folder.glob("[0-9]*")], int((folder / "killed").exists())


def compare(alone: Any, together: Any) -> dict[str, Any]:
    """How many rows there are, are missing, or come twice, and how far values are from each other."""
    rows = together[ROW].to_numpy()
    wanted = alone[ROW].to_numpy()
    together = together.take(np.argsort(rows, kind="stable"))
    same = len(rows) == len(wanted) and bool((together[ROW].to_numpy() == wanted).all())
    measured = {
        "rows": len(wanted),
        "missing": int(np.setdiff1d(wanted, rows).size),
        "repeated": int(len(rows) - np.unique(rows).size),
        "columns": alone.column_names,
    }
    names = [name for name in alone.column_names if name != ROW]
    differences = [_difference(alone[n].to_numpy(), together[n].to_numpy()) for n in names] if same else []
    return {**measured, "largest_difference": max(differences) if differences else None}


def _difference(a: Any, b: Any) -> float:
    """The largest difference relative to 1 + |a|; of texts, 0 where all are the same."""
    if a.dtype.kind != "f":
        return float((a != b).any())
    return float(np.max(np.abs(a - b) / (1 + np.abs(a)), initial=0.0))


# ---- the report


def report(rows: Sequence[Row]) -> Report:
    """Rows and differences of every model, with targets."""
    table = [
        [
            f"{row['model']}, {row['settings']['what']}",
            f"{row['rows']:,}",
            f"{row['missing']} / {row['repeated']}",
            "other rows" if row["largest_difference"] is None else f"{row['largest_difference']:.1e}",
            f"{row['processes']}, {row['kills']} of them killed",
        ]
        for row in rows
    ]
    wrong = [float(row["missing"] + row["repeated"]) for row in rows]
    apart = [np.inf if row["largest_difference"] is None else row["largest_difference"] for row in rows]
    claims = [
        Claim("rows that are missing or come twice", [max(wrong)] if wrong else [], most=0),
        Claim("largest difference / (1 + |value|)", [max(apart)] if apart else [], most=_LARGEST_DIFFERENCE),
    ]
    notes = (
        claims_table(claims, ".1g"),
        f"The rows of `{FILE}` (npm package `vega-datasets`), divided into {PARTS} Parquet files, are mapped "
        f"by `kdmkit.BatchFunction`: by one process, and by Ray Data with {WORKERS} workers on the same "
        "machine. The worker that first meets the row in the middle is killed (signal 9). Lines have seconds "
        "too; other programs used the machine at that time.",
        provenance(rows),
        "Written by `kdmlab reproduce cluster --data-dir DIR` (extra `ray`) from the lines in "
        "`cluster.jsonl`.",
    )
    header = ["model", "rows", "missing / twice", "difference", "Ray's processes"]
    return Report("Rows of a large file by Ray Data", header, table, notes)
