"""How much columns tell about each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kdmkit._core.checks import bad_argument
from kdmkit.estimators.common.arrays import Array
from kdmkit.estimators.table.answers.inference import Inference, boxes
from kdmkit.estimators.table.printing import rich_table
from kdmkit.estimators.table.schema import Column


@dataclass(frozen=True)
class Dependence:
    """Mutual information between columns. `KDMTable.dependence` returns it.

    Attributes:
        names: of the columns.
        information: `(n, n)`, in nats: 0 for independent columns. Exact between levels, else an estimate by
            draws, which may be a little below 0. The diagonal is NaN.
        links: pairs of columns that are neighbours in the tree.

    >>> import kdmkit as kdm
    >>> import numpy as np
    >>> x = np.linspace(0, 1, 200)
    >>> table = kdm.KDMTable(n_components=4, max_epochs=2, random_state=0).fit({"x": x, "big": x > 0.5})
    >>> [(a, b)] = [(a, b) for a, b, _ in table.dependence().pairs()]
    >>> sorted((a, b))
    ['big', 'x']
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
    columns = list(engine.columns.values())
    information = np.full((len(columns), len(columns)), np.nan)
    for i, first in enumerate(columns):
        for j, second in enumerate(columns[:i]):
            found = _between(engine.joint, first, second, n_samples, generator)
            information[i, j] = information[j, i] = found
    return Dependence(tuple(column.name for column in columns), information, links(engine))


def measure_links(
    engine: Inference, n_samples: int, generator: torch.Generator
) -> list[tuple[str, str, float]]:
    """Mutual information between neighbours in the tree."""
    columns = engine.columns
    return [
        (a, b, _between(engine.joint, columns[a], columns[b], n_samples, generator)) for a, b in links(engine)
    ]


def measure_information(
    engine: Inference, target: Column, given: Mapping[str, Any], n_samples: int, generator: torch.Generator
) -> dict[str, float]:
    """I(target; column | given) of every column that is not given, the largest first.

    Where the evidence is a union of boxes, it is the mean over the boxes by their probabilities.
    """
    if given.get(target.name) is not None:
        raise ValueError(bad_argument("given", "nothing about the target", repr(target.name)))
    others = [c for n, c in engine.columns.items() if n != target.name and given.get(n) is None]
    evidence = engine.evidence(given)
    trees, shares = [engine.joint], [1.0]
    if evidence and others:
        free = [name for column in (target, *others) for name in column.variables]
        trees = [engine.joint.infer(target=free, **box) for box in boxes(evidence)]
        shares = engine.box_shares(given).exp().tolist()
    found = {column.name: 0.0 for column in others}
    for tree, share in zip(trees, shares, strict=True):
        for column in others:
            found[column.name] += share * _between(tree, target, column, n_samples, generator)
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def _between(tree: Any, first: Column, second: Column, n: int, generator: torch.Generator) -> float:
    """I(first; second): that of the most telling pair of their variables."""
    pairs = [(a, b) for a in first.variables for b in second.variables]
    found = (tree.mutual_information(a, b, n_samples=n, generator=generator) for a, b in pairs)
    return max(float(one.value) for one in found)


def links(engine: Inference) -> tuple[tuple[str, str], ...]:
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
