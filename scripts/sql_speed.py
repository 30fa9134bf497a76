"""Scores and predictions in SQL against those in Python, on the same rows: results/sql.md.

    python scripts/sql_speed.py --data-dir data --rows 1000000

Fits Adult with the default number of components, and a small table, then asks for log p and for predictions
of rows in Arrow, in turns: in Python, in DuckDB with one thread, and with several threads.
"""

from __future__ import annotations

import argparse
import platform
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import torch

import kdmkit as kdm
from kdmlab.common.machine import machine
from kdmlab.tables.data import adult_missing

ROOT = Path(__file__).resolve().parents[1]
# Threads of DuckDB.
_THREADS = (1, 16)


def adult(data_dir: Path) -> tuple[Any, Any, str]:
    """Fifteen columns, the default number of components for 8,000 rows."""
    rows = {name: pa.array(cells.tolist()) for name, cells in adult_missing(data_dir).train.items()}
    table = kdm.KDMTable(max_epochs=3, max_rows=8000, random_state=0).fit(pa.table(rows))
    return table, pa.table(rows), "age"


def small(_: Path) -> tuple[Any, Any, str]:
    """Four columns, 16 components: the costs of a call matter most."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, 3, 20_000)
    rows = pa.table(
        {
            "price": np.exp(rng.normal(6 + group, 0.3)).round(2),
            "cut": np.array(["Fair", "Good", "Ideal"])[group],
            "carat": (0.3 + 0.5 * group + 0.1 * rng.random(20_000)).round(2),
            "noise": rng.normal(size=20_000),
        }
    )
    return kdm.KDMTable(n_components=16, max_epochs=3, random_state=0).fit(rows), rows, "price"


def seconds(function: Callable[[], Any]) -> tuple[Any, float]:
    """The answer, and seconds of the processor."""
    start = time.process_time()
    answer = function()
    return answer, time.process_time() - start


def compared(name: str, table: Any, rows: Any, target: str, turns: int) -> list[str]:
    """A line for every question and number of threads."""
    lines = []
    with duckdb.connect() as connection:
        connection.register("given", rows)
        kdm.sql.register(connection, table, "m", unseen="missing")
        questions = {
            "logp": ("m_logp(g)", lambda: table.score_samples(rows)),
            "predict": (f"m_predict(g, '{target}')", lambda: table.predict(rows, target)),
        }
        for what, (expression, python) in questions.items():
            query = f"SELECT {expression} AS x FROM given g"
            times: dict[int, list[float]] = {n: [] for n in (0, *_THREADS)}
            worst = 0.0
            for _ in range(turns):
                wanted, spent = seconds(python)
                times[0].append(spent)
                for n in _THREADS:
                    connection.execute(f"SET threads = {n}")
                    answers, spent = seconds(lambda query=query: connection.execute(query).fetchnumpy()["x"])
                    times[n].append(spent)
                    worst = max(
                        worst, float(np.max(np.abs(answers - wanted) / np.maximum(1, np.abs(wanted))))
                    )
            best = {n: min(each) for n, each in times.items()}
            for n in _THREADS:
                times_and_ratio = f"{best[0]:.1f} s | {best[n]:.1f} s | {best[n] / best[0]:.2f}"
                lines.append(f"| {name} | {what} | {n} | {times_and_ratio} | {worst:.0e} |")
                print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Measures and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--note", default="", help="about the machine, for example whether others use it")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "sql.md")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    lines = []
    for name, make in {"small": small, "Adult": adult}.items():
        table, rows, target = make(options.data_dir)
        many = pa.concat_tables([rows] * (options.rows // len(rows) + 1)).slice(0, options.rows)
        lines += compared(name, table, many, target, options.turns)
    computer = machine()
    about = (
        f"`python scripts/sql_speed.py --rows {options.rows} --turns {options.turns}`, "
        f"kdmkit {kdm.__version__}, DuckDB {duckdb.__version__}, Python {platform.python_version()}, "
        f"torch {torch.__version__} with one thread, {computer['cpu']}, {computer['cores']} cores. "
        f"{options.note}"
    )
    how = (
        f"{options.rows:,} rows in Arrow. Seconds are of the processor, all threads together, the least of "
        "the turns; Python and SQL are asked in turns. Adult has fifteen columns and the default number of "
        "components for 8,000 rows, `small` four columns and 16 components. The difference is the largest "
        "one of an answer, relative to its size or 1. The target of the ratio is 1.3."
    )
    header = "| table | question | threads of DuckDB | Python | SQL | ratio | difference |"
    table_of_results = "\n".join([header, "|:--|:--|--:|--:|--:|--:|--:|", *lines])
    text = "\n\n".join(["# SQL against Python", about, how, table_of_results])
    options.out.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
