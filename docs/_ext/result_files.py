"""Tables and numbers of the files under `results/`. This module needs no Sphinx, so that tests can use it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).resolve().parents[2] / "results"


class Table(NamedTuple):
    """A table of a result file, under the last heading above it."""

    heading: str
    columns: list[str]
    rows: list[list[str]]


def cells(line: str) -> list[str]:
    """The cells of a line of a Markdown table; an escaped bar is part of a cell."""
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def read_tables(name: str) -> list[Table]:
    """All tables of `results/<name>`."""
    path = RESULTS / name
    if not path.exists():
        raise LookupError(f"results/{name}: no such file")
    heading, tables, inside = "", [], False
    for line in path.read_text(encoding="utf-8").splitlines():
        is_row = line.startswith("|")
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif is_row and not inside:
            tables.append(Table(heading, cells(line), []))
        elif is_row and not re.fullmatch(r"[|:\- ]+", line):
            tables[-1].rows.append(cells(line))
        inside = is_row
    return tables


def find_cell(name: str, row: str, column: str) -> str:
    """The cell of the first table that has such a row and column; `name` may be `file.md # heading`."""
    file, _, heading = (part.strip() for part in name.partition("#"))
    wanted = [cell.strip() for cell in row.split(";")]
    for table in read_tables(file):
        if column in table.columns and heading in ("", table.heading):
            for cells_of_row in table.rows:
                if cells_of_row[: len(wanted)] == wanted:
                    return cells_of_row[table.columns.index(column)]
    raise LookupError(f"results/{name}: no row {row!r} with a column {column!r}")


def find_table(name: str, heading: str | None) -> Table:
    """The first table, or the first one under a heading."""
    for table in read_tables(name):
        if heading is None or table.heading == heading:
            return table
    raise LookupError(f"results/{name}: no table under the heading {heading!r}")


def missed() -> Table:
    """Every target in the result files that was missed, with what was measured; development lists aside."""
    rows = []
    for path in sorted(RESULTS.glob("*.md")):
        for table in read_tables(path.name):
            if "development" in path.name or not {"target", "measured", "met"} <= set(table.columns):
                continue
            place = table.columns.index("target")
            for row in table.rows:
                cell = dict(zip(table.columns, row, strict=True))
                if cell["met"].startswith("no") and row[0] != "development":
                    rows.append([path.stem, ": ".join(row[:place]), cell["target"], cell["measured"]])
    return Table("", ["file", "what", "target", "measured"], rows)


def summary(name: str, columns: list[str], headings: list[str]) -> Table:
    """One row for each table of a file, with single cells of it; empty where a table lacks the row.

    Args:
        name: the file.
        columns: cells of every table, as `row | column`.
        headings: of the tables, in this order; all tables of the file where none are named.
    """
    tables = [find_table(name, heading) for heading in headings] or read_tables(name)
    pairs = [tuple(part.strip() for part in column.split("|")) for column in columns]
    by_table = [[cells_by_name(table).get(pair, "") for pair in pairs] for table in tables]
    absent = [pair for pair, *of_tables in zip(pairs, *by_table, strict=True) if not any(of_tables)]
    if absent:
        raise LookupError(f"results/{name}: no table has {absent}")
    rows = [[table.heading, *of_table] for table, of_table in zip(tables, by_table, strict=True)]
    return Table("", ["", *(": ".join(pair) for pair in pairs)], rows)


def cells_by_name(table: Table) -> dict[tuple[str, ...], str]:
    """The cells of a table by the first cell of their row and the name of their column."""
    return {
        (row[0], column): cell for row in table.rows for column, cell in zip(table.columns, row, strict=True)
    }


#: What a number in a line is multiplied by, for the unit after the name of a field: `median, ms`.
UNITS = {"s": 1, "ms": 1e3, "MB": 1e-6, "GB": 1e-9}


def pivot(name: str, rows: str, columns: str, value: str) -> Table:
    """The lines of a `.jsonl` file as a table: one row and one column for each value of two fields."""
    field, _, unit = (part.strip() for part in value.partition(","))
    cells_by_row: dict[str, dict[str, str]] = {}
    heads: list[str] = []
    for line in read_lines(name):
        if {rows, columns, field} <= line.keys():
            cells_by_row.setdefault(line[rows], {})[line[columns]] = rounded(line[field] * UNITS.get(unit, 1))
            heads += [] if line[columns] in heads else [line[columns]]
    if not cells_by_row:
        raise LookupError(f"results/{name}: no line has {rows!r}, {columns!r} and {field!r}")
    made = [[row, *(cells_of.get(head, "") for head in heads)] for row, cells_of in cells_by_row.items()]
    return Table("", [rows, *heads], made)


def read_lines(name: str) -> list[dict[str, Any]]:
    """All lines of `results/<name>`."""
    path = RESULTS / name
    if not path.exists():
        raise LookupError(f"results/{name}: no such file")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def rounded(value: float) -> str:
    """Three digits, and whole numbers from 100 on."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def chosen(table: Table, columns: list[str], rows: list[str]) -> Table:
    """Some columns of some rows, in the order asked for; all where none are named."""
    missing = set(columns) - set(table.columns) | set(rows) - {row[0] for row in table.rows}
    if missing:
        raise LookupError(f"{table.heading}: no {sorted(missing)} in the table")
    places = [table.columns.index(column) for column in columns or table.columns]
    kept = [row for row in table.rows if not rows or row[0] in rows]
    return Table(
        table.heading,
        [table.columns[place] for place in places],
        [[row[place] for place in places] for row in kept],
    )


def is_numeric(cells: Sequence[str]) -> bool:
    """Whether all cells that are not empty begin as a number does, or with a relation."""
    return all(re.match(r"[≤≥<>−+-]?\s*[\d.]", cell) for cell in cells if cell)


def as_markdown(table: Table) -> str:
    """The lines of a Markdown table; columns of numbers are on the right."""
    aligned = ["--:" if is_numeric(column) else ":--" for column in zip(*table.rows, strict=True)]
    lines = [table.columns, aligned, *table.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def names(argument: str | None) -> list[str]:
    """The names in an option, which are separated by `;`."""
    return [name.strip() for name in (argument or "").split(";") if name.strip()]
