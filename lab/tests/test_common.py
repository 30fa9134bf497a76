"""The runner, lines of results, means, claims and tables."""

import math
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

import numpy as np
import pytest

import kdmkit
from kdmlab.common import (
    FORMAT,
    Claim,
    Mean,
    Pool,
    Report,
    Task,
    markdown_table,
    newest,
    provenance,
    read_rows,
    remove_rows,
    run_tasks,
    select,
    write_report,
)

RESULTS = Path(__file__).parents[2] / "results"


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
    return [row["square"] for row in rows]


def test_measures_and_writes(counter: Counter, path: Path) -> None:
    rows = run_tasks(counter.tasks(1, 2, 3), path, verbose=False)
    assert squares(rows) == [1, 4, 9]
    assert rows == read_rows(path)
    assert rows[0]["machine"]["cores"] >= 1
    assert rows[0]["versions"]["kdmkit"]
    assert rows[0]["seconds"] >= 0


def test_goes_on_where_it_stopped(counter: Counter, path: Path) -> None:
    run_tasks(counter.tasks(1, 2), path, verbose=False)
    rows = run_tasks(counter.tasks(3, 2, 1), path, verbose=False)
    assert counter.runs == [1, 2, 3]
    assert squares(rows) == [9, 4, 1]  # in the order of the tasks, not of the file


def test_an_interruption_loses_one_task(counter: Counter, path: Path) -> None:
    def stop() -> Mapping[str, Any]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_tasks([counter.task(1), Task({"number": 2}, stop), counter.task(3)], path, verbose=False)
    assert squares(read_rows(path)) == [1]


def test_lines_can_be_removed(counter: Counter, path: Path) -> None:
    run_tasks(counter.tasks(1, 2, 3), path, verbose=False)
    remove_rows([counter.task(2).key], path)
    assert [row["square"] for row in read_rows(path)] == [1, 9]
    assert [file.name for file in path.parent.iterdir()] == ["squares.jsonl"]
    run_tasks(counter.tasks(1, 2, 3), path, verbose=False)
    assert counter.runs == [1, 2, 3, 2]


def test_nothing_is_removed_where_nothing_is(counter: Counter, path: Path) -> None:
    remove_rows([counter.task(1).key], path)
    assert not path.exists()


