"""CSV and Parquet files, whole or in batches, through pyarrow."""

from __future__ import annotations

import codecs
import csv as text_rows
import io
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from kdmkit._core.checks import bad_argument, check_count
from kdmkit._core.files import checked_file, replacing
from kdmkit.estimators.common.arrow import as_arrow, need

#: The name of standard output.
_STANDARD_OUTPUT = "-"
# Bytes of a CSV file that are parsed at a time, unless its lines are longer.
BLOCK_BYTES = 1 << 20
_PARQUET = b"PAR1"
#: Separators that a header may have; the first is the default.
_DELIMITERS = (",", ";", "\t", "|")
_HEAD = 1 << 16
#: Longer lines are refused: a parser holds whole lines.
LONGEST_LINE = 1 << 24
_NEWLINE = b"\n"
# Read as text: digits with a leading zero (postal codes), or 19 and more digits (accounts).
_CODE = re.compile(r"0\d+|[+-]?\d{19,}")
_INTEGERS = range(-(1 << 63), 1 << 63)
_DECIMALS = {point: re.compile(rf"\s*[+-]?\d+\{point}\d+\s*") for point in ".,"}


def read_file(path: str | os.PathLike[str], *, block_bytes: int = BLOCK_BYTES) -> Any:
    """A CSV (also compressed with gzip) or Parquet file as an Arrow table.

    Args:
        block_bytes: bytes of a CSV file that are parsed at a time.
    """
    path = Path(path)
    if is_parquet(path):
        with _parquet_errors(path):
            return _parquet_file(path).read()
    return _read_csv(path, _checked_block(path, block_bytes))


def read_batches(
    path: str | os.PathLike[str], *, n_rows: int = 1 << 16, block_bytes: int = BLOCK_BYTES
) -> Iterator[Any]:
    """A CSV or Parquet file as Arrow tables of at most `n_rows` rows; one of them is in memory at a time.

    Args:
        block_bytes: bytes of a CSV file that are parsed at a time.
    """
    path = Path(path)
    n_rows = check_count("n_rows", n_rows)
    if is_parquet(path):
        tables = _parquet_batches(path, n_rows)
    else:
        block_bytes = _checked_block(path, block_bytes)
        names = _header_alone(path)
        # Arrow's parser takes several kB for every column, also for those without cells.
        tables = (
            _csv_batches(path, _csv_types(path, block_bytes), block_bytes)
            if names is None
            else iter([_without_rows(names)])
        )
    for table in tables:
        for start in range(0, max(1, table.num_rows), n_rows):
            yield table.slice(start, n_rows)


def is_streamed(data: Any) -> bool:
    """Whether data come in batches: a path, or an iterator."""
    return isinstance(data, str | os.PathLike | Iterator) or type(data).__name__ == "RecordBatchReader"


def batches_of(data: Any, n_rows: int = 1 << 16) -> Iterable[Any]:
    """Arrow tables with the rows of a file, `n_rows` each at most, or of the frames of an iterable."""
    if isinstance(data, str | os.PathLike):
        return read_batches(data, n_rows=n_rows)
    return map(as_arrow, data)


