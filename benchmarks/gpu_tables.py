"""Seconds of KDMTable with its defaults on Adult, MAGIC and Shoppers, and of a million scored rows.

    PYTHONPATH=src python3 benchmarks/gpu_tables.py FILE                             # under 200 s on an H200
    PYTHONPATH=src python3 benchmarks/gpu_tables.py FILE --device cpu --rows 10000   # without a GPU

It needs the library's own dependencies alone, and the files of `kdmlab reproduce tables` under `data/`:
`uci/adult.data`, `uci/adult.test`, `uci/magic04.data`, `tables/online_shoppers_intention.csv`, or the same
with `.gz`. Every part is one JSON object in the file and in the output. A part that exceeds its seconds is
stopped and says so.

Parts, for every table: `first_fit` (with the start of the device), `second_fit`, `third_fit`, `warm_up`
(1,000 rows), `score`, and `predict` of the target given the rest (test rows, drawn with repetition).
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gzip
import io
import json
import platform
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import kdmkit as kdm

Rows = dict[str, NDArray[Any]]

ADULT = (
    *("age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation"),
    *("relationship", "race", "sex", "capital_gain", "capital_loss", "hours_per_week", "native_country"),
    "income",
)
MAGIC = (
    *("fLength", "fWidth", "fSize", "fConc", "fConc1", "fAsym", "fM3Long", "fM3Trans", "fAlpha", "fDist"),
    "class",
)
SHOPPERS_CATEGORIES = (
    *("Month", "OperatingSystems", "Browser", "Region", "TrafficType", "returning_visitor", "weekend"),
    "Revenue",
)
#: Seconds of one part, at most, and of all parts.
PART_SECONDS, ALL_SECONDS = 40, 190
WARM_UP_ROWS = 1000


# ---- data


def _text(data: Path, name: str) -> str:
    plain, zipped = data / name, data / f"{name}.gz"
    return (plain.read_bytes() if plain.exists() else gzip.decompress(zipped.read_bytes())).decode("utf-8")


def _column(cells: tuple[str, ...], is_text: bool) -> NDArray[Any]:
    if is_text:
        return np.array([cell or None for cell in cells], dtype=object)
    return np.array([float(cell or "nan") for cell in cells])


def _columns(lines: list[list[str]], names: tuple[str, ...], texts: Callable[[str], bool]) -> Rows:
    cells = zip(*lines, strict=True)
    return {name: _column(column, texts(name)) for name, column in zip(names, cells, strict=True)}


def _split(rows: Rows) -> tuple[Rows, Rows]:
    """90 % to train, 10 % to test."""
    n = len(next(iter(rows.values())))
    order = np.random.default_rng(0).permutation(n)
    test, train = order[: round(0.1 * n)], order[round(0.1 * n) :]
    return {k: v[np.sort(train)] for k, v in rows.items()}, {k: v[np.sort(test)] for k, v in rows.items()}


def adult(data: Path) -> tuple[Rows, Rows]:
    """Unknown cells, `?`, are a level."""

    def read(name: str) -> Rows:
        lines = [
            [cell.strip().rstrip(".").replace("?", "not stated") for cell in line]
            for line in csv.reader(io.StringIO(_text(data, name)))
            if len(line) == len(ADULT)
        ]
        return _columns(lines, ADULT, lambda name: not lines[0][ADULT.index(name)].isdigit())

    train, test = read("uci/adult.data"), read("uci/adult.test")
    whole = [name for name, column in train.items() if column.dtype != object]
    return tuple({**part, **{k: part[k].astype(np.int64) for k in whole}} for part in (train, test))  # type: ignore[return-value]


def magic(data: Path) -> tuple[Rows, Rows]:
    lines = [line for line in csv.reader(io.StringIO(_text(data, "uci/magic04.data"))) if line]
    return _split(_columns(lines, MAGIC, lambda name: name == "class"))


def shoppers(data: Path) -> tuple[Rows, Rows]:
    header, *lines = csv.reader(io.StringIO(_text(data, "tables/online_shoppers_intention.csv")))
    names = tuple(name.replace(" ", "") for name in header)
    return _split(_columns(lines, names, lambda name: name in SHOPPERS_CATEGORIES))


TABLES: dict[str, tuple[Callable[[Path], tuple[Rows, Rows]], str]] = {
    "magic": (magic, "class"),
    "shoppers": (shoppers, "Revenue"),
    "adult": (adult, "income"),
}


# ---- parts


class OutOfTime(Exception):
    """A part takes longer than it may."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.01))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Record:
    """Runs parts within their seconds and writes one line for each."""

    def __init__(self, path: Path, device: str) -> None:
        self.path, self.device, self.start = path, device, time.perf_counter()
        name = torch.cuda.get_device_name() if device == "cuda" else platform.processor()
        versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
        self.write({"part": "machine", "device": name, "kdmkit": kdm.__version__, **versions})

    def write(self, line: Mapping[str, Any]) -> None:
        text = json.dumps(line)
        print(text, flush=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")

    def part(self, name: str, table: str, run: Callable[[], Mapping[str, Any]]) -> None:
        left = ALL_SECONDS - (time.perf_counter() - self.start)
        start, processor = time.perf_counter(), time.process_time()
        try:
            with time_limit(min(PART_SECONDS, left)):
                measured = dict(run())
                if self.device == "cuda":
                    torch.cuda.synchronize()
        except OutOfTime:
            measured = {"stopped": True}
        except Exception as error:  # the other parts still count
            measured = {"error": f"{type(error).__name__}: {error}"}
        seconds = {
            "seconds": time.perf_counter() - start,
            "processor_seconds": time.process_time() - processor,
        }
        self.write({"part": name, "table": table, **{k: round(v, 3) for k, v in seconds.items()}, **measured})


def measure(record: Record, name: str, data: Path, n_rows: int) -> None:
    """All parts of one table."""
    read, target = TABLES[name]
    train, test = read(data)
    types = {column: "category" for column, cells in train.items() if cells.dtype == object}
    models: list[kdm.KDMTable] = []

    def fit() -> Mapping[str, Any]:
        model = kdm.KDMTable(random_state=0, device=record.device, types=types, verbose=False)
        models.append(model.fit(train))
        return {"rows": len(train[target]), "epochs": len(model.history_)}

    for part in ("first_fit", "second_fit", "third_fit"):
        record.part(part, name, fit)
    if not models:
        return
    index = np.random.default_rng(0).integers(len(test[target]), size=n_rows)
    rows = {column: cells[index] for column, cells in test.items()}
    few = {column: cells[:WARM_UP_ROWS] for column, cells in rows.items()}
    rest, few_rest = ({k: v for k, v in part.items() if k != target} for part in (rows, few))

    def warm_up() -> Mapping[str, Any]:
        models[-1].score_samples(few)
        models[-1].predict(few_rest, target)
        return {"rows": WARM_UP_ROWS}

    def score() -> Mapping[str, Any]:
        return {"rows": n_rows, "log_prob": float(np.mean(models[-1].score_samples(rows)))}

    def predict() -> Mapping[str, Any]:
        labels = models[-1].predict(rest, target)
        return {"rows": n_rows, "accuracy": float(np.mean(labels == rows[target]))}

    record.part("warm_up", name, warm_up)
    record.part("score", name, score)
    record.part("predict", name, predict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("output", type=Path, help="the file of JSON lines; new lines are appended")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows that are scored and predicted")
    parser.add_argument("--table", choices=list(TABLES), action="append", help="default: all")
    options = parser.parse_args()
    record = Record(options.output, options.device)
    for name in options.table or TABLES:
        measure(record, name, options.data_dir, options.rows)


if __name__ == "__main__":
    main()
