"""Measures tasks and writes a line for each: an interrupted run continues where it stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from tqdm.auto import tqdm

from kdmlab.common.files import make_folder
from kdmlab.common.lines import (
    FORMAT,
    Row,
    append_row,
    find_rows,
    key_name,
    read_rows,
    remove_rows,
)
from kdmlab.common.machine import machine, versions
from kdmlab.common.processes import Pool

#: Data that defaults were chosen on, or data that were measured once, afterwards.
Part = Literal["development", "test"]


@dataclass(frozen=True)
class Task:
    """One measurement.

    Args:
        key: what identifies it: data, fold, method, settings, seed. JSON values.
        measure: runs it and returns what it measured, as JSON values.
        after: the key of a task that has to be finished before this one starts, where several run at once;
            or a tuple of keys.
    """

    key: Mapping[str, Any]
    measure: Callable[[], Mapping[str, Any]]
    after: Mapping[str, Any] | tuple[Mapping[str, Any], ...] | None = None

    @property
    def waits_for(self) -> set[str]:
        """Names of the keys in `after`."""
        after = self.after or ()
        return {key_name(key) for key in (after if isinstance(after, tuple) else (after,))}


def run_tasks(
    tasks: Sequence[Task],
    path: Path,
    *,
    fresh: bool = False,
    verbose: bool = True,
    pool: Pool | None = None,
) -> list[Row]:
    """The lines of all tasks, in their order. Tasks without a line in `path` are measured and added.

    A line holds the format number, the fields of the key and of the result, and where and when it was
    measured.

    Args:
        tasks: what to measure.
        path: the file of JSON lines. Lines of other tasks stay in it.
        fresh: whether to measure again the tasks that have a line.
        verbose: whether to show progress.
        pool: measures several tasks at once, in order as far as `after` allows; measures have to be
            picklable. None is one task at a time.
    """
    make_folder(path.parent)
    keys = [task.key for task in tasks]
    if fresh:
        remove_rows(keys, path)
    rows = find_rows(keys, read_rows(path))
    done = {key_name(key): row for key, row in zip(keys, rows, strict=True) if row is not None}
    missing = {key_name(task.key): task for task in tasks if key_name(task.key) not in done}
    with tqdm(total=len(tasks), desc=path.stem, unit="task", disable=not verbose) as bar:
        bar.update(len(tasks) - len(missing))
        for task, row in _measured(list(missing.values()), pool):
            append_row(path, row)
            done[key_name(task.key)] = row
            bar.set_postfix_str(_brief(task.key))
            bar.update()
    return [done[key_name(key)] for key in keys]


def _measured(tasks: Sequence[Task], pool: Pool | None) -> Iterator[tuple[Task, Row]]:
    """Tasks with their lines, in the order in which they finish."""
    if pool is None:
        for task in tasks:
            yield task, _line(task.key, _measure(task.measure))
        return
    waiting, running = list(tasks), dict[Future[Row], Task]()
    try:
        while waiting or running:
            for task in _ready(waiting, running.values())[: pool.size - len(running)]:
                waiting.remove(task)
                running[pool.executor.submit(_measure, task.measure)] = task
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                task = running.pop(future)
                yield task, _line(task.key, future.result())
    finally:
        for future in running:
            future.cancel()


def _ready(waiting: Sequence[Task], running: Iterable[Task]) -> list[Task]:
    """Tasks that can start now.

    A task waits for its `after` only while that one is waiting or running. Otherwise it was finished before,
    or nobody asked for it.
    """
    unfinished = {key_name(task.key) for task in (*waiting, *running)}
    return [task for task in waiting if unfinished.isdisjoint(task.waits_for)]


def _measure(measure: Callable[[], Mapping[str, Any]]) -> Row:
    start = time.perf_counter()
    result = dict(measure())
    return {
        **result,
        "seconds": round(time.perf_counter() - start, 3),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
    }


def _line(key: Mapping[str, Any], measured: Row) -> Row:
    return {"format": FORMAT, **key, **measured}


def _brief(key: Mapping[str, Any]) -> str:
    return " ".join(str(value) for value in key.values() if isinstance(value, str | int))