def is_parquet(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a Parquet file; raises if it is not there or empty."""
    with checked_file(path, "a CSV or Parquet file").open("rb") as file:
        return file.read(4) == _PARQUET


# ---- Parquet


def _parquet_file(path: Path) -> Any:
    with _parquet_errors(path):
        return need("pyarrow.parquet").ParquetFile(path)


def _parquet_batches(path: Path, n_rows: int) -> Iterator[Any]:
    file = _parquet_file(path)
    with _parquet_errors(path):
        yield from _tables(file.iter_batches(batch_size=n_rows), file.schema_arrow)


@contextmanager
def _parquet_errors(path: Path) -> Iterator[None]:
    """Errors of Arrow as errors about the file, whose metadata may promise what it does not hold."""
    try:
        yield
    except (need("pyarrow").ArrowException, OSError, MemoryError) as error:
        raise ValueError(bad_argument("path", "a Parquet file", f"{str(path)!r} ({error})")) from error


def _tables(batches: Iterable[Any], schema: Any) -> Iterator[Any]:
    """Batches as tables; a file without rows is one table without rows."""
    arrow, none = need("pyarrow"), True
    for batch in batches:
        none = False
        yield arrow.Table.from_batches([batch])
    if none:
        yield schema.empty_table()


# ---- CSV


def _checked_block(path: Path, block_bytes: int) -> int:
    """The bytes that are parsed at a time: a block holds the longest line. Raises if the file is no text."""
    with _csv_errors(path):
        return max(block_bytes, 2 * longest_line(path))


def _read_csv(path: Path, block_bytes: int) -> Any:
    csv = need("pyarrow.csv")
    with _csv_errors(path):
        return csv.read_csv(path, **_csv_options(path, None, block_bytes))


def _csv_types(path: Path, block_bytes: int) -> dict[str, Any]:
    """Types of columns that hold all cells of a file; {} if the first block is the whole file."""
    arrow, csv = need("pyarrow"), need("pyarrow.csv")
    with _csv_errors(path), csv.open_csv(path, **_csv_options(path, None, block_bytes)) as reader:
        names = reader.schema.names
        if _is_one_block(reader):
            return {}
    types: dict[str, Any] = {}
    for batch in _csv_batches(path, dict.fromkeys(names, arrow.string()), block_bytes):
        file = io.BytesIO()
        csv.write_csv(batch, file)
        options = csv.ConvertOptions(strings_can_be_null=True, decimal_point=_decimal_point(path))
        schema = csv.read_csv(io.BytesIO(file.getvalue()), convert_options=options).schema
        types = {field.name: _common_type(types.get(field.name), field.type) for field in schema}
    return {**types, **_codes(path)}


def _is_one_block(reader: Any) -> bool:
    try:
        reader.read_next_batch()
        reader.read_next_batch()
    except StopIteration:
        return True
    except need("pyarrow").ArrowInvalid as error:
        # A later block has cells of another type: that is what the pass over the file is for.
        if "conversion error" not in str(error):
            raise
    return False


def _common_type(a: Any, b: Any) -> Any:
    """The narrowest type of Arrow that holds the cells of two blocks."""
    arrow = need("pyarrow")
    if a is None or a == b or arrow.types.is_null(a):
        return b
    if arrow.types.is_null(b):
        return a
    both = {a, b}
    if both == {arrow.int64(), arrow.float64()}:
        return arrow.float64()
    instants = {arrow.date32(), arrow.timestamp("s"), arrow.timestamp("ns")}
    if both <= instants:
        return arrow.timestamp("ns" if arrow.timestamp("ns") in both else "s")
    return arrow.string()


def _csv_batches(path: Path, types: Mapping[str, Any] | None, block_bytes: int) -> Iterator[Any]:
    csv = need("pyarrow.csv")
    with _csv_errors(path), csv.open_csv(path, **_csv_options(path, types, block_bytes)) as reader:
        yield from _tables(reader, reader.schema)


def _csv_options(path: Path, types: Mapping[str, Any] | None, block_bytes: int) -> dict[str, Any]:
    csv = need("pyarrow.csv")
    return {
        "read_options": csv.ReadOptions(block_size=block_bytes),
        "parse_options": csv.ParseOptions(delimiter=_delimiter(path), newlines_in_values=True),
        "convert_options": csv.ConvertOptions(
            strings_can_be_null=True,
            column_types={**_codes(path), **(types or {})},
            decimal_point=_decimal_point(path),
        ),
    }


def _codes(path: Path) -> dict[str, Any]:
    """Columns that have codes in the first rows, to be read as text."""
    header, cells = _first_rows(path)
    coded = {name for row in cells for name, cell in zip(header, row, strict=False) if _is_code(cell)}
    return dict.fromkeys(coded, need("pyarrow").string())


def _is_code(cell: str) -> bool:
    return bool(_CODE.fullmatch(cell)) and (cell[0] == "0" or int(cell) not in _INTEGERS)


def _first_rows(path: Path) -> tuple[list[str], list[list[str]]]:
    """The header and the first rows of a text file; nothing if it is no CSV, which reading reports."""
    rows = text_rows.reader(_head(path).splitlines(keepends=True), delimiter=_delimiter(path))
    try:
        header, *cells = rows
    except (ValueError, text_rows.Error):
        return [], []
    return header, cells


def _decimal_point(path: Path) -> str:
    """A comma if cells are separated otherwise, and commas are more frequent than points in numbers."""
    if _delimiter(path) == ",":
        return "."
    cells = [cell for row in _first_rows(path)[1] for cell in row]
    counts = {point: sum(map(bool, map(pattern.fullmatch, cells))) for point, pattern in _DECIMALS.items()}
    return max(".,", key=counts.__getitem__)


def _delimiter(path: Path) -> str:
    """The separator that occurs most often in the header of a text file."""
    text = _head(path)
    header = text.splitlines()[0] if text.strip() else ""
    return max(_DELIMITERS, key=header.count)


def _head(path: Path) -> str:
    """The beginning of a text file: whole lines, or a part of the only one."""
    with need("pyarrow").input_stream(str(path)) as stream:
        head = stream.read(_HEAD)
    # The last character may be cut in the middle.
    text = head.decode("utf-8-sig", errors="strict" if len(head) < _HEAD else "ignore")
    return text[: text.rfind("\n") + 1] or text if len(head) == _HEAD else text


def _header_alone(path: Path) -> list[str] | None:
    """The header of a text file that has no rows; None if it has some, or no header."""
    with need("pyarrow").input_stream(str(path)) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace", newline="")
        rows = text_rows.reader(text, delimiter=_delimiter(path))
        try:
            header = next(rows, None)
            return None if any(rows) else header or None
        except text_rows.Error:
            return None


def _without_rows(names: list[str]) -> Any:
    arrow = need("pyarrow")
    return arrow.Table.from_arrays([arrow.nulls(0)] * len(names), names=names)


def _no_csv(path: Path, got: str) -> str:
    return bad_argument(
        "path", "a CSV file (text in UTF-8, with a header) or a Parquet file", f"{got} in {path}"
    )


@contextmanager
def _csv_errors(path: Path) -> Iterator[None]:
    """Errors of Arrow as errors about the file, with the number of a row that has too few or many cells."""
    arrow = need("pyarrow")
    try:
        yield
    except TextError as error:
        raise ValueError(_no_csv(path, str(error))) from error
    except arrow.ArrowInvalid as error:
        raise ValueError(_no_csv(path, _ragged_row(path) or str(error))) from error
    except (arrow.ArrowException, OSError, EOFError) as error:
        raise ValueError(_no_csv(path, f"{type(error).__name__}: {error}")) from error


def _ragged_row(path: Path) -> str | None:
    """A description of the first row that has more or fewer cells than the header."""
    with need("pyarrow").input_stream(str(path)) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace", newline="")
        rows = text_rows.reader(text, delimiter=_delimiter(path))
        try:
            width = len(next(rows))
            wrong = next(((len(row), rows.line_num) for row in rows if row and len(row) != width), None)
        except text_rows.Error:
            return None
    return wrong and f"{wrong[0]} cells instead of {width} in line {wrong[1]}"


# ---- writing


def write_batches(batches: Iterable[Any], output: str | Path) -> int:
    """Writes Arrow tables one after the other; returns the number of rows. An error leaves no partial file.

    Args:
        output: a file whose name ends in `.csv` or `.parquet`; `-` is CSV to standard output.
    """
    is_parquet = str(output).endswith((".parquet", ".pq"))
    if not is_parquet and str(output) != _STANDARD_OUTPUT and not str(output).endswith(".csv"):
        raise ValueError(bad_argument("output", "a name that ends in .csv or .parquet, or -", str(output)))
    rows, writer = 0, None
    with _target(output) as target:
        try:
            for batch in batches:
                if writer is None:
                    module = need("pyarrow.parquet" if is_parquet else "pyarrow.csv")
                    make = module.ParquetWriter if is_parquet else module.CSVWriter
                    writer = make(target, batch.schema)
                    schema = batch.schema
                writer.write_table(batch.cast(schema))
                rows += batch.num_rows
        finally:
            if writer is not None:
                writer.close()
    return rows


@contextmanager
def _target(output: str | Path) -> Iterator[Any]:
    if str(output) == _STANDARD_OUTPUT:
        yield sys.stdout.buffer
        return
    with replacing(Path(output)) as temporary:
        yield str(temporary)


class TextError(ValueError):
    """What is wrong with a text file, and where."""


def longest_line(path: Path) -> int:
    """The bytes of the longest line of a text file, which may be compressed.

    The first line with bytes that are no UTF-8, with a zero byte, or with more than `LONGEST_LINE` bytes
    raises a `TextError`. One block of the file is in memory at a time.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    line, longest, current = 1, 0, 0
    for block in _blocks(path):
        wrong = _first_wrong_byte(block, decoder)
        if wrong is not None:
            place, what = wrong
            raise TextError(f"{what} in line {line + block[:place].count(_NEWLINE)}")
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord(_NEWLINE))
        lengths = np.diff(np.append(ends, len(block)), prepend=-1 - current) - 1
        longest = max(longest, int(lengths.max()))
        if longest > LONGEST_LINE:
            place = int((lengths > LONGEST_LINE).argmax())
            raise TextError(f"more than {LONGEST_LINE:,} bytes in line {line + place}")
        line, current = line + len(ends), int(lengths[-1])
    if decoder.getstate()[0]:
        raise TextError(f"bytes that are no UTF-8 in line {line}")
    return longest


def _first_wrong_byte(block: bytes, decoder: codecs.IncrementalDecoder) -> tuple[int, str] | None:
    """The place of the first byte that no text has, and what it is."""
    if b"\0" in block:
        return block.index(0), "a zero byte"
    try:
        decoder.decode(block)
    except UnicodeDecodeError as error:
        # The decoder may have kept the beginning of a character of the block before.
        return max(0, error.start - len(error.object) + len(block)), "bytes that are no UTF-8"
    return None


def _blocks(path: Path) -> Iterator[bytes]:
    with need("pyarrow").input_stream(str(path)) as stream:
        while block := stream.read(BLOCK_BYTES):
            yield block
