"""The command line on a file: time and memory of each command, from a small file."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import pytest

from kdmlab import large_table
from kdmlab.large_table import ASK, FIT, IMPUTE, SAMPLE, SCORE


def line(command: str, seconds: float, megabytes: float) -> dict[str, object]:
    return {
        "command": command,
        "settings": {"arguments": "x"},
        "seconds": seconds,
        "peak_bytes": megabytes * 1e6,
        "machine": {"cpu": "c", "cores": 2, "threads": 2, "accelerator": "none"},
        "versions": {"kdmkit": "0"},
    }


def test_commands_need_the_files_of_earlier_ones(tmp_path: Path) -> None:
    tasks = large_table.tasks(tmp_path / "flights.parquet", tmp_path, rows=7)
    assert [task.key["command"] for task in tasks] == [FIT, ASK, SAMPLE, SCORE, IMPUTE]
    assert tasks[2].key["settings"] == {"arguments": "model -n 7 -o drawn.parquet"}


def test_one_command_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that holds 60 MB for a moment."""
    monkeypatch.setattr(
        large_table,
        "PROGRAM",
        (sys.executable, "-c", "import time; a = bytearray(b'1') * int(6e7); time.sleep(.2)"),
    )
    results = large_table.measure(["fit"])
    assert 6e7 < results["peak_bytes"] < 1.5e8


def test_every_fourth_cell_is_removed(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": range(9), "b": list("abcdefghi")})
    frame.to_parquet(tmp_path / "all.parquet")
    large_table.remove_cells(tmp_path / "all.parquet", tmp_path / "holes.parquet")
    results = pd.read_parquet(tmp_path / "holes.parquet")
    assert results["a"].isna().to_numpy().nonzero()[0].tolist() == [0, 4, 8]
    assert results["b"].isna().to_numpy().nonzero()[0].tolist() == [3, 7]
    assert results["a"].dropna().tolist() == [1, 2, 3, 5, 6, 7]


def test_a_failing_command_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_table, "PROGRAM", (sys.executable, "-c", "raise SystemExit('no model')"))
    with pytest.raises(RuntimeError, match=r"kdmkit ask model ended with exit code 1: no model"):
        large_table.measure(["ask", "model"])


def test_report_judges_fit_and_ask_together() -> None:
    lines = [line(FIT, 500.0, 900.0), line(ASK, 101.0, 300.0), line(SCORE, 9.0, 1100.0)]
    text = large_table.report(lines).markdown()
    assert "| fit and ask: seconds | ≤ 600 | 601 | no |" in text
    assert "| fit and ask: peak memory, MB | ≤ 1000 | 900 | yes |" in text
    assert "| all commands: peak memory, MB | ≤ 1000 | 1100 | no |" in text


def test_report_without_lines() -> None:
    assert "not run" in large_table.report([]).markdown()
