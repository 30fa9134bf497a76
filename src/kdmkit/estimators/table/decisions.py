"""Decisions about columns as a file that people edit: kinds, and texts that stand for missing cells."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kdmkit._core.checks import bad_argument
from kdmkit._core.files import checked_file
from kdmkit.estimators.table.column import Column

# Fewer rows than this say little about pairs of columns.
_FEW_ROWS = 20
_WANTED = 'a schema: {"columns": {"zip": {"kind": "category"}}}, or the file that `kdmkit schema` wrote'


class Decisions(NamedTuple):
    """What the caller decides about columns.

    Attributes:
        types: kinds, by column.
        markers: texts that stand for missing cells, by column.
    """

    types: dict[str, str]
    markers: dict[str, tuple[str, ...]]


def warn_of_few_rows(argument: str, n_rows: int) -> None:
    """A warning if rows are too few to learn how columns depend on each other."""
    if n_rows < _FEW_ROWS:
        text = bad_argument(argument, f"{_FEW_ROWS} rows or more to learn from", f"{n_rows}")
        warnings.warn(f"{text}; answers are vague, and draws may repeat the rows", stacklevel=3)


def warn_of_unsure(columns: Mapping[str, Column]) -> None:
    """One warning that lists the columns whose kind is not certain, and how to decide it."""
    unsure = [f"{name!r} ({c.kind}: {c.unsure})" for name, c in columns.items() if c.unsure]
    if unsure:
        warnings.warn(f"kinds of columns that are not certain: {'; '.join(unsure)}", stacklevel=4)


def described(columns: Mapping[str, Column]) -> dict[str, Any]:
    """The columns of a table in the types of JSON, to be read, edited and given to `KDMTable(schema=…)`."""
    texts = {column.storage.texts for column in columns.values()}
    return {"columns": {name: _entry(c) for name, c in columns.items() if name not in texts}}


def _entry(column: Column) -> dict[str, Any]:
    entry: dict[str, Any] = {"kind": column.kind, "why": column.why, "examples": list(column.examples)}
    if column.storage.base == "string" or column.storage.writing is not None:
        entry["missing"] = list(column.storage.markers)
    return entry | ({"unsure": column.unsure} if column.unsure else {})


def read_decisions(schema: Any) -> Decisions:
    """The decisions of a schema: a path, or what the file holds; None for none.

    Entries other than `kind` and `missing` are for the reader.
    """
    if schema is None:
        return Decisions({}, {})
    columns = _columns(schema)
    types: dict[str, str] = {}
    markers: dict[str, tuple[str, ...]] = {}
    for name, entry in columns.items():
        place = f"schema: {name!r}"
        if not isinstance(entry, Mapping):
            raise TypeError(bad_argument(place, 'an object such as {"kind": "float"}', repr(entry)))
        if "kind" in entry and entry["kind"] != "empty":
            types[name] = entry["kind"]
        missing = entry.get("missing")
        if missing is not None:
            if not isinstance(missing, list | tuple) or not all(isinstance(text, str) for text in missing):
                raise TypeError(bad_argument(place, "a list of texts for missing cells", repr(missing)))
            markers[name] = tuple(missing)
    return Decisions(types, markers)


def _columns(schema: Any) -> Mapping[str, Any]:
    if isinstance(schema, str | os.PathLike):
        schema = _from_file(checked_file(schema, "a schema file"))
    columns = schema.get("columns") if isinstance(schema, Mapping) else None
    if not isinstance(columns, Mapping):
        raise TypeError(bad_argument("schema", _WANTED, type(schema).__name__))
    return columns


def _from_file(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(bad_argument("schema", "a file of JSON", f"{path} ({error})")) from error
