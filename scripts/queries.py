"""Random and mutated queries: every one is an event or an error that points at the place, quickly.

    python scripts/queries.py --queries 20000

Reads mutated queries and counts what happens, with the time and the memory of each; reads the text of random
events again; and asks a fitted table mutated questions. The results are in results/queries.md.
"""

from __future__ import annotations

import argparse
import collections
import gc
import platform
import random
import time
import tracemalloc
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from _paths import ROOT

import kdmkit as kdm
from estimators.table.random_queries import QueryWriter, enormous, mutated, random_columns
from kdmkit.distributions.events import Event
from kdmkit.estimators.table.language import QueryError, parse_event, parse_query
from kdmkit.estimators.table.outcomes import syntax_of
from kdmkit.estimators.table.vocabulary import ColumnSyntax

# Queries about one list of columns, and the share of queries with thousands of parts.
_PER_COLUMNS, _ENORMOUS = 50, 0.05
_LEVELS = 900
# Bounds of a query.
_MOST_SECONDS, _MOST_BYTES = 0.05, 10_000_000


def mutated_queries(rng: random.Random, n: int) -> list[tuple[str, dict[str, ColumnSyntax]]]:
    queries = []
    while len(queries) < n:
        columns = random_columns(rng)
        columns["level"] = ColumnSyntax("levels", [f"level {i}" for i in range(_LEVELS)], True)
        writer = QueryWriter(rng, columns)
        for _ in range(_PER_COLUMNS):
            if rng.random() < _ENORMOUS:
                text = enormous(rng, "level", f"'level {rng.randrange(_LEVELS)}'")
            else:
                text = mutated(rng, f"P({writer.event(0)} | {writer.event(1)})")
            queries.append((text, columns))
    return queries[:n]


class Records:
    """Outcomes of some queries, and the slowest and the largest one."""

    def __init__(self) -> None:
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.seconds: list[float] = []
        self.slowest = ""
        self.bytes: list[int] = []
        self.failures: list[str] = []

    def ask(self, text: str, function: Callable[[], object], *, allowed: tuple[type[Exception], ...]) -> None:
        start = time.process_time()
        try:
            function()
            outcome = "answer"
        except allowed as error:
            outcome = type(error).__name__
            str(error).encode()
        except Exception as error:  # every failure is told, whatever it is
            outcome = "failure"
            self.failures.append(f"{type(error).__name__}: {str(error)[:200]!r} of {text[:200]!r}")
        self.outcomes[outcome] += 1
        seconds = time.process_time() - start
        if seconds >= max(self.seconds, default=0):
            self.slowest = text[:80]
        self.seconds.append(seconds)

    def weigh(self, function: Callable[[], object]) -> None:
        tracemalloc.start()
        try:
            function()
        except ValueError:
            pass
        finally:
            self.bytes.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()

    def line(self, name: str) -> str:
        kinds = ", ".join(f"{n} × {outcome}" for outcome, n in sorted(self.outcomes.items()))
        over = sum(seconds > _MOST_SECONDS for seconds in self.seconds)
        p95, worst = 1e3 * float(np.quantile(self.seconds, 0.95)), 1e3 * max(self.seconds)
        memory = f"{max(self.bytes) / 1e6:.1f} MB" if self.bytes else "–"
        return (
            f"| {name} | {len(self.seconds)} | {kinds} | {p95:.2f} ms | {worst:.1f} ms | {over} | {memory} |"
        )


def read_mutated(rng: random.Random, n: int) -> Records:
    records = Records()
    for text, columns in mutated_queries(rng, n):
        read = partial(parse_query, text, columns)
        records.ask(text, read, allowed=(QueryError,))
        records.weigh(read)
    return records


def read_again(rng: random.Random, n: int) -> Records:
    """Events whose text is read again; one that is another event is a failure."""
    records = Records()
    while len(records.seconds) < n:
        columns = random_columns(rng)
        writer = QueryWriter(rng, columns)
        for _ in range(_PER_COLUMNS):
            try:
                event = parse_event(writer.event(), columns)
            except QueryError:  # a range of no values, columns of two kinds
                continue

            records.ask(str(event), partial(_check_again, event, columns), allowed=())
    return records


def _check_again(event: Event, columns: dict[str, ColumnSyntax]) -> None:
    if parse_event(str(event), columns) != event:
        raise AssertionError(str(event))


def ask_mutated(rng: random.Random, n: int) -> Records:
    """Questions to a table; QueryErrors are also those about evidence of probability 0 and the like."""
    generator = np.random.default_rng(0)
    z = generator.normal(size=300)
    frame = pd.DataFrame(
        {
            "price": np.round(np.exp(6 + z), 2),
            "carat": np.round(0.3 + 0.2 * np.exp(z), 2),
            "cut": np.where(z > 0, "Ideal", np.where(z > -1, "Good", "Fair")),
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(np.round(100 + 20 * z), unit="D"),
            "hours per week": generator.poisson(30, 300),
        }
    )
    table = kdm.KDMTable(n_components=4, max_epochs=2, random_state=0).fit(frame)
    writer = QueryWriter(rng, syntax_of(table.schema_))
    records = Records()
    for _ in range(n):
        text = f"P({writer.event(1)} | {writer.event(1)})"
        text = mutated(rng, text) if rng.random() < 0.8 else text
        records.ask(text, partial(table.query, text), allowed=(QueryError,))
        records.weigh(partial(table.query, text))
    return records


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--queries", type=int, default=20_000)
    parser.add_argument("--asked", type=int, default=2_000, help="questions to a fitted table")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "queries.md")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    gc.freeze()
    every = {
        "mutated, read": read_mutated(random.Random(arguments.seed), arguments.queries),
        "text of an event, read again": read_again(random.Random(arguments.seed + 1), arguments.queries),
        "mutated, asked": ask_mutated(random.Random(arguments.seed + 2), arguments.asked),
    }
    lines = [
        "# Random and mutated queries",
        "",
        f"`python scripts/queries.py --queries {arguments.queries} --asked {arguments.asked} "
        f"--seed {arguments.seed}`, kdmkit {kdm.__version__}, Python {platform.python_version()}, "
        f"torch {torch.__version__}, {platform.machine()}, {torch.get_num_threads()} thread(s).",
        "",
        f"Columns of all kinds, one with {_LEVELS} levels; {_ENORMOUS:.0%} of the mutated queries have",
        "thousands of parts. Times are of the processor; memory is the peak of allocations of one query.",
        "",
        "| queries | number | outcomes | p95 | slowest | above 50 ms | most memory |",
        "|:--|--:|:--|--:|--:|--:|--:|",
        *(records.line(name) for name, records in every.items()),
    ]
    failures = [failure for records in every.values() for failure in records.failures]
    lines += ["", f"{len(failures)} failures.", *(f"- `{failure}`" for failure in failures[:20])]
    lines += ["", *(f"Slowest ({name}): `{r.slowest!r}`." for name, r in every.items())]
    arguments.out.parent.mkdir(exist_ok=True, parents=True)
    arguments.out.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    mutated_ones = [every["mutated, read"], every["mutated, asked"]]
    bounded = all(max(r.seconds) <= _MOST_SECONDS and max(r.bytes) <= _MOST_BYTES for r in mutated_ones)
    return 0 if bounded and not failures else 1


if __name__ == "__main__":
    raise SystemExit(main())
