"""CSV and Parquet files."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kdmkit as kdm
from kdmkit import KDMTable
from kdmkit.estimators.common.csv_parquet import LONGEST_LINE, longest_line, read_batches, read_file
from kdmkit.estimators.table.frames.read import read_frame

TEXT = "day,price,kind\n2024-05-01,1.5,a\n2024-05-02,,b\n2024-05-03,2.25,\n"


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_csv(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "data.csv"
    path.write_text(TEXT.replace(",", separator))
    columns = read_frame("X", path).columns
    assert [column.storage.base for column in columns.values()] == ["datetime", "float", "string"]
    assert columns["price"].missing.tolist() == [False, True, False]
    assert columns["kind"].missing.tolist() == [False, False, True]


def test_digits_after_a_leading_zero_are_texts(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("code,n,share\n00123,1,0.5\n12345,0,0\n")
    bases = [column.storage.base for column in read_frame("X", path).columns.values()]
    assert bases == ["string", "integer", "float"]
    path.write_text("code,n\n" + "00123,1\n" + "12345,0\n" * 2000)
    first = next(iter(read_batches(path, n_rows=10, block_bytes=4096)))
    types = {"code": pa.string(), "n": pa.int64()}
    assert {field.name: field.type for field in first.schema} == types
    assert first["code"][0].as_py() == "00123"


def test_more_digits_than_an_integer_has_are_texts(tmp_path: Path) -> None:
    """Floating-point numbers would change them."""
    path = tmp_path / "t.csv"
    path.write_text(f"a,b,c\n{2**63},{2**63 - 1},{-(2**63) - 1}\n{2**63 + 1},1,2\n", "utf-8")
    table = read_file(path)
    assert table["a"].to_pylist() == [str(2**63), str(2**63 + 1)]
    assert table["b"].to_pylist() == [2**63 - 1, 1]
    assert table["c"].to_pylist() == [str(-(2**63) - 1), "2"]


@pytest.mark.parametrize("block", [1 << 24, 64])
def test_decimal_commas(tmp_path: Path, block: int) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "price;day;note\n" + "1,25;01.02.2024;a,b\n-3,5;02.02.2024;c\n7;03.02.2024;2.5\n" * 5, "utf-8"
    )
    assert read_file(path, block_bytes=block)["price"].to_pylist()[:3] == [1.25, -3.5, 7.0]
    cells = [cell for batch in read_batches(path, block_bytes=block) for cell in batch["price"].to_pylist()]
    assert cells == [1.25, -3.5, 7.0] * 5
    path.write_text('price,n\n"1,25",1\n"3,5",2\n', "utf-8")  # commas separate cells: 1,25 may be 125
    assert read_file(path, block_bytes=block)["price"].to_pylist() == ["1,25", "3,5"]


def test_compressed_csv(tmp_path: Path) -> None:
    path = tmp_path / "data.csv.gz"
    path.write_bytes(gzip.compress(TEXT.encode()))
    assert read_file(path).num_rows == 3


def test_parquet(tmp_path: Path) -> None:
    table = pa.table({"x": list(range(10)), "y": ["a", "b"] * 5})
    pq.write_table(table, tmp_path / "data.bin")
    assert read_file(tmp_path / "data.bin") == table


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_batches_are_the_file(tmp_path: Path, kind: str) -> None:
    table = pa.table({"x": list(range(100)), "y": ["a", "b"] * 50})
    path = tmp_path / f"data.{kind}"
    if kind == "csv":
        path.write_text("x,y\n" + "".join(f"{x},{'ab'[x % 2]}\n" for x in range(100)))
    else:
        pq.write_table(table, path, row_group_size=32)
    batches = list(read_batches(path, n_rows=30))
    assert max(batch.num_rows for batch in batches) <= 30
    assert pa.concat_tables(batches).to_pylist() == table.to_pylist()


def test_types_of_batches_hold_all_cells(tmp_path: Path) -> None:
    """Types are those of the whole file, not of its first block."""
    cells = {
        "number": ["1"] * 999 + ["2.5"],
        "late": [""] * 999 + ["7"],
        "mixed": ["3"] * 999 + ["x"],
        "day": ["2024-05-01"] * 999 + ["2024-05-02 10:30:00"],
        "text": ["a"] * 1000,
    }
    path = tmp_path / "data.csv"
    rows = zip(*cells.values(), strict=True)
    path.write_text(",".join(cells) + "\n" + "".join(",".join(row) + "\n" for row in rows))
    batches = list(read_batches(path, n_rows=100, block_bytes=4096))
    assert len(batches) >= 10
    whole = pa.concat_tables(batches)
    assert whole.schema == read_file(path).schema
    assert whole.schema.types == [pa.float64(), pa.int64(), pa.string(), pa.timestamp("s"), pa.string()]
    assert whole.to_pylist() == read_file(path).to_pylist()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"a,b\n1,2\n3\n4,5\n", "1 cells instead of 2 in line 3"),
        (b'a,b\n"x,\ny",2\n3,4,5\n', "3 cells instead of 2 in line 4"),
        (b"\0\1\2", "a zero byte in line 1"),
        (b"a,b\n\xff\xfe,1\n", "no UTF-8 in line 2"),
        (b"PAR1 and no more", "a Parquet file"),
        (b"", "empty"),
        (b"a,a\n1,2\n", "different names"),
        (b"a,\n1,2\n", "names for all columns"),
        (b"a,b\n", "at least one row"),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=text):
        KDMTable().fit(path)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_file_without_rows_is_one_batch(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"data.{kind}"
    if kind == "csv":
        path.write_text("x,y\n")
    else:
        pq.write_table(pa.table({"x": pa.array([], pa.int64()), "y": pa.array([], pa.string())}), path)
    (batch,) = read_batches(path)
    assert batch.column_names == ["x", "y"]
    assert batch.num_rows == 0


def test_ragged_rows_of_batches(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("a,b\n1,2\n3\n")
    with pytest.raises(ValueError, match="1 cells instead of 2 in line 3"):
        list(read_batches(path))


def test_absent_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_frame("X", tmp_path / "none.csv")


def test_draws_of_files_are_frames_of_pandas(tmp_path: Path, unchecked: None) -> None:
    """Also of a model that was fitted in the shell and is loaded in Python."""
    path = tmp_path / "data.csv"
    path.write_text("day,price,kind,n\n" + "2024-05-01,1.5,a,1\n2024-05-03,2.25,b,2\n2024-05-02,,b,3\n" * 20)
    kdm.save(KDMTable(n_components=2, max_epochs=1, random_state=0).fit(path), tmp_path / "model")
    table = kdm.load(tmp_path / "model")
    drawn = table.sample(20, random_state=0)
    assert isinstance(drawn, pd.DataFrame)
    assert [str(kind) for kind in drawn.dtypes] == ["datetime64[us]", "float64", "string", "int64"]
    assert isinstance(table.sample(3, frame="polars"), pl.DataFrame)
    arrow = table.sample(20, random_state=0, frame="arrow")
    assert arrow.schema.types == [pa.date32(), pa.float64(), pa.string(), pa.int64()]
    assert next(table.stream("sample", n=3)).schema == arrow.schema
    with pytest.raises(ValueError, match="frame: expected one of"):
        table.sample(3, frame="csv")


# ---- text that is none


ROWS = b"a,b\n" + b"1,x\n" * 400_000  # several blocks


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("content", "text"),
    [
        (ROWS + b"2,\xff\n" + ROWS[4:], "bytes that are no UTF-8 in line 400002"),
        (ROWS + b"2,\0\n" + ROWS[4:], "a zero byte in line 400002"),
        (ROWS + b"2,\xc3", "bytes that are no UTF-8"),
        (ROWS + b"2," + b"y" * (LONGEST_LINE + 1) + b"\n", "more than 16,777,216 bytes in line 400002"),
        (b"a,b\n" + b"y" * (2 * LONGEST_LINE), "more than 16,777,216 bytes in line 2"),
        (ROWS + b"2,x,3\n", "3 cells instead of 2 in line 400002"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, content: bytes, text: str, packed: bool) -> None:
    path = tmp_path / ("data.csv.gz" if packed else "data.csv")
    path.write_bytes(gzip.compress(content, 1) if packed else content)
    for read in (read_file, lambda path: list(read_batches(path))):
        with pytest.raises(ValueError, match=f"path: expected a CSV file .*{text}"):
            read(path)


def test_characters_at_the_end_of_a_block(tmp_path: Path) -> None:
    """A character of several bytes may begin in one block and end in the next."""
    path = tmp_path / "data.csv"
    for shift in range(4):
        path.write_text("a,b\n" + "x" * shift + "ü,€\n" * 200_000, "utf-8")
        assert longest_line(path) == len("ü,€".encode()) + shift


@pytest.mark.parametrize("damage", ["cut", "page", "footer", "gzip"])
def test_damaged_files(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "data"
    pq.write_table(pa.table({"x": list(range(10_000)), "y": [f"t{i}" for i in range(10_000)]}), path)
    data = bytearray(path.read_bytes())
    if damage == "gzip":
        data = bytearray(gzip.compress(ROWS)[:-900])
        path = path.with_suffix(".csv.gz")
    elif damage == "cut":
        data = data[: len(data) // 2]
    else:
        start = 20 if damage == "page" else len(data) - 200
        data[start : start + 60] = b"\xff" * 60
    path.write_bytes(bytes(data))
    for read in (read_file, lambda path: list(read_batches(path))):
        with pytest.raises(ValueError, match=r"path: expected .* file"):
            read(path)


def test_lines_longer_than_a_block(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("a,b\n" + f"1,{'y' * 3_000_000}\n" + "2,x\n")
    assert read_file(path)["a"].to_pylist() == [1, 2]
    assert sum(batch.num_rows for batch in read_batches(path)) == 2


@pytest.mark.slow
def test_memory_does_not_depend_on_the_length_of_a_file(tmp_path: Path) -> None:
    code = """
