"""Numbers from `results/`: a role for one number, a directive for a table.

    {result}`estimators.md | digits: expected calibration error | measured`

    ```{results-table} uci-regression.md
    :heading: Targets of the KDM
    :columns: data; what; measured
    :rows: concrete; energy
    ```

A row is named by its first cells, separated by `;`. The build stops where a file, a row or a column is
missing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import Directive, directives
from docutils.statemachine import StringList
from result_files import as_markdown, chosen, find_cell, find_table, names
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxRole


def found(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a search finds; the build stops where there is nothing."""
    try:
        return function(*arguments)
    except LookupError as error:
        raise ExtensionError(str(error)) from error


class ResultRole(SphinxRole):
    """One number: `file | row | column`."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        name, row, column = (part.strip() for part in self.text.split("|"))
        return [nodes.inline(self.rawtext, found(find_cell, name, row, column), classes=["result"])], []


class ResultsTable(Directive):
    """A table of a result file, or some of its rows and columns."""

    required_arguments = 1
    option_spec: ClassVar = {"heading": directives.unchanged, "columns": names, "rows": names}

    def run(self) -> list[nodes.Node]:
        table = found(find_table, self.arguments[0], self.options.get("heading"))
        table = found(chosen, table, self.options.get("columns", []), self.options.get("rows", []))
        node = nodes.container(classes=["results-table"])
        lines = as_markdown(table).splitlines()
        self.state.nested_parse(StringList(lines, source=self.arguments[0]), self.content_offset, node)
        return [node]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_role("result", ResultRole())
    app.add_directive("results-table", ResultsTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
