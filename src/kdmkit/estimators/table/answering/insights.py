"""Which columns depend on each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kdmkit._core.checks import bad_argument
from kdmkit.distributions.events import Event
from kdmkit.estimators.common.arrays import Array
from kdmkit.estimators.table.answering.engine import TableEngine, check_plain
from kdmkit.estimators.table.column import Column
from kdmkit.estimators.table.derived import code_variables
from kdmkit.estimators.table.display import rich_table
from kdmkit.nn.pair_information import PairInformation, pair_information

# Two-sided intervals of 90 %; pairs that a printed dependence shows.
_ERRORS, _SHOWN = 1.645, 20


@dataclass(frozen=True)
class Dependence:
    """Mutual information between columns. `KDMTable.dependence` returns it.

    Attributes:
        names: of the columns.
        information: `(n, n)`, in nats: 0 for columns that may be independent. The diagonal is NaN.
        low, high: ends of 90 % intervals, `(n, n)`.
        links: pairs of columns that are neighbours in the tree.

    With `table` as in the example of `KDMTable`:

    >>> [(a, b, information)] = table.dependence().pairs()
    >>> sorted((a, b))
    ['size', 'weight']
    """

    names: tuple[str, ...]
    information: Array
    low: Array
    high: Array
    links: tuple[tuple[str, str], ...]

    def pairs(self) -> list[tuple[str, str, float]]:
        """All pairs, the most dependent first; of equal ones those whose columns depend more on others."""
        strength = np.nansum(self.information, 1)
        places = [(i, j) for i in range(len(self.names)) for j in range(i)]
        places.sort(key=lambda pair: (-self.information[pair], -strength[pair[0]] - strength[pair[1]]))
        return [(self.names[i], self.names[j], float(self.information[i, j])) for i, j in places]

    def interval(self, a: str, b: str) -> tuple[float, float]:
        """The 90 % interval of two columns' information."""
        i, j = self.names.index(a), self.names.index(b)
        return float(self.low[i, j]), float(self.high[i, j])

    def _lines(self) -> list[tuple[str, str, str, str, str]]:
        """The most dependent pairs, and neighbours in the tree."""
        links = {frozenset(link) for link in self.links}
        ends = [(a, b, v, *self.interval(a, b)) for a, b, v in self.pairs()]
        return [
            (a, b, _digits(value), f"{_digits(low)} … {_digits(high)}", "yes" if {a, b} in links else "")
            for i, (a, b, value, low, high) in enumerate(ends)
            if (i < _SHOWN and value > 0) or {a, b} in links
        ]

    def _more(self, n: int) -> str:
        """What is not shown, and the unit."""
        more = len(self.names) * (len(self.names) - 1) // 2 - n
        rest = f"{more:,} more pairs, less dependent or independent: `pairs()`; " if more else ""
        return f"{rest}in nats (bits times ln 2): 0 for independent columns"

    def __repr__(self) -> str:
        lines = self._lines()
        shown = [f"{a} – {b}: {value} ({interval})" for a, b, value, interval, _ in lines]
        return "\n".join([*shown, self._more(len(lines))])

    def __rich__(self) -> Any:
        header = ("column", "column", "mutual information", "90 % interval", "neighbours in the tree")
        lines = self._lines()
        return rich_table(header, lines, caption=self._more(len(lines)))

    def plot(self, ax: Any = None) -> Any:
        """Draws the matrix; neighbours in the tree are framed. Returns matplotlib's Axes."""
        from kdmkit.plotting import plot_matrix

        label = "mutual information (nats)"
        return plot_matrix(self.information, self.names, links=self.links, label=label, ax=ax)


def _digits(value: float) -> str:
    """Three decimals, and no -0.000."""
    return f"{round(value, 3) + 0.0:.3f}"


class Information(dict[str, float]):
    """The information of columns about a target, the largest first. `KDMTable.information` returns it.

    Attributes:
        intervals: the ends of 90 % intervals, by column.

    With `table` as in the example of `KDMTable`:

    >>> information = table.information("size")
    >>> low, high = information.intervals["weight"]
    >>> low < information["weight"] < high
    True
    """

    def __init__(self, values: Mapping[str, float], intervals: Mapping[str, tuple[float, float]]) -> None:
        super().__init__(sorted(values.items(), key=lambda pair: -pair[1]))
        self.intervals = {name: intervals[name] for name in self}


def measure_dependence(
    engine: TableEngine, information: PairInformation | None, n_samples: int, generator: torch.Generator
) -> Dependence:
    """Mutual information between all pairs of columns.

    Args:
        engine: the fitted table.
        information: of its columns by the rows; None measures the model.
        n_samples: draws for each pair of the model whose information is no sum.
        generator: of the draws.
    """
    columns = list(engine.columns.values())
    if information is None:
        ends = np.full((3, len(columns), len(columns)), np.nan)
        for i, first in enumerate(columns):
            for j, second in enumerate(columns[:i]):
                ends[:, i, j] = ends[:, j, i] = _between(engine.joint, first, second, n_samples, generator)
    else:
        ends = torch.stack([information.value, *information.interval]).double().numpy()
        ends[:, range(len(columns)), range(len(columns))] = np.nan
    value, low, high = ends
    return Dependence(tuple(column.name for column in columns), value, low, high, links(engine))


