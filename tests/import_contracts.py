"""A contract of our own for import-linter: its wildcards cannot name all modules that start with _."""

from __future__ import annotations

from typing import Any

from importlinter import Contract, ContractCheck, fields, output
from importlinter.application import contract_utils


class PrivateModules(Contract):
    """A module `a.b._c` is imported by modules of the package `a.b` only.

    Options:
        shared: private modules that every package may import.
        ignore_imports: imports to leave out, as in the contracts of import-linter.
    """

    shared = fields.SetField(subfield=fields.StringField(), required=False)
    ignore_imports = fields.SetField(subfield=fields.ImportExpressionField(), required=False)

    def check(self, graph: Any, verbose: bool) -> ContractCheck:
        shared = self.shared or set()
        removal = contract_utils.remove_ignored_imports_and_report(
            graph=graph,
            ignore_imports=self.ignore_imports,
            unmatched_alerting=contract_utils.AlertLevel.ERROR,
        )
        broken = [
            f"{importer} -> {imported}"
            for imported in sorted(graph.modules)
            if (owner := owner_of(imported, shared)) is not None
            for importer in sorted(graph.find_modules_that_directly_import(imported))
            if not is_inside(importer, owner)
        ]
        return ContractCheck(
            kept=not broken,
            warnings=list(removal.warnings),
            ignored_import_count=removal.ignored_import_count,
            metadata={"broken": broken},
        )

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in check.metadata["broken"]:
            output.print_error(line, bold=False)


def owner_of(module: str, shared: set[str]) -> str | None:
    """The package to which a module is private; None for a public or a shared one.

    >>> owner_of("kdmkit.plotting._canvas", set())
    'kdmkit.plotting'
    >>> owner_of("kdmkit._core.checks", {"kdmkit._core"}), owner_of("kdmkit.metrics.proper_scores", set())
    (None, None)
    """
    parts = module.split(".")
    private = [i for i, part in enumerate(parts) if part.startswith("_") and not part.startswith("__")]
    if not private or any(is_inside(module, package) for package in shared):
        return None
    return ".".join(parts[: private[-1]])


def is_inside(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")
