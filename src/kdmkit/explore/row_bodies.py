"""Rows in requests and answers of a table: Arrow, columns of JSON, CSV."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from kdmkit._core.checks import bad_argument
from kdmkit.estimators.table.display import plain
from kdmkit.explore.endpoints import MOST_CELLS, MOST_COLUMNS, MOST_ROWS, MOST_ROWS_OF_BODY


def _arrow() -> Any:
    try:
        return import_module("pyarrow")
    except ImportError as error:
        raise ValueError("rows need: pip install 'kdmkit[table]'") from error


def read_arrow(content: bytes) -> Any:
    """Rows of a stream of Arrow."""
    arrow = _arrow()
    try:
        with arrow.ipc.open_stream(content) as reader:
            rows = reader.read_all()
        rows.validate(full=True)
    except MemoryError:  # also one of Arrow
        raise
    except (arrow.ArrowException, OSError) as error:
        raise ValueError(bad_argument("body", "a stream of Arrow", str(error)[:200])) from error
    return _limited(rows)


def read_columns(content: bytes) -> Any:
    """Rows of columns of JSON."""
    arrow, wanted = _arrow(), 'columns of cells as JSON: {"price": [1.5, null]}'
    try:
        columns = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(bad_argument("body", wanted, str(error)[:200])) from error
    if not isinstance(columns, dict) or not all(isinstance(cells, list) for cells in columns.values()):
        raise ValueError(bad_argument("body", wanted, type(columns).__name__))
    try:
        return _limited(arrow.table(columns))
    except (arrow.ArrowException, OverflowError) as error:
        raise ValueError(bad_argument("body", wanted, str(error)[:200])) from error


@contextmanager
def refused_types() -> Iterator[None]:
    """What Arrow cannot do with the types of some rows is a mistake in the rows."""
    arrow = _arrow()
    try:
        yield
    except MemoryError:
        raise
    except arrow.ArrowException as error:
        raise ValueError(bad_argument("rows", "columns in types of the table", str(error)[:200])) from error


def in_json(value: Any) -> Any:
    """A value in the types of JSON; infinite numbers and NaN are null."""
    if isinstance(value, dict):
        return {str(key): in_json(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [in_json(part) for part in value]
    value = plain(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def read_csv(text: str) -> Any:
    """Rows of CSV with a header line; cells without text are missing."""
    arrow, reader = _arrow(), import_module("pyarrow.csv")
    options = reader.ReadOptions(use_threads=False, block_size=1 << 20)
    try:
        empty = reader.ConvertOptions(strings_can_be_null=True)
        rows = reader.read_csv(io.BytesIO(text.encode()), read_options=options, convert_options=empty)
    except arrow.ArrowInvalid as error:
        raise ValueError(bad_argument("csv", "a header line and rows", str(error)[:200])) from error
    if not rows.num_rows:
        raise ValueError(bad_argument("csv", "a header line and at least one row", "no row"))
    if rows.num_rows > MOST_ROWS:
        raise ValueError(bad_argument("csv", f"at most {MOST_ROWS:,} rows", f"{rows.num_rows:,}"))
    return rows


def _limited(rows: Any) -> Any:
    if rows.num_rows > MOST_ROWS_OF_BODY or rows.num_columns > MOST_COLUMNS:
        wanted = f"at most {MOST_ROWS_OF_BODY:,} rows and {MOST_COLUMNS:,} columns"
        raise ValueError(bad_argument("rows", wanted, f"{rows.num_rows:,} × {rows.num_columns:,}"))
    if rows.num_rows * rows.num_columns > MOST_CELLS:
        got = f"{rows.num_rows * rows.num_columns:,}"
        raise ValueError(bad_argument("rows", f"at most {MOST_CELLS:,} cells at once", got))
    return rows


def as_stream(rows: Any) -> bytes:
    """A table as a stream of Arrow."""
    stream = io.BytesIO()
    with _arrow().ipc.new_stream(stream, rows.schema) as writer:
        writer.write_table(rows)
    return stream.getvalue()


def as_csv(columns: dict[str, Any]) -> str:
    """Columns of Arrow as CSV."""
    text = io.BytesIO()
    import_module("pyarrow.csv").write_csv(_arrow().table(columns), text)
    return text.getvalue().decode()
