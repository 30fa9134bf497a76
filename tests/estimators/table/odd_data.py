"""Generated odd frames and files: what people and programs bring, damaged or at the ends of its types."""

from __future__ import annotations

import datetime as dt
import decimal
import gzip
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq


def odd_values(rng: random.Random) -> list[Callable[[], Any]]:
    """Makers of cells that people or programs bring."""
    return [
        lambda: rng.gauss(0, 1),
        lambda: rng.randint(-5, 5),
        lambda: rng.choice([10**400, -(10**400), 2**63, 2**64, -(2**63) - 1, 5e-324, 1e308, -0.0]),
        lambda: rng.choice([float("nan"), None, pd.NA, pd.NaT]),
        lambda: rng.choice([float("inf"), -float("inf")]),
        lambda: rng.choice(["a", "b", "", " ", "\ud800", "x" * 5000, "\0", "=cmd()", "<b>", "é", "NA", "-"]),
        lambda: rng.choice(
            ["$1,000.00", "12%", "3 km", "1.234,5", "(5)", "٣", "½", "1e400", "0x1f", "1_000"]
        ),
        lambda: rng.choice(
            ["2020-02-30", "0001-01-01", "31.12.9999", "Jan-2018", "24:00", "12:30", "5/6/20"]
        ),
        lambda: rng.choice([dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(2020, 2, 29)]),
        lambda: rng.choice([dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)]),
        lambda: rng.choice([dt.time(0), dt.time(23, 59, 59, 999999), dt.timedelta(days=999_999_999)]),
        lambda: rng.choice([decimal.Decimal("sNaN"), decimal.Decimal("NaN"), decimal.Decimal("1e-30")]),
        lambda: rng.choice([decimal.Decimal("Infinity"), decimal.Decimal(10) ** 60, decimal.Decimal("0.10")]),
        lambda: rng.choice([[1, 2], {"a": 1}, {1, 2}, (1,), b"bytes", object, 1 + 2j, np.array([1, 2])]),
        lambda: rng.choice([True, False, np.True_, np.int8(3), np.float16(0.5), np.datetime64("NaT")]),
    ]


def odd_column(rng: random.Random, n: int) -> list[Any]:
    """Mostly one kind of cells, sometimes several."""
    makers = rng.sample(odd_values(rng), k=rng.choice([1, 1, 1, 2, 3]))
    if rng.random() < 0.3:  # most cells are plain
        makers = [makers[0], *[rng.choice([lambda: rng.gauss(0, 1), lambda: rng.choice("abc")])] * 9]
    column = [rng.choice(makers)() for _ in range(n)]
    if column and rng.random() < 0.2:
        column = [column[0]] * n
    return column


def odd_frame(seed: int) -> Any:
    rng = random.Random(seed)
    n = rng.choice([0, 1, 2, 30, 30, 60, 60, 60])
    names = rng.sample(
        ["x", "X", "a b", "constructor", "P(x)", "é", "x" * 300, "c0", "1"], k=rng.choice([1, 1, 2, 3])
    )
    if rng.random() < 0.1:
        names[0] = rng.choice(["", " ", "\ud800"])
    columns = {name: odd_column(rng, n) for name in names}
    columns["plain"] = [rng.gauss(0, 1) for _ in range(n)]
    form = rng.choice(
        ["mapping", "pandas", "pandas", "array", *(["duplicates"] if rng.random() < 0.3 else [])]
    )
    if form == "mapping":
        return columns
    frame = pd.DataFrame({name: pd.Series(cells, dtype=object) for name, cells in columns.items()})
    if form == "duplicates":
        frame.columns = pd.Index([*names[:-1], "plain", "plain"])
    return frame.to_numpy() if form == "array" else frame


# ---- files


def odd_file(seed: int, folder: Path) -> Path:
    """A CSV, gzip or Parquet file that is damaged, or written by odd programs."""
    rng = random.Random(seed)
    lines = [f"{rng.gauss(0, 1):.3f},{rng.choice('abc')},{rng.randint(0, 9)}" for _ in range(200)]
    text = "x,y,z\n" + "\n".join(lines) + "\n"
    data = bytearray(text.encode(rng.choice(["utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1"])))
    form = rng.choice(["csv", "csv", "gzip", "parquet", "parquet"])
    if form == "parquet":
        pq.write_table(pa.table({"x": list(range(200)), "y": ["a", "b"] * 100}), folder / "whole")
        data = bytearray((folder / "whole").read_bytes())
    for _ in range(rng.choice([0, 1, 3])):
        place = rng.randrange(len(data))
        odd = rng.choice([b"\0", b"\xff", b'"', b",,,", b"\n\n", b"\r", b"PAR1", bytes(50), b"9" * 400])
        data[place : place + rng.choice([0, 1, 20])] = odd
    if rng.random() < 0.3:
        data = data[: rng.randrange(1, len(data))]
    packed = gzip.compress(bytes(data)) if form == "gzip" else bytes(data)
    if form == "gzip" and rng.random() < 0.5:
        packed = packed[: rng.randrange(2, len(packed))]
    path = folder / rng.choice(["data.csv", "data.csv.gz", "data.parquet", "data", "ü \n.csv"])
    path.write_bytes(packed)
    return path


# ---- large files, whose problem comes late


def large_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Names and paths of files of 20 MB and more, one at a time."""
    path = folder / "large.csv"
    lines = b"".join(b"%d.%d,56%d,xy%d\n" % (i, i % 7, i % 5, i % 3) for i in range(1000, 2500))
    for name, end in {
        "bad byte in the last line": b"1,2,\xff\n",
        "zero byte in the last line": b"1,2,\0\n",
        "two cells in the last line": b"1,2\n",
        "open quote in the last line": b'1,2,"x\n',
        "a line of 20 MB": b"1,2," + b"y" * 20_000_000 + b"\n",
        "text among numbers in the last line": b"1,two,x\n",
    }.items():
        path.write_bytes(b"a,b,c\n" + lines * 1000 + end)
        yield name, path
    path.write_bytes(b",".join(b"c%d" % i for i in range(33_000)) + b"\n")
    yield "a header of 33,000 columns", path
    packed = folder / "bomb.csv.gz"
    with gzip.open(packed, "wb", compresslevel=1) as file:
        for _ in range(400):
            file.write(b"1" * 1_000_000)
    yield "gzip of one line of 400 MB", packed
    whole = folder / "whole.parquet"
    pq.write_table(pa.table({"x": np.arange(3_000_000.0)}), whole)
    data = bytearray(whole.read_bytes())
    whole.write_bytes(bytes(data[: len(data) // 2]))
    yield "half a Parquet file", whole
    data[len(data) // 2 : len(data) // 2 + 2000] = bytes(2000)
    whole.write_bytes(bytes(data))
    yield "Parquet with zeros in its middle", whole
