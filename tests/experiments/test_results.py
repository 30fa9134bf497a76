"""Results as JSON lines: what is finished is not done again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kdmkit.experiments._results import (
    Pool,
    Report,
    Task,
    complete,
    forget,
    markdown_table,
    provenance,
    read_rows,
    write_report,
)


class Counter:
    """Tasks that note when they are run."""

    def __init__(self) -> None:
        self.runs: list[int] = []

    def task(self, number: int) -> Task:
        def measure() -> Mapping[str, Any]:
            self.runs.append(number)
            return {"square": number**2}

        return Task({"number": number, "settings": {"b": 1, "a": [1, 2]}}, measure)

    def tasks(self, *numbers: int) -> list[Task]:
        return [self.task(number) for number in numbers]


@pytest.fixture
def counter() -> Counter:
    return Counter()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results" / "squares.jsonl"


def squares(rows: list[dict[str, Any]]) -> list[int]:
    return [row["result"]["square"] for row in rows]


def test_measures_and_writes(counter: Counter, path: Path) -> None:
    rows = complete(counter.tasks(1, 2, 3), path, verbose=False)
    assert squares(rows) == [1, 4, 9]
    assert rows == read_rows(path)
    assert rows[0]["machine"]["cores"] >= 1
    assert rows[0]["versions"]["kdmkit"]
    assert rows[0]["seconds"] >= 0


def test_goes_on_where_it_stopped(counter: Counter, path: Path) -> None:
    complete(counter.tasks(1, 2), path, verbose=False)
    rows = complete(counter.tasks(3, 2, 1), path, verbose=False)
    assert counter.runs == [1, 2, 3]
    assert squares(rows) == [9, 4, 1]  # in the order of the tasks, not of the file


def test_an_interruption_loses_one_task(counter: Counter, path: Path) -> None:
    def stop() -> Mapping[str, Any]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        complete([counter.task(1), Task({"number": 2}, stop), counter.task(3)], path, verbose=False)
    assert squares(read_rows(path)) == [1]


def test_forgets_what_it_is_told_to(counter: Counter, path: Path) -> None:
    complete(counter.tasks(1, 2, 3), path, verbose=False, flat=True)
    forget(counter.tasks(2), path)
    assert [row["square"] for row in read_rows(path)] == [1, 9]
    assert [file.name for file in path.parent.iterdir()] == ["squares.jsonl"]
    complete(counter.tasks(1, 2, 3), path, verbose=False, flat=True)
    assert counter.runs == [1, 2, 3, 2]


def test_forgets_nothing_where_nothing_is(counter: Counter, path: Path) -> None:
    forget(counter.tasks(1), path)
    assert not path.exists()


_PARENT = """
import os, signal
from kdmkit.experiments._processes import processes
if __name__ == "__main__":
    with processes(2) as pool:
        print(*pool.executor.map(_pid, range(2)), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signal here")
def test_processes_end_with_a_killed_parent(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text("def _pid(_):\n    import os\n    return os.getpid()\n" + _PARENT, encoding="utf-8")
    output = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120).stdout
    children = [int(pid) for pid in output.split()]
    assert children
    deadline = time.monotonic() + 20
    while any(_lives(pid) for pid in children) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(_lives(pid) for pid in children)


def _lives(pid: int) -> bool:
    """Whether a process is there and not merely waiting to be collected."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/status")
    return not status.exists() or "State:\tZ" not in status.read_text(encoding="utf-8")


def test_a_line_cut_short_is_measured_again(counter: Counter, path: Path) -> None:
    complete(counter.tasks(1, 2), path, verbose=False)
    path.write_text(path.read_text(encoding="utf-8")[:-40], encoding="utf-8")
    rows = complete(counter.tasks(1, 2), path, verbose=False)
    assert counter.runs == [1, 2, 2]
    assert rows == read_rows(path)


def test_other_settings_are_another_task(counter: Counter, path: Path) -> None:
    complete(counter.tasks(1), path, verbose=False)
    other = Task({"number": 1, "settings": {"a": [1, 3], "b": 1}}, lambda: {"square": -1})
    same = Task({"settings": {"a": [1, 2], "b": 1}, "number": 1}, lambda: {"square": -2})  # another order
    assert squares(complete([other, same], path, verbose=False)) == [-1, 1]
    assert len(read_rows(path)) == 2


def test_fresh_begins_again(counter: Counter, path: Path) -> None:
    complete(counter.tasks(1, 2), path, verbose=False)
    complete(counter.tasks(1), path, fresh=True, verbose=False)
    assert counter.runs == [1, 2, 1]
    assert len(read_rows(path)) == 1


def test_a_flat_line_has_the_fields_of_key_and_result(counter: Counter, path: Path) -> None:
    rows = complete(counter.tasks(1, 2), path, flat=True, verbose=False)
    assert [(row["number"], row["square"]) for row in rows] == [(1, 1), (2, 4)]
    assert "task" not in rows[0]
    again = complete(counter.tasks(2, 3), path, flat=True, verbose=False)
    assert counter.runs == [1, 2, 3]
    assert [row["square"] for row in again] == [4, 9]
    assert again[0] == rows[1]


def test_several_at_once_wait_for_what_they_need(counter: Counter, path: Path) -> None:
    first, second, third = counter.tasks(1, 2, 3)
    tasks = [replace(third, after=second.key), replace(second, after=first.key), first, counter.task(4)]
    with ThreadPoolExecutor(2) as executor:
        rows = complete(tasks, path, verbose=False, pool=Pool(executor, 2))
    assert squares(rows) == [9, 4, 1, 16]
    order = [number for number in counter.runs if number != 4]
    assert order == [1, 2, 3]


def test_nobody_waits_for_what_was_done_before(counter: Counter, path: Path) -> None:
    complete(counter.tasks(1), path, verbose=False)
    with ThreadPoolExecutor(2) as executor:
        tasks = [replace(counter.task(2), after=counter.task(1).key)]
        assert squares(complete(tasks, path, verbose=False, pool=Pool(executor, 2))) == [4]


def test_a_failure_among_several_keeps_what_is_finished(counter: Counter, path: Path) -> None:
    def fail() -> Mapping[str, Any]:
        raise RuntimeError("no")

    tasks = [counter.task(1), Task({"number": 2}, fail, after=counter.task(1).key)]
    with ThreadPoolExecutor(1) as executor, pytest.raises(RuntimeError, match="no"):
        complete(tasks, path, verbose=False, pool=Pool(executor, 1))
    assert squares(read_rows(path)) == [1]


def test_no_file_has_no_rows(path: Path) -> None:
    assert read_rows(path) == []


def test_report_becomes_markdown(tmp_path: Path) -> None:
    report = Report("Squares", ["n", "n²"], [["1", "1"], ["2", "4"]], ["A note."])
    written = write_report(report, tmp_path / "squares.md")
    assert (tmp_path / "squares.md").read_text(encoding="utf-8") == (
        "# Squares\n\n| n | n² |\n|:--|--:|\n| 1 | 1 |\n| 2 | 4 |\n\nA note.\n"
    )
    assert written.files == (tmp_path / "squares.jsonl", tmp_path / "squares.md")


def test_table_of_no_rows() -> None:
    assert markdown_table(["a"], []) == "| a |\n|:--|"


def test_provenance_names_every_machine(counter: Counter, path: Path) -> None:
    rows = complete(counter.tasks(1, 2), path, verbose=False)
    rows[1]["machine"] = {"cpu": "Abacus", "cores": 1, "threads": 1, "accelerator": "Slide rule"}
    rows[1]["finished"] = "2001-01-01T00:00:00+00:00"
    text = provenance(rows)
    assert "Abacus, 1 cores, 1 threads, Slide rule" in text
    assert f"2001-01-01 to {rows[0]['finished'][:10]}" in text
    assert text.count("torch") == 1