import resource, sys
from kdmkit.estimators.table.learning import sample_frame
sample_frame("X", sys.argv[1], 1000, 0)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
    path, peaks = tmp_path / "data.csv", []
    for times in (1, 10):
        path.write_bytes(b"a,b,c\n" + b"1.234,567,xyz\n" * (1_000_000 * times))
        run = subprocess.run([sys.executable, "-c", code, path], capture_output=True, check=True)
        peaks.append(float(run.stdout))
    assert peaks[1] < peaks[0] + 60


@pytest.mark.parametrize("end", ["", "\n", "\r\n\n"])
def test_a_header_without_rows(tmp_path: Path, end: str) -> None:
    (tmp_path / "data.csv").write_text("a,b" + end)
    (empty,) = read_batches(tmp_path / "data.csv")
    assert (empty.column_names, empty.num_rows) == (["a", "b"], 0)


def test_a_wide_header_without_rows_needs_little_memory(tmp_path: Path) -> None:
    """Arrow's parser takes 8 kB for a column."""
    (tmp_path / "wide.csv").write_text(",".join(f"c{i}" for i in range(33_000)) + "\n")
    program = f"""
import resource
from kdmkit.estimators.common.csv_parquet import read_batches
list(read_batches({str(tmp_path / "small.csv")!r}))
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak()
list(read_batches({str(tmp_path / "wide.csv")!r}))
print(peak() - before)
"""
    (tmp_path / "small.csv").write_text("a,b\n1,2\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 100
