"""Numbers from `results/`: a role for one number, directives for tables.

    {result}`estimators.md | digits: expected calibration error | measured`
    {result}`bench-cpu.md # density 10,000 × 100,000, d=8 | kdmkit | time, ms`

    ```{results-table} uci-regression.md
    :heading: Targets of the KDM
    :columns: data; what; measured
    :rows: concrete; energy
    ```

    ```{results-summary} bench-cpu.md
    :columns: kdmkit | time, ms; PyKeOps | × kdmkit
    :headings: density 10,000 × 100,000, d=8; density 10,000 × 100,000, d=2
    ```

    ```{results-pivot} cpu-steps.jsonl
    :rows: taken back
    :columns: case
    :value: median, ms
    ```

    ```{results-missed}
    ```

The role takes `file | row | column`, or `file # heading | row | column`. A row is named by its first cells,
separated by `;`. A summary has one row for each heading and one column for each `row | column`. A pivot
arranges the lines of a `.jsonl` file by two of their fields. `results-missed` lists all targets that were
missed. The build stops where a file, a row, a column or a field is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import Directive, directives
from docutils.statemachine import StringList
from result_files import Table, as_markdown, chosen, find_cell, find_table, missed, names, pivot, summary
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxRole


def looked_up(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a search finds; the build stops where there is nothing."""
    try:
        return function(*arguments)
    except LookupError as error:
        raise ExtensionError(str(error)) from error


class ResultRole(SphinxRole):
    """One number: `file | row | column`."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        name, row, column = (part.strip() for part in self.text.split("|"))
        return [nodes.inline(self.rawtext, looked_up(find_cell, name, row, column), classes=["result"])], []


class TableDirective(Directive):
    """A table made from result files; subclasses say which."""

    optional_arguments = 1

    def table(self) -> Table:
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        node = nodes.container(classes=["results-table"])
        lines = as_markdown(self.table()).splitlines()
        self.state.nested_parse(StringList(lines, source="results"), self.content_offset, node)
        return [node]


class ResultsTable(TableDirective):
    """A table of a result file, or some of its rows and columns."""

    option_spec: ClassVar = {"heading": directives.unchanged, "columns": names, "rows": names}

    def table(self) -> Table:
        table = looked_up(find_table, self.arguments[0], self.options.get("heading"))
        return looked_up(chosen, table, self.options.get("columns", []), self.options.get("rows", []))


class ResultsSummary(TableDirective):
    """Single cells of many tables of a result file."""

    option_spec: ClassVar = {"columns": names, "headings": names}

    def table(self) -> Table:
        return looked_up(
            summary, self.arguments[0], self.options["columns"], self.options.get("headings", [])
        )


class ResultsPivot(TableDirective):
    """The lines of a result file by two of their fields."""

    option_spec: ClassVar = dict.fromkeys(("rows", "columns", "value"), directives.unchanged_required)

    def table(self) -> Table:
        return looked_up(
            pivot, self.arguments[0], *(self.options[name] for name in ("rows", "columns", "value"))
        )


class ResultsMissed(TableDirective):
    """All targets that were missed."""

    optional_arguments = 0

    def table(self) -> Table:
        return missed()


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_role("result", ResultRole())
    app.add_directive("results-table", ResultsTable)
    app.add_directive("results-summary", ResultsSummary)
    app.add_directive("results-pivot", ResultsPivot)
    app.add_directive("results-missed", ResultsMissed)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
