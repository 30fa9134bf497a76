"""Earlier benchmarks: their lines are kept, and the present ones are compared with them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from kdmlab.bench.report import milliseconds
from kdmlab.common import Report, Row, provenance, read_rows, write_report
from kdmlab.common.lines import append_row, remove_rows

HEADER = ["case", "peer", "before, ms", "now, ms", "now / before", "verdict"]
# Medians on one machine differ by this much from run to run.
_NOISE = 0.2


def history_of(path: Path) -> Path:
    """The file with the lines of earlier benchmarks."""
    return path.with_name(f"{path.stem}-history.jsonl")


def keep(path: Path, cases: Collection[str]) -> None:
    """Moves the lines of some cases from the last benchmark to the history."""
    rows = [row for row in read_rows(path) if row["case"] in cases]
    for row in rows:
        append_row(history_of(path), row)
    remove_rows([{"case": row["case"]} for row in rows], path)


def compare(folder: Path, device: str) -> Report:
    """Writes how the times of the last benchmark differ from earlier ones, where the machine is the same."""
    path = folder / f"bench-{device}.jsonl"
    earlier = {_place(row): row for row in read_rows(history_of(path))}
    pairs = [(earlier.get(_place(row)), row) for row in read_rows(path)]
    compared = [(before, now) for before, now in pairs if before is not None]
    if compared:
        notes = [
            f"Before. {provenance([before for before, _ in compared])}",
            f"Now. {provenance([now for _, now in compared])}",
        ]
    else:
        notes = [f"No line of {history_of(path).name} has a case and the machine of a line of {path.name}."]
    report = Report("Benchmark, compared", HEADER, [_cells(*pair) for pair in compared], notes)
    return write_report(report, path.with_name(f"bench-{device}-compared.md"))


def _place(row: Row) -> tuple[Any, ...]:
    machine: Mapping[str, Any] = row["machine"]
    return row["case"], row["peer"], row["growth"], tuple(machine.get(k) for k in ("cpu", "threads"))


def _cells(before: Row, now: Row) -> list[str]:
    ratio = now["median"] / before["median"]
    # Slower or faster only where the middle halves of the repetitions do not meet.
    apart = now["low"] > before["high"] or now["high"] < before["low"]
    verdict = "slower" if ratio > 1 + _NOISE else "faster" if ratio < 1 / (1 + _NOISE) else "same"
    return [
        now["case"],
        now["peer"],
        milliseconds(before["median"]),
        milliseconds(now["median"]),
        f"{ratio:.2f}",
        verdict if apart else "same",
    ]
