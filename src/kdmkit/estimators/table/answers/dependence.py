"""How much columns tell about each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kdmkit.estimators.common.checks import Array
from kdmkit.estimators.table.answers.inference import Inference
from kdmkit.estimators.table.printing import rich_table


@dataclass(frozen=True)
class Dependence:
    """Mutual information between columns.

    Attributes:
        names: of the columns.
        information: `(n, n)`, in nats: 0 for independent columns. Exact between levels, else an estimate by
            draws, which may be a little below 0. The diagonal is NaN.
        links: pairs of columns that are neighbours in the tree.
    """

    names: tuple[str, ...]
    information: Array
    links: tuple[tuple[str, str], ...]

    def pairs(self) -> list[tuple[str, str, float]]:
        """All pairs, the most dependent first."""
        n = len(self.names)
        found = [
            (self.names[i], self.names[j], float(self.information[i, j])) for i in range(n) for j in range(i)
        ]
        return sorted(found, key=lambda pair: -pair[2])

    def _lines(self) -> list[tuple[str, str, str, str]]:
        links = {frozenset(link) for link in self.links}
        return [(a, b, f"{v:.3f}", "yes" if {a, b} in links else "") for a, b, v in self.pairs()]

    def __repr__(self) -> str:
        return "\n".join(f"{a} – {b}: {value}" for a, b, value, _ in self._lines())

    def __rich__(self) -> Any:
        header = ("column", "column", "mutual information", "neighbours in the tree")
        return rich_table(header, self._lines())

    def plot(self, ax: Any = None) -> Any:
        """Draws the matrix; neighbours in the tree are framed. Returns matplotlib's Axes."""
        from kdmkit.plotting import plot_matrix

        label = "mutual information (nats)"
        return plot_matrix(self.information, self.names, links=self.links, label=label, ax=ax)


def measure_dependence(engine: Inference, n_samples: int, generator: torch.Generator) -> Dependence:
    """Mutual information between all pairs of columns.

    A column with several variables, a date, tells as much as the most telling of them.
    """
    options: dict[str, Any] = {"n_samples": n_samples, "generator": generator}
    columns = list(engine.columns.values())
    information = np.full((len(columns), len(columns)), np.nan)
    for i, first in enumerate(columns):
        for j, second in enumerate(columns[:i]):
            pairs = [(a, b) for a in first.variables for b in second.variables]
            found = max(float(engine.joint.mutual_information(a, b, **options).value) for a, b in pairs)
            information[i, j] = information[j, i] = found
    return Dependence(tuple(column.name for column in columns), information, _links(engine))


def _links(engine: Inference) -> tuple[tuple[str, str], ...]:
    """Neighbours in the tree, column by column; none where all columns share one node."""
    owner = {variable: column.name for column in engine.columns.values() for variable in column.variables}
    nodes = engine.joint.nodes
    found: dict[tuple[str, str], None] = {}
    for node, parent in engine.joint.parents.items():
        if parent is not None and nodes[node] and nodes[parent]:
            a, b = owner[nodes[node][0]], owner[nodes[parent][0]]
            if a != b:
                found[(b, a)] = None
    return tuple(found)
