"""Results as JSON lines, one per finished task."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from kdmlab.common.checks import bad_argument
from kdmlab.common.files import replacing

Row = dict[str, Any]

#: The format of lines, increased when their fields change their meaning. It does not follow the version of
#: the library: results of an earlier version stay valid. A line without a format number has format 1.
FORMAT = 1


def read_rows(path: Path) -> list[Row]:
    """The lines of a file. A last line that was cut off by an interruption is removed from it.

    Raises:
        ValueError: where a line is no JSON object of this format; tasks of the file could not be continued.
    """
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)
    try:
        rows = [json.loads(line) for line in data[:whole].decode("utf-8").splitlines()]
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(bad_argument(str(path), "JSON lines", f"something else ({error})")) from error
    for number, row in enumerate(rows, start=1):
        version = row.get("format", 1) if isinstance(row, dict) else "unknown"
        if version != FORMAT:
            got = f"format {version} in line {number} (move the file away)"
            raise ValueError(bad_argument(str(path), f"lines of format {FORMAT}", got))
    return rows


def append_row(path: Path, row: Row) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def remove_rows(keys: Collection[Mapping[str, Any]], path: Path) -> None:
    """Removes the lines with some keys from a file. A kill leaves the old file or the new one."""
    if not path.exists():
        return
    names, fields = {key_name(key) for key in keys}, _fields(keys)
    kept = [row for row in read_rows(path) if names.isdisjoint(_row_names(row, fields))]
    with replacing(path) as temporary:
        temporary.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")


def find_rows(keys: Collection[Mapping[str, Any]], rows: Sequence[Row]) -> list[Row | None]:
    """For every key, the last line whose fields have the key's values."""
    fields = _fields(keys)
    by_name = {name: row for row in rows for name in _row_names(row, fields)}
    return [by_name.get(key_name(key)) for key in keys]


def _fields(keys: Collection[Mapping[str, Any]]) -> set[tuple[str, ...]]:
    """The sets of fields that keys have."""
    return {tuple(sorted(key)) for key in keys}


def _row_names(row: Row, fields: set[tuple[str, ...]]) -> list[str]:
    """The names of the keys that a line may stand for, one per set of fields."""
    return [key_name({name: row.get(name) for name in names}) for names in fields]


def key_name(key: Mapping[str, Any]) -> str:
    """The same text for equal keys, whatever the order of their fields."""
    return json.dumps(dict(key), sort_keys=True)


def select(rows: Sequence[Row], **wanted: Any) -> list[Row]:
    """The lines whose fields have some values."""
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def newest(rows: Sequence[Row], subject: Sequence[str], settings: Sequence[str] = ("settings",)) -> list[Row]:
    """The lines whose settings are those of the last line about the same subject.

    >>> rows = [{"data": name, "settings": value} for name, value in (("a", 1), ("b", 1), ("a", 2))]
    >>> newest(rows, ["data"])
    [{'data': 'b', 'settings': 1}, {'data': 'a', 'settings': 2}]
    """

    def values(row: Row, names: Sequence[str]) -> str:
        return key_name({name: row.get(name) for name in names})

    last = {values(row, subject): values(row, settings) for row in rows}
    return [row for row in rows if values(row, settings) == last[values(row, subject)]]
