"""The page in Chromium, and the server under load: results/page.md.

    python scripts/page_load.py --data-dir data --models models

Fits tables of 55 and 500 columns, of Adult and of parcels (kept in the folder of models), then measures the
page in Chromium, thirty clients for a minute, others beside the worst questions, others beside half-open
connections, and fuzzed requests and SQL. Needs the extras `test` and `browser`, and the laboratory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import socket
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import torch
from _paths import ROOT

import kdmkit as kdm
from browser.conftest import chromium
from browser.test_speed import MOVES
from explore.clients import Running, moves
from explore.conftest import parcels
from explore.fuzz import requests, sql_text
from kdmlab.common.machine import machine
from kdmlab.tables.data import adult_missing

# Seconds of clients, of worst questions and of silence; the time limit of questions beside the worst ones.
_MINUTE, _BESIDE, _SILENT, _LIMIT = 60.0, 20.0, 300, 5.0
# Fuzzed requests, a quarter of them SQL.
_FUZZED = 2000


# ---- models


def wide(n: int) -> Any:
    """A table of that many columns: numbers and levels that depend on their neighbours."""
    rng = np.random.default_rng(0)
    x = np.cumsum(rng.normal(size=(1000, n)), 1) / np.sqrt(np.arange(1, n + 1))
    levels = np.array(["low", "usual", "high"])[np.searchsorted([-0.5, 0.5], x)]
    rows = {f"column {i}": x[:, i].round(2) if i % 3 < 2 else levels[:, i] for i in range(n)}
    return kdm.KDMTable(n_components=64, max_epochs=2, random_state=0, rules=False).fit(rows)


def fits(data_dir: Path) -> dict[str, Callable[[], Any]]:
    """The tables by name: few epochs, since questions take as long after one as after many."""
    return {
        "columns55": lambda: wide(55),
        "columns500": lambda: wide(500),
        "adult": lambda: kdm.KDMTable(max_epochs=3, max_rows=8000, random_state=0).fit(
            adult_missing(data_dir).train
        ),
        "parcels": lambda: kdm.KDMTable(n_components=16, max_epochs=10, random_state=0).fit(parcels(400)),
    }


class Models:
    """The files of the tables, each fitted when it is first needed.

    Args:
        folder: where they are kept.
        data_dir: see `fits`.
    """

    def __init__(self, folder: Path, data_dir: Path) -> None:
        self.folder, self.data_dir = folder, data_dir
        folder.mkdir(parents=True, exist_ok=True)

    def file(self, name: str) -> Path:
        path = self.folder / name
        if not path.exists():
            kdm.save(fits(self.data_dir)[name](), path)
        return path


def line(point: str, value: str, target: str) -> str:
    """A line of the table."""
    return f"| {point} | {value} | {target} |"


# ---- the page


@contextlib.contextmanager
def page_of(browser: Any, running: Running, width: int, height: int) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": width, "height": height})
    page = context.new_page()
    page.goto(running.url)
    page.wait_for_selector(".cards .card:not(.slot)")
    yield page
    context.close()


def page_lines(browser: Any, model: Path) -> Iterator[str]:
    """First cards, moves, tab stops and the height on a phone."""
    with Running(model) as running:
        seconds = []
        for _ in range(3):
            start = time.monotonic()
            with page_of(browser, running, 1280, 900):
                seconds.append(time.monotonic() - start)
        with page_of(browser, running, 1280, 900) as page:
            n = page.evaluate("document.querySelectorAll('.cards .card').length")
            page.wait_for_timeout(1000)
            times = page.evaluate(MOVES)
        with page_of(browser, running, 1280, 900) as page:
            stops = 0
            while not page.evaluate("Boolean(document.activeElement.closest('.card'))"):
                page.keyboard.press("Tab")
                stops += 1
        with page_of(browser, running, 390, 844) as page:
            page.wait_for_timeout(500)
            height = page.evaluate("document.documentElement.scrollHeight")
    p50, p95 = np.quantile(times, [0.5, 0.95])
    yield line(f"{n} columns: first cards, median of three loads", f"{np.median(seconds):.2f} s", "≤ 2 s")
    yield line(
        f"{n} columns: slider to redraw, median / p95 of 100 moves", f"{p50:.0f} / {p95:.0f} ms", "≤ 150 ms"
    )
    yield line(f"{n} columns: tab stops to the first card", f"{stops}", "≤ 15")
    target = "≤ 4,000 px" if n < 100 else "–"
    yield line(f"{n} columns: height on a phone of 390 px, folded", f"{height:,.0f} px", target)


# ---- the server


def load_lines(model: Path) -> Iterator[str]:
    with Running(model) as running:
        times, errors, memory = moves(running, 30, _MINUTE)
    yield line(
        f"30 clients for a minute, Adult: median / p95 of {len(times):,} moves",
        f"{shares(times)}",
        "≤ 500 ms",
    )
    yield line("errors", f"{len(errors)}", "0")
    middle, last = memory[len(memory) // 2], memory[-1]
    yield line(
        "memory of the server, half a minute and a minute", f"{middle[0]:.0f} / {last[0]:.0f} MiB", "flat"
    )
    yield line("memory of the processes of the model", f"{middle[1]:.0f} / {last[1]:.0f} MiB", "flat")


def shares(times: Any) -> str:
    if not len(times):
        return "no answer"
    p50, p95 = 1e3 * np.quantile(times, [0.5, 0.95])
    return f"{p50:.0f} / {p95:.0f} ms"


def worst_lines(model: Path, rows: dict[str, Any]) -> Iterator[str]:
    """Others' moves while one client asks for intervals of 200,000 rows, then two at once."""
    table = pa.table({name: pa.array(cells.tolist()) for name, cells in rows.items()})
    table = pa.concat_tables([table] * (200_000 // len(table) + 1)).slice(0, 200_000)
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    body, kind = stream.getvalue().to_pybytes(), "application/vnd.apache.arrow.stream"
    with Running(model, "--time-limit", str(_LIMIT)) as running:
        path = f"/api/models/{running.name}/rows/predict?target=age&interval=0.9"
        for n in (0, 1, 2, 4):
            end, answers = time.monotonic() + _BESIDE, []

            def ask(end: float = end, answers: list[Any] = answers) -> None:
                with contextlib.closing(running.connect()) as connection:
                    while time.monotonic() < end:
                        start = time.monotonic()
                        status, _ = running.send(connection, path, body, kind)
                        answers.append((status, time.monotonic() - start))

            askers = [threading.Thread(target=ask) for _ in range(n)]
            for asker in askers:
                asker.start()
            times, errors, _ = moves(running, 10, _BESIDE)
            for asker in askers:
                asker.join()
            yield line(
                f"10 clients beside {n} of the worst questions: median / p95",
                f"{shares(times)}",
                "≤ 1,000 ms",
            )
            if n:
                longest = max(seconds for _, seconds in answers)
                yield line(
                    "their answers and the longest; errors of others",
                    f"{times_of(Counter(a for a, _ in answers))}, {longest:.1f} s; {len(errors)}",
                    f"{_LIMIT:g} s; 0",
                )


def times_of(counts: Counter[Any]) -> str:
    return ", ".join(f"{n} × {what}" for what, n in sorted(counts.items()))


def silent_lines(model: Path) -> Iterator[str]:
    with Running(model) as running, contextlib.ExitStack() as stack:
        for i in range(_SILENT):
            connection = stack.enter_context(
                socket.create_connection(("127.0.0.1", running.port), timeout=30)
            )
            connection.sendall(b"" if i % 2 else b"POST /api/models/adult/ask HTTP/1.1\r\nHost:")
        times = []
        for _ in range(20):
            start = time.monotonic()
            running.once(f"/api/models/{running.name}/marginals", {})
            times.append(time.monotonic() - start)
    yield line(
        f"{_SILENT} half-open connections: slowest of 20 requests of others", f"{max(times):.2f} s", "≤ 2 s"
    )


def fuzz_lines(model: Path, n: int) -> Iterator[str]:
    rng, statuses = random.Random(0), Counter[str]()
    with Running(model) as running, contextlib.closing(running.connect()) as connection:
        for path, body, kind in requests(rng, n - n // 4):
            status, answer = running.send(connection, f"/api/models/{running.name}{path}", body, kind)
            statuses[f"{status}"] += 1
            if status >= 500:
                print(status, path, body[:300], answer[:300], flush=True)
        running.once("/api/state")
    sql: Counter[str] = Counter()
    with duckdb.connect() as connection:
        connection.register("parcels", pa.table({name: cells[:50] for name, cells in parcels().items()}))
        kdm.sql.register(connection, kdm.load(model), "p", random_state=0)
        for _ in range(n // 4):
            try:
                connection.execute(sql_text(rng)).fetchall()
                sql["an answer"] += 1
            except duckdb.Error:
                sql["an error of SQL"] += 1
    yield line(
        f"{n - n // 4:,} fuzzed requests, JSON and Arrow: status", times_of(statuses), "0 × 500, no crash"
    )
    yield line(f"{n // 4:,} fuzzed texts of SQL", times_of(sql), "no crash")


def page_of_widths(models: Models) -> Iterator[str]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        for name in ("columns55", "columns500"):
            yield from page_lines(browser, models.file(name))
        browser.close()


PARTS: dict[str, Callable[[Models], Iterator[str]]] = {
    "page": page_of_widths,
    "load": lambda models: load_lines(models.file("adult")),
    "worst": lambda models: worst_lines(models.file("adult"), adult_missing(models.data_dir).train),
    "silent": lambda models: silent_lines(models.file("adult")),
    "fuzz": lambda models: fuzz_lines(models.file("parcels"), _FUZZED),
}


def main() -> None:
    """Measures some parts, and writes the table of all parts that were measured."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--models", type=Path, default=Path("models"), help="a folder for the fitted tables")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--output", type=Path, default=ROOT / "results")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    models = Models(options.models, options.data_dir)
    kept = options.output / "page.json"
    parts = json.loads(kept.read_text("utf-8")) if kept.exists() else {}
    for name in options.parts:
        lines = []
        start = os.getloadavg()[0]
        for one in PARTS[name](models):
            lines.append(one)
            print(one, flush=True)
        load = f"load of the machine {start:.0f} to {os.getloadavg()[0]:.0f} on {machine()['cores']} cores"
        parts[name] = {"lines": lines, "where": f"{machine()['cpu']}, {load}"}
        kept.write_text(json.dumps(parts, indent=1, ensure_ascii=False) + "\n", "utf-8")
    (options.output / "page.md").write_text(report(parts), "utf-8")


def report(parts: dict[str, Any]) -> str:
    """The text of the results."""
    about = (
        f"`python scripts/page_load.py`, kdmkit {kdm.__version__}, Python {platform.python_version()}, torch "
        f"{torch.__version__}. Clients, Chromium and the server share the cores; the load of the machine, "
        "that of other programs included, stands under each table. Times are of the clock: on a busy machine "
        "they are upper bounds."
    )
    how = (
        "Clients move twice a second. The worst question is a prediction with intervals of 200,000 rows of "
        f"Adult in Arrow, with a time limit of {_LIMIT:g} s. Memory of processes is their proportional share "
        "(PSS). Tables are fitted for 2 to 10 epochs with seed 0; Adult has the default number of components "
        "for 8,000 rows, wide tables 64."
    )
    tables = [
        "\n".join(["| point | measured | target |", "|:--|--:|--:|", *part["lines"], "", part["where"]])
        for part in (parts[name] for name in PARTS if name in parts)
    ]
    return "\n\n".join(["# The page and the server", about, how, *tables]) + "\n"


if __name__ == "__main__":
    main()
