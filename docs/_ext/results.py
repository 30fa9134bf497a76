"""Numbers from `results/`: a role for one number, a directive for a table.

    {result}`estimators.md | digits: expected calibration error | measured`

    ```{results-table} uci-regression.md
    :heading: Targets of the KDM
    :columns: data, what, measured
    :rows: concrete, energy
    ```

A row is named by its first cells, separated by `;`. The build stops where a file, a row or a column is
missing.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from docutils import nodes
from docutils.parsers.rst import Directive, directives
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxRole

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
        raise ExtensionError(f"results/{name}: no such file")
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
    """The cell of the first table that has such a row and column."""
    wanted = [cell.strip() for cell in row.split(";")]
    for table in read_tables(name):
        if column in table.columns:
            for found in table.rows:
                if found[: len(wanted)] == wanted:
                    return found[table.columns.index(column)]
    raise ExtensionError(f"results/{name}: no row {row!r} with a column {column!r}")


def find_table(name: str, heading: str | None) -> Table:
    """The first table, or the first one under a heading."""
    for table in read_tables(name):
        if heading is None or table.heading == heading:
            return table
    raise ExtensionError(f"results/{name}: no table under the heading {heading!r}")


def chosen(table: Table, columns: list[str], rows: list[str]) -> Table:
    """Some columns of some rows, in the order asked for; all where none are named."""
    missing = set(columns) - set(table.columns) | set(rows) - {row[0] for row in table.rows}
    if missing:
        raise ExtensionError(f"{table.heading}: no {sorted(missing)} in the table")
    places = [table.columns.index(column) for column in columns or table.columns]
    kept = [row for row in table.rows if not rows or row[0] in rows]
    return Table(
        table.heading,
        [table.columns[place] for place in places],
        [[row[place] for place in places] for row in kept],
    )


def as_markdown(table: Table) -> str:
    """The lines of a Markdown table; numbers are on the right."""
    aligned = [":--"] + ["--:"] * (len(table.columns) - 1)
    lines = [table.columns, aligned, *table.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


class ResultRole(SphinxRole):
    """One number: `file | row | column`."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        name, row, column = (part.strip() for part in self.text.split("|"))
        return [nodes.inline(self.rawtext, find_cell(name, row, column), classes=["result"])], []


def names(argument: str | None) -> list[str]:
    return [name.strip() for name in (argument or "").split(",") if name.strip()]


class ResultsTable(Directive):
    """A table of a result file, or some of its rows and columns."""

    required_arguments = 1
    option_spec = {"heading": directives.unchanged, "columns": names, "rows": names}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        table = find_table(self.arguments[0], self.options.get("heading"))
        table = chosen(table, self.options.get("columns", []), self.options.get("rows", []))
        node = nodes.container(classes=["results-table"])
        lines = as_markdown(table).splitlines()
        self.state.nested_parse(StringList(lines, source=self.arguments[0]), self.content_offset, node)
        return [node]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_role("result", ResultRole())
    app.add_directive("results-table", ResultsTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
