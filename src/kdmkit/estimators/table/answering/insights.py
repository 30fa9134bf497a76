"""Which columns depend on each other, and which cells of a row are surprising."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from kdmkit._core.checks import bad_argument
from kdmkit.distributions.events import Event
from kdmkit.estimators.common.arrays import Array
from kdmkit.estimators.table.answering.engine import TableEngine, check_plain
from kdmkit.estimators.table.answering.posterior import Posterior
from kdmkit.estimators.table.column import Column
from kdmkit.estimators.table.derived import code_variables, row_groups
from kdmkit.estimators.table.display import plain, rich_table, scalar, shown, text_table
from kdmkit.estimators.table.frames.read import read_frame
from kdmkit.estimators.table.frames.restore import to_objects
from kdmkit.nn.pair_information import PairInformation, pair_information
from kdmkit.training import Table

# Two-sided intervals of 90 %.
_ERRORS = 1.645


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
        links = {frozenset(link) for link in self.links}
        ends = ((a, b, v, *self.interval(a, b)) for a, b, v in self.pairs())
        return [
            (a, b, f"{value:.3f}", f"{low:.3f} … {high:.3f}", "yes" if {a, b} in links else "")
            for a, b, value, low, high in ends
        ]

    def __repr__(self) -> str:
        return "\n".join(f"{a} – {b}: {value} ({interval})" for a, b, value, interval, _ in self._lines())

    def __rich__(self) -> Any:
        header = ("column", "column", "mutual information", "90 % interval", "neighbours in the tree")
        return rich_table(header, self._lines())

    def plot(self, ax: Any = None) -> Any:
        """Draws the matrix; neighbours in the tree are framed. Returns matplotlib's Axes."""
        from kdmkit.plotting import plot_matrix

        label = "mutual information (nats)"
        return plot_matrix(self.information, self.names, links=self.links, label=label, ax=ax)


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


@dataclass(frozen=True)
class Cell:
    """A cell of a row, compared with its distribution given the other cells: an element of an `Explanation`.

    Attributes:
        column: the name of the column.
        value: the cell, None if it is missing.
        expected: what was expected in its place: the mean of numbers, the most probable level; None if a
            missing cell was more probable than all values together.
        probability: of a cell with a value that is at least as surprising: the two-sided tail probability of
            ordered values, the probability of all levels that are not more probable than this one. Of a
            missing cell: the probability that it is missing.
        log_density: log p(cell | other cells).
        rules: the rules that the row breaks and the cell is part of.

    With `table` as in the example of `KDMTable`:

    >>> cell, *_ = table.explain({"size": "small", "weight": 5.0})
    >>> cell.probability < 0.2
    True
    """

    column: str
    value: Any
    expected: Any
    probability: float
    log_density: float
    rules: tuple[str, ...] = ()


class Explanation(Sequence[Cell]):
    """The cells of a row, the most surprising first; prints as a table. `KDMTable.explain` returns it.

    With `table` as in the example of `KDMTable`:

    >>> explanation = table.explain({"size": "small", "weight": 5.0})
    >>> {cell.column: cell.expected for cell in explanation}["size"]
    'large'
    """

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._cells = sorted(cells, key=lambda cell: cell.probability)

    def __getitem__(self, index: Any) -> Any:
        return self._cells[index]

    def __len__(self) -> int:
        return len(self._cells)

    def __iter__(self) -> Iterator[Cell]:
        return iter(self._cells)

    def _lines(self) -> list[tuple[str, ...]]:
        return [
            (c.column, shown(c.value), shown(c.expected), "; ".join([f"{c.probability:.2%}", *c.rules]))
            for c in self._cells
        ]

    def to_list(self) -> list[dict[str, Any]]:
        """The cells in the types of JSON."""
        return [{name: plain(value) for name, value in vars(cell).items()} for cell in self._cells]

    def __repr__(self) -> str:
        return text_table(_HEADER, self._lines())

    def __rich__(self) -> Any:
        return rich_table(_HEADER, self._lines())


_HEADER = ("column", "value", "expected", "as surprising or more")


def explain_row(engine: TableEngine, row: Any, missing: str = "outcome") -> Explanation:
    """Compares every cell of a row with its distribution given the others.

    Args:
        missing: what an empty cell is, as in `Schema.encode`.
    """
    row = {name: [value] for name, value in row.items()} if is_row(row) else row
    raw = engine.schema.marked(read_frame("row", row))
    rows = engine.schema.encode(raw, missing=missing)
    if len(rows) != 1:
        raise ValueError(bad_argument("row", "one row", f"{len(rows)} rows"))
    cells = {name: to_objects(column)[0] for name, column in raw.columns.items()}
    columns = [
        column
        for name, column in engine.columns.items()
        if cells.get(name) is not None or (name in cells and name in engine.schema.can_miss)
    ]
    read = engine.schema.read(raw).columns
    texts = {rule: str(rule) for rule in engine.schema.rules if all(name in read for name in rule.columns)}
    broken = [rule for rule in texts if bool(rule.broken(engine.schema, read)[0])]
    return Explanation(
        [
            replace(
                _compared(engine, column, rows, cells[column.name]),
                rules=tuple(f"breaks {texts[rule]}" for rule in broken if column.name in rule.columns),
            )
            for column in columns
        ]
    )


def is_row(row: Any) -> bool:
    """Whether a row is a mapping from column to one value, or a Series of pandas."""
    if isinstance(row, Mapping):
        return not any(isinstance(value, list | tuple | np.ndarray) for value in row.values())
    return hasattr(row, "to_frame") and hasattr(row, "items")


def _compared(engine: TableEngine, column: Column, rows: Table, value: Any) -> Cell:
    (group,) = row_groups(engine.schema, rows, column)
    posterior = engine.rows.posterior(column, group)
    p_missing = engine.rows.p_missing(column, rows)
    expected = None if p_missing > 0.5 else scalar(posterior.expected()[0])
    with np.errstate(divide="ignore"):
        log_missing, log_present = np.log([p_missing, 1 - p_missing]).tolist()
    if value is None:
        return Cell(column.name, None, expected, p_missing, log_missing)
    if not all(
        bool(rows.observed[name][0]) for name in ([column.code] if column.source else column.variables)
    ):
        # A level or a number that the column was not fitted to.
        share = column.codec.share
        return Cell(column.name, value, expected, share, math.log(share) if share else -math.inf)
    tail = (1 - p_missing) * tail_probability(posterior, value)
    return Cell(column.name, value, expected, tail, log_present + float(posterior.log_density(value)[0]))


def tail_probability(posterior: Posterior, value: Any) -> float:
    """The probability of values that are at least as surprising as this one."""
    codec = posterior.codec
    if codec.ordered:
        below = float(posterior.probability((None, value)).squeeze())
        above = float(posterior.probability((value, None)).squeeze())
        return min(1.0, 2 * min(below, above))
    probs = posterior.probs()[0]
    prob = probs[int(codec.encode(codec.raw([value])).parts[0])]
    return float(min(1.0, probs[probs <= prob * (1 + 1e-9)].sum()))