_PARENT = """
import os, signal
from kdmlab.common import processes
if __name__ == "__main__":
    with processes(2) as pool:
        print(*pool.executor.map(_pid, range(2)), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
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
    run_tasks(counter.tasks(1, 2), path, verbose=False)
    path.write_text(path.read_text(encoding="utf-8")[:-40], encoding="utf-8")
    rows = run_tasks(counter.tasks(1, 2), path, verbose=False)
    assert counter.runs == [1, 2, 2]
    assert rows == read_rows(path)


def test_other_settings_are_another_task(counter: Counter, path: Path) -> None:
    run_tasks(counter.tasks(1), path, verbose=False)
    other = Task({"number": 1, "settings": {"a": [1, 3], "b": 1}}, lambda: {"square": -1})
    same = Task({"settings": {"a": [1, 2], "b": 1}, "number": 1}, lambda: {"square": -2})  # another order
    assert squares(run_tasks([other, same], path, verbose=False)) == [-1, 1]
    assert len(read_rows(path)) == 2


def test_fresh_measures_again_and_keeps_other_lines(counter: Counter, path: Path) -> None:
    run_tasks(counter.tasks(1, 2), path, verbose=False)
    run_tasks(counter.tasks(1), path, fresh=True, verbose=False)
    assert counter.runs == [1, 2, 1]
    assert [row["number"] for row in read_rows(path)] == [2, 1]


def test_a_line_has_a_format_and_the_fields_of_key_and_result(counter: Counter, path: Path) -> None:
    (row,) = run_tasks(counter.tasks(2), path, verbose=False)
    assert list(row) == [
        "format", "number", "settings", "square", "seconds", "finished", "machine", "versions",
    ]  # fmt: skip
    assert (row["format"], row["number"], row["square"]) == (FORMAT, 2, 4)


def test_tasks_may_have_different_fields(counter: Counter, path: Path) -> None:
    other = Task({"number": 1, "colour": "red"}, lambda: {"square": -1})
    tasks = [counter.task(1), other]
    assert squares(run_tasks(tasks, path, verbose=False)) == [1, -1]
    assert squares(run_tasks(tasks, path, verbose=False)) == [1, -1]
    assert counter.runs == [1]


def test_equal_tasks_are_measured_once(counter: Counter, path: Path) -> None:
    assert squares(run_tasks(counter.tasks(3, 3), path, verbose=False)) == [9, 9]
    assert counter.runs == [3]


# ---- the format of lines


def test_lines_do_not_depend_on_the_version_of_the_library(
    counter: Counter, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_tasks(counter.tasks(1), path, verbose=False)
    monkeypatch.setattr(kdmkit, "__version__", "9.9.9")
    assert run_tasks(counter.tasks(1), path, verbose=False) == first
    assert counter.runs == [1]


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.jsonl")), ids=lambda file: file.stem)
def test_committed_lines_are_accepted_by_other_versions(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kdmkit, "__version__", "9.9.9")
    assert len(read_rows(file)) == len(file.read_text(encoding="utf-8").splitlines()) > 0


def test_a_line_without_a_format_has_the_first(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"number": 1}\n', encoding="utf-8")
    assert read_rows(path) == [{"number": 1}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"format": 1}\n{"format": 99}\n', r"expected lines of format 1, got format 99 in line 2"),
        ("[1]\n", r"expected lines of format 1, got format unknown in line 1"),
        ("accuracy: good\n", r"expected JSON lines, got something else"),
    ],
)
def test_other_lines_are_refused(path: Path, text: str, message: str) -> None:
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_rows(path)


def test_lines_are_selected() -> None:
    rows = [{"data": name, "settings": {"b": value}} for name, value in (("a", 1), ("b", 1), ("a", 2))]
    assert select(rows, data="a") == [rows[0], rows[2]]
    assert newest(rows, ["data"]) == rows[1:]


# ---- several at once


def test_several_at_once_wait_for_what_they_need(counter: Counter, path: Path) -> None:
    first, second, third = counter.tasks(1, 2, 3)
    tasks = [replace(third, after=second.key), replace(second, after=first.key), first, counter.task(4)]
    with ThreadPoolExecutor(2) as executor:
        rows = run_tasks(tasks, path, verbose=False, pool=Pool(executor, 2))
    assert squares(rows) == [9, 4, 1, 16]
    order = [number for number in counter.runs if number != 4]
    assert order == [1, 2, 3]


def test_nobody_waits_for_what_was_done_before(counter: Counter, path: Path) -> None:
    run_tasks(counter.tasks(1), path, verbose=False)
    with ThreadPoolExecutor(2) as executor:
        tasks = [replace(counter.task(2), after=counter.task(1).key)]
        assert squares(run_tasks(tasks, path, verbose=False, pool=Pool(executor, 2))) == [4]


def test_a_failure_among_several_keeps_what_is_finished(counter: Counter, path: Path) -> None:
    def fail() -> Mapping[str, Any]:
        raise RuntimeError("no")

    tasks = [counter.task(1), Task({"number": 2}, fail, after=counter.task(1).key)]
    with ThreadPoolExecutor(1) as executor, pytest.raises(RuntimeError, match="no"):
        run_tasks(tasks, path, verbose=False, pool=Pool(executor, 1))
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


def test_report_links_to_its_notes(tmp_path: Path) -> None:
    (tmp_path / "squares-notes.md").touch()
    write_report(Report("Squares"), tmp_path / "squares.md")
    assert "(squares-notes.md)" in (tmp_path / "squares.md").read_text(encoding="utf-8")


def test_table_of_no_rows() -> None:
    assert markdown_table(["a"], []) == "| a |\n|:--|"


def test_provenance_names_every_machine(counter: Counter, path: Path) -> None:
    rows = run_tasks(counter.tasks(1, 2), path, verbose=False)
    rows[1]["machine"] = {"cpu": "Abacus", "cores": 1, "threads": 1, "accelerator": "Slide rule"}
    rows[1]["finished"] = "2001-01-01T00:00:00+00:00"
    text = provenance(rows)
    assert "Abacus, 1 cores, 1 threads, Slide rule" in text
    assert f"2001-01-01 to {rows[0]['finished'][:10]}" in text
    assert text.count("torch") == 1


def test_provenance_says_what_the_lines_say() -> None:
    row = {"machine": {"cpu": "Abacus", "threads": 2}, "versions": {"kdmkit": "0.1.0"}}
    assert provenance([row, row]) == "Measured on Abacus, 2 threads; kdmkit 0.1.0."
    assert provenance([]) == "Nothing was measured yet."


# ---- means and claims


def test_interval_is_students() -> None:
    values = [0.85, 0.86, 0.87, 0.85, 0.86, 0.87, 0.85, 0.86, 0.87, 0.86]
    mean = Mean.of(values)
    assert mean.half_width == pytest.approx(3.250 * np.std(values, ddof=1) / math.sqrt(10), rel=1e-3)
    assert mean.standard_error == pytest.approx(np.std(values, ddof=1) / math.sqrt(10))
    assert (mean.n, mean.least) == (10, 0.85)
    assert mean.plus_minus(0.25, digits=1) == "0.9 ± 0.2"


def test_a_single_value_has_no_interval() -> None:
    mean = Mean.of([0.5])
    assert mean.text == "0.5000"
    assert mean.plus_minus(mean.standard_error, digits=2) == "0.50"


def test_claim_takes_the_mean() -> None:
    claim = Claim("accuracy", [0.85, 0.97], 0.9)
    assert (claim.target, claim.shown(".4g"), claim.verdict) == ("≥ 0.9", "0.91", "yes")


def test_claim_may_take_the_minimum() -> None:
    claim = Claim("worst", [0.85, 0.97], 0.9, summary="minimum")
    assert (claim.shown(".4g"), claim.verdict) == ("0.85", "no")


@pytest.mark.parametrize(("value", "met"), [(0.86, False), (0.87, True), (0.93, True), (0.94, False)])
def test_claim_between_two_ends(value: float, met: bool) -> None:
    claim = Claim("coverage", [value], 0.87, 0.93)
    assert claim.target == "0.87 … 0.93"
    assert claim.met is met


def test_claim_without_values_is_not_met() -> None:
    claim = Claim("accuracy", [], 0.9)
    assert (claim.met, claim.shown(".4f"), claim.verdict) == (False, "", "not run")


def test_claim_about_more_runs_says_so() -> None:
    assert Claim("accuracy", [0.9], 0.8, runs=10).verdict == "yes, of 1 run"
    assert Claim("accuracy", [0.7, 0.8], 0.8, runs=10).verdict == "no, of 2 runs"


def test_a_value_without_a_target_is_shown() -> None:
    claim = Claim("distance", [3.0])
    assert (claim.target, claim.shown("g"), claim.verdict) == ("", "3", "")