def measure_links(
    engine: TableEngine, information: PairInformation | None, n_samples: int, generator: torch.Generator
) -> list[tuple[str, str, float]]:
    """Mutual information between neighbours in the tree; arguments are those of `measure_dependence`."""
    columns = engine.columns
    if information is None:
        return [
            (a, b, _between(engine.joint, columns[a], columns[b], n_samples, generator)[0])
            for a, b in links(engine)
        ]
    place = {name: i for i, name in enumerate(columns)}
    return [(a, b, float(information.value[place[a], place[b]])) for a, b in links(engine)]


def measure_information(
    engine: TableEngine,
    information: PairInformation | None,
    target: Column,
    given: Event,
    n_samples: int,
    generator: torch.Generator,
) -> Information:
    """I(target; column | given) of every column that is not given.

    Args:
        engine, information, n_samples, generator: as in `measure_dependence`; information by rows answers
            where nothing is given.
        target: the column that the others tell about.
        given: the evidence.
    """
    boxes = engine.boxes(given)
    check_plain(boxes)
    conditioned = {name for box in boxes for name in box}
    if engine.root(target).name in conditioned:
        raise ValueError(bad_argument("given", "nothing about the target", repr(target.name)))
    others = [
        c for n, c in engine.columns.items() if n != target.name and engine.root(c).name not in conditioned
    ]
    if information is not None and not conditioned:
        measured = measure_dependence(engine, information, n_samples, generator)
        row = measured.information[measured.names.index(target.name)].tolist()
        values = {name: v for name, v in zip(measured.names, row, strict=True) if name != target.name}
        return Information(values, {name: measured.interval(target.name, name) for name in values})
    tree = engine.joint
    if conditioned and others:
        tree = engine.evidence(boxes).infer(
            [name for column in (target, *others) for name in column.all_variables]
        )
    every = {column.name: _between(tree, target, column, n_samples, generator) for column in others}
    coarse = others if target.source else [column for column in others if column.source]
    if coarse:
        every |= _between_draws(engine, boxes, target, coarse, n_samples, generator)
    values = {name: value for name, (value, _, _) in every.items()}
    return Information(values, {name: (low, high) for name, (_, low, high) in every.items()})


def _between(
    tree: Any, first: Column, second: Column, n: int, generator: torch.Generator
) -> tuple[float, float, float]:
    """I(first; second), the largest information between their variables, and an interval of the draws."""
    pairs = [(a, b) for a in first.all_variables for b in second.all_variables]
    every = [tree.mutual_information(a, b, n_samples=n, generator=generator) for a, b in pairs]
    best = max(every, key=lambda information: information.value)
    width = _ERRORS * best.standard_error
    return best.value, best.value - width, best.value + width


def _between_draws(
    engine: TableEngine,
    boxes: Sequence[Any],
    target: Column,
    others: Sequence[Column],
    n: int,
    generator: torch.Generator,
) -> dict[str, tuple[float, float, float]]:
    """I(target; column) where one of them is a function of another column, by draws."""
    columns = [target, *others]
    names = list(dict.fromkeys(name for column in columns for name in column.variables))
    draws = engine.evidence(boxes).sample(n, generator, names)
    rows = {name: value.cpu() for name, value in draws.items()}
    of_model = {variable.name: variable for variable in engine.schema.variables()}
    of_codes = {variable.name: variable for variable in code_variables(engine.schema)}
    groups: list[list[int]] = []
    variables = [of_model[name] for name in names]
    for column in columns:
        if column.source:
            codec: Any = column.codec
            groups.append([len(variables)])
            variables.append(of_codes[column.code])
            rows[column.code] = torch.from_numpy(np.maximum(codec.codes(rows[column.variables[0]]), 0))
        else:
            groups.append([names.index(name) for name in column.variables])
    information = pair_information(variables, rows, {}).of_groups(groups)
    low, high = information.interval
    value = information.value
    return {
        c.name: (float(value[0, i]), float(low[0, i]), float(high[0, i])) for i, c in enumerate(others, 1)
    }


def links(engine: TableEngine) -> tuple[tuple[str, str], ...]:
    """Pairs of columns that are neighbours in the tree."""
    roots = engine.schema.roots.values()
    owner = {variable: column.name for column in roots for variable in column.all_variables}
    nodes = engine.joint.nodes
    pairs: dict[frozenset[str], tuple[str, str]] = {}
    for node, parent in engine.joint.parents.items():
        if parent is not None and nodes[node] and nodes[parent]:
            a, b = owner[nodes[node][0]], owner[nodes[parent][0]]
            if a != b:
                pairs.setdefault(frozenset((a, b)), (b, a))
    return tuple(pairs.values())
