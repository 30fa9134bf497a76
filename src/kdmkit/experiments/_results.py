"""Measurements as JSON lines, one per finished task: an interrupted run goes on where it stopped."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from tqdm.auto import tqdm

import kdmkit
from kdmkit._core.files import replacing

Row = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """One measurement.

    Args:
        key: what makes it this one and no other: data, fold, method, settings, seed. JSON values.
        measure: runs it and returns what it measured, as JSON values.
        after: the key of a task that has to be finished before, where several run at once.
    """

    key: Mapping[str, Any]
    measure: Callable[[], Mapping[str, Any]]
    after: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Pool:
    """Processes that measure several tasks at once."""

    executor: Executor
    size: int


@dataclass(frozen=True)
class Report:
    """A table of results, and the files that hold it."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    files: Sequence[Path] = field(default=())

    def markdown(self) -> str:
        parts = [f"# {self.title}", markdown_table(self.header, self.rows), *self.notes]
        return "\n\n".join(parts) + "\n"


def complete(
    tasks: Sequence[Task],
    path: Path,
    *,
    fresh: bool = False,
    verbose: bool = True,
    flat: bool = False,
    pool: Pool | None = None,
) -> list[Row]:
    """The lines of all tasks, in their order; those that `path` does not hold yet are measured and added.

    Args:
        tasks: what to measure.
        path: the file of JSON lines. Lines of other tasks stay in it.
        fresh: whether to begin the file again.
        verbose: whether to show progress.
        flat: whether key and result are fields of the line, instead of its parts `task` and `result`.
        pool: measures several at once, the first that can go first; measures have to be picklable. None is
            one at a time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if fresh:
        path.unlink(missing_ok=True)
    fields = list(tasks[0].key) if flat and tasks else None
    done = {_name(_key(row, fields)): row for row in read_rows(path)}
    missing = [task for task in tasks if _name(task.key) not in done]
    with tqdm(total=len(tasks), desc=path.stem, unit="task", disable=not verbose) as bar:
        bar.update(len(tasks) - len(missing))
        for task, row in _measured(missing, pool):
            row = {**task.key, **row.pop("result"), **row} if flat else {"task": dict(task.key), **row}
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            done[_name(task.key)] = row
            bar.set_postfix_str(_brief(task.key))
            bar.update()
    return [done[_name(task.key)] for task in tasks]


def read_rows(path: Path) -> list[Row]:
    """The lines of a file. A last line that was cut off by an interruption is removed from it."""
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)
    return [json.loads(line) for line in data[:whole].decode("utf-8").splitlines()]


def forget(tasks: Sequence[Task], path: Path) -> None:
    """Removes the flat lines of some tasks from a file; a kill leaves the old file or the new one."""
    names = {_name(task.key) for task in tasks}
    fields = list(tasks[0].key) if tasks else []
    kept = [row for row in read_rows(path) if _name(_key(row, fields)) not in names]
    if not path.exists():
        return
    with replacing(path) as temporary:
        temporary.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")


def _measured(tasks: Sequence[Task], pool: Pool | None) -> Iterator[tuple[Task, Row]]:
    """Tasks with what they measured, in the order in which they finish."""
    if pool is None:
        for task in tasks:
            yield task, _measure(task.measure)
        return
    waiting, running = list(tasks), dict[Future[Row], Task]()
    try:
        while waiting or running:
            for task in _ready(waiting, running.values())[: pool.size - len(running)]:
                waiting.remove(task)
                running[pool.executor.submit(_measure, task.measure)] = task
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()
    finally:
        for future in running:
            future.cancel()


def _ready(waiting: Sequence[Task], running: Iterable[Task]) -> list[Task]:
    """Those that wait for no other. One that waits for something that nobody does need not wait."""
    unfinished = {_name(task.key) for task in (*waiting, *running)}
    return [task for task in waiting if task.after is None or _name(task.after) not in unfinished]


def _measure(measure: Callable[[], Mapping[str, Any]]) -> Row:
    start = time.perf_counter()
    result = dict(measure())
    return {
        "result": result,
        "seconds": round(time.perf_counter() - start, 3),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
    }


def _key(row: Row, fields: Sequence[str] | None) -> Row:
    return row["task"] if fields is None else {field: row.get(field) for field in fields}


def _name(key: Mapping[str, Any]) -> str:
    return json.dumps(dict(key), sort_keys=True)


def _brief(key: Mapping[str, Any]) -> str:
    return " ".join(str(value) for value in key.values() if isinstance(value, str | int))


# ---- where it ran


def machine() -> dict[str, Any]:
    """The hardware, in words."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {"cpu": _cpu(), "cores": _cores(), "threads": torch.get_num_threads(), "accelerator": device}


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def versions() -> dict[str, str]:
    return {
        "kdmkit": kdmkit.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "scikit-learn": sklearn.__version__,
        "numpy": np.__version__,
    }


def provenance(rows: Iterable[Row]) -> str:
    """A sentence on the machines, versions and dates of some lines."""
    rows = list(rows)
    if not rows:
        return "Nothing was measured yet."
    dates = sorted(row["finished"][:10] for row in rows)
    span = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    seconds = sum(row["seconds"] for row in rows)
    machines = _distinct(_machine_words(row["machine"]) for row in rows)
    used = _distinct(", ".join(f"{k} {v}" for k, v in row["versions"].items()) for row in rows)
    return f"Measured {span} in {seconds:,.0f} s altogether, on {machines}; {used}."


def _machine_words(machine: Mapping[str, Any]) -> str:
    words = f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads"
    return words if machine["accelerator"] == "none" else f"{words}, {machine['accelerator']}"


def _distinct(texts: Iterable[str]) -> str:
    return " and ".join(dict.fromkeys(texts))


# ---- tables


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; all columns but the first are aligned to the right.

    >>> print(markdown_table(["data", "score"], [["iris", "0.95"]]))
    | data | score |
    |:--|--:|
    | iris | 0.95 |
    """
    rule = "|:--|" + "--:|" * (len(header) - 1)
    lines = ["| " + " | ".join(cells) + " |" for cells in [header, *rows]]
    return "\n".join([lines[0], rule, *lines[1:]])


def write_report(report: Report, path: Path) -> Report:
    """Writes the table beside its lines; the report with its files is returned."""
    path.write_text(report.markdown(), encoding="utf-8")
    return Report(report.title, report.header, report.rows, report.notes, (path.with_suffix(".jsonl"), path))
