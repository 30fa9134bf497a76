"""The command line on a large file: seconds and peak memory of each command."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

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
    select,
    write_report,
)

#: Three million flights: date, delay, distance, origin and destination (npm package `vega-datasets`).
FILE = "flights-3m.parquet"
QUESTION = "P(delay | 500 <= distance <= 1000)"
#: Rows that are drawn, scored and filled in.
ROWS = 1_000_000
PROGRAM = (sys.executable, "-m", "kdmkit.cli")
FIT, ASK, SAMPLE, SCORE, IMPUTE = "fit", "ask", "sample", "score", "impute"
_MOST_MEMORY, _MOST_SECONDS = 1e9, 600.0
# Seconds between two looks at a process.
_PERIOD = 0.02


def run(folder: Path, data_dir: Path, work_dir: Path, *, fresh: bool = False, verbose: bool = True) -> Report:
    """Runs the commands one after the other and writes `large-table.jsonl` and `large-table.md`.

    Args:
        folder: where the results are and go.
        data_dir: the folder of `flights-3m.parquet`.
        work_dir: where the model and the rows go that the commands write.
        fresh: whether to measure again what was measured before.
        verbose: whether to show progress.
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    run_tasks(tasks(data_dir / FILE, work_dir), folder / "large-table.jsonl", fresh=fresh, verbose=verbose)
    return summarize(folder)


def summarize(folder: Path) -> Report:
    """Writes `large-table.md` from the newest lines."""
    rows = newest(read_rows(folder / "large-table.jsonl"), ("command",))
    return write_report(report(rows), folder / "large-table.md")


def tasks(path: Path, work_dir: Path, rows: int = ROWS) -> list[Task]:
    """The commands in the order in which they need each other's files."""
    model, drawn, holes = work_dir / "model", work_dir / "drawn.parquet", work_dir / "holes.parquet"
    commands: dict[str, list[Path | str]] = {
        FIT: [path, "-o", model],
        ASK: [model, QUESTION],
        SAMPLE: [model, "-n", str(rows), "-o", drawn],
        SCORE: [model, drawn, "-o", work_dir / "scores.parquet"],
        IMPUTE: [model, holes, "-o", work_dir / "filled.parquet"],
    }
    return [
        Task(
            {"file": path.name, "command": name, "settings": {"arguments": _shown(words)}},
            partial(measure, [name, *map(str, words)])
            if name != IMPUTE
            else partial(_measure_impute, drawn, holes, [name, *map(str, words)]),
        )
        for name, words in commands.items()
    ]


def _shown(words: Sequence[Path | str]) -> str:
    """Words as a user would type them in the folder of the files."""
    return " ".join(word.name if isinstance(word, Path) else word for word in words)


def _measure_impute(drawn: Path, holes: Path, words: Sequence[str]) -> dict[str, Any]:
    remove_cells(drawn, holes)
    return measure(words)


def remove_cells(source: Path, target: Path) -> None:
    """Writes a Parquet file in which every fourth cell of each column is missing, batch by batch."""
    import pyarrow as arrow
    from pyarrow import compute, parquet

    with parquet.ParquetFile(source) as read, parquet.ParquetWriter(target, read.schema_arrow) as written:
        for batch in read.iter_batches():
            place = np.arange(batch.num_rows)
            columns = [
                compute.if_else(arrow.array((place + i) % 4 == 0), arrow.scalar(None, column.type), column)
                for i, column in enumerate(batch.columns)
            ]
            written.write_batch(arrow.record_batch(columns, schema=batch.schema))


def measure(words: Sequence[str]) -> dict[str, Any]:
    """Peak memory of one command in a process of its own; its wall-clock time is a field of every line.

    The memory is the largest resident set, the interpreter and torch among it. It is read from Linux fifty
    times a second: what the system reports of an ended process includes the process that started it.
    """
    with tempfile.TemporaryFile() as output:
        with subprocess.Popen([*PROGRAM, *words], stdout=output, stderr=subprocess.STDOUT) as process:
            peak = 0
            while process.poll() is None:
                peak = max(peak, _largest_resident_set(process.pid))
                time.sleep(_PERIOD)
        output.seek(0)
        said = output.read().decode(errors="replace")
    if process.returncode:
        raise RuntimeError(
            f"kdmkit {' '.join(words)} ended with exit code {process.returncode}: {said[-2000:]}"
        )
    return {"peak_bytes": peak}


def _largest_resident_set(pid: int) -> int:
    """The largest memory of a process in bytes; 0 after its end."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def report(rows: Sequence[Row]) -> Report:
    """Seconds and memory of every command; the claim is about fitting and asking."""
    names = [name for name in (FIT, ASK, SAMPLE, SCORE, IMPUTE) if select(rows, command=name)]
    lines = [select(rows, command=name)[0] for name in names]
    table = [
        [f"{line['command']} {line['settings']['arguments']}", f"{line['seconds']:.1f}", _megabytes(line)]
        for line in lines
    ]
    asked = [line for line in lines if line["command"] in (FIT, ASK)]
    whole = [sum(line["seconds"] for line in asked)] if len(asked) == len((FIT, ASK)) else []
    peak = [max(line["peak_bytes"] for line in asked) / 1e6] if whole else []
    everything = [max(line["peak_bytes"] for line in lines) / 1e6] if lines else []
    claims = [
        Claim("fit and ask: seconds", whole, most=_MOST_SECONDS),
        Claim("fit and ask: peak memory, MB", peak, most=_MOST_MEMORY / 1e6),
        Claim("all commands: peak memory, MB", everything, most=_MOST_MEMORY / 1e6),
    ]
    notes = (
        claims_table(claims, ".0f"),
        f"`{FILE}` has 3,000,000 rows (npm package `vega-datasets`). Each command is a process of its own; "
        "its memory is the largest resident set, with the interpreter and torch. Commands read and write "
        "batches of rows; a fit keeps a uniform sample of `max_rows` rows. `score` has the drawn rows as "
        "input, `impute` the same with every fourth cell missing.",
        provenance(rows),
        "Written by `kdmlab reproduce large-table --data-dir DIR` from the lines in `large-table.jsonl`.",
    )
    return Report("A large file on the command line", ["kdmkit …", "s", "peak, MB"], table, notes)


def _megabytes(line: Row) -> str:
    return f"{line['peak_bytes'] / 1e6:.0f}"
