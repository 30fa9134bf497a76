"""Which cells of rows are surprising, given the other cells of their row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kdmkit.estimators.common.arrays import Array
from kdmkit.estimators.table.answering.engine import TableEngine
from kdmkit.estimators.table.answering.posterior import Posterior
from kdmkit.estimators.table.column import Column
from kdmkit.estimators.table.derived import row_groups
from kdmkit.estimators.table.display import plain, rich_table, scalar, shown, text_table
from kdmkit.estimators.table.frames.read import read_frame
from kdmkit.estimators.table.frames.restore import to_objects
from kdmkit.training import Table

# Cells that a printed explanation of several rows shows, and rows that are compared at a time.
_SHOWN, _BLOCK = 30, 32


@dataclass(frozen=True)
class Cell:
    """A cell of a row, compared with its distribution given the other cells: an element of an `Explanation`.

    Attributes:
        row: the number of the row, from 0.
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

    row: int
    column: str
    value: Any
    expected: Any
    probability: float
    log_density: float
    rules: tuple[str, ...] = ()


class Explanation(Sequence[Cell]):
    """The cells of rows, the most surprising first; prints as a table. `KDMTable.explain` returns it.

    Probabilities compare a cell with the other cells of its row. The table shows the first cells of many.

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

    def _shown(self) -> tuple[Sequence[str], list[list[str]]]:
        """A header, and lines of the first cells; rows have numbers if there are several."""
        several = any(cell.row for cell in self._cells)
        lines = [
            [
                *([str(c.row)] if several else []),
                *(c.column, *("missing" if v is None else shown(v) for v in (c.value, c.expected))),
                "; ".join([f"{c.probability:.2%}", *c.rules]),
            ]
            for c in (self._cells[:_SHOWN] if several else self._cells)
        ]
        return (["row", *_HEADER] if several else _HEADER), lines

    def _more(self, lines: Sequence[Any]) -> str:
        more = len(self._cells) - len(lines)
        return f"\n… {more:,} more cells, less surprising" if more else ""

    def to_list(self) -> list[dict[str, Any]]:
        """The cells in the types of JSON."""
        return [{name: plain(value) for name, value in vars(cell).items()} for cell in self._cells]

    def __repr__(self) -> str:
        header, lines = self._shown()
        return text_table(header, lines) + self._more(lines)

    def __rich__(self) -> Any:
        header, lines = self._shown()
        return rich_table(header, lines, caption=self._more(lines).strip() or None)


#: The last one: how probable values are that are at least as surprising.
_HEADER = ("column", "value", "expected", "as surprising or more")


def explain_rows(engine: TableEngine, rows: Any, missing: str = "outcome") -> Explanation:
    """Compares every cell of some rows with its distribution given the others of its row.

    Args:
        rows: a frame, or one row: a mapping from column to value, or a Series.
        missing: what an empty cell is, as in `Schema.encode`.
    """
    rows = {name: [value] for name, value in rows.items()} if is_row(rows) else rows
    raw = engine.schema.marked(read_frame("rows", rows))
    encoded = engine.schema.encode(raw, missing=missing)
    read = engine.schema.read(raw).columns
    rules = [rule for rule in engine.schema.rules if all(name in read for name in rule.columns)]
    broken = {rule: rule.broken(engine.schema, read) for rule in rules}
    cells: list[Cell] = []
    for name, column in engine.columns.items():
        if name not in raw.columns:
            continue
        values = to_objects(raw.columns[name])
        shown_rows = [i for i, v in enumerate(values) if v is not None or name in engine.schema.can_miss]
        texts = {rule: f"breaks {rule}" for rule in broken if name in rule.columns}
        for start in range(0, len(shown_rows), _BLOCK):
            index = shown_rows[start : start + _BLOCK]
            compared = _compared(
                engine, column, encoded.take(torch.tensor(index)), [values[i] for i in index]
            )
            for i, cell in zip(index, compared, strict=True):
                breaks = tuple(text for rule, text in texts.items() if broken[rule][i])
                cells.append(Cell(i, name, values[i], *cell, breaks))
    return Explanation(cells)


def is_row(row: Any) -> bool:
    """Whether a row is a mapping from column to one value, or a Series of pandas."""
    if isinstance(row, Mapping):
        return not any(isinstance(value, list | tuple | np.ndarray) for value in row.values())
    return hasattr(row, "to_frame") and hasattr(row, "items")


def _compared(
    engine: TableEngine, column: Column, rows: Table, values: Sequence[Any]
) -> list[tuple[Any, float, float]]:
    """The expected value, the probability and log p of every cell of a column."""
    p_missing = engine.rows.p_missing(column, rows)
    names = [column.code] if column.source else column.variables
    is_read = np.logical_and.reduce([rows.observed[name].numpy() for name in names])
    compared: list[tuple[Any, float, float]] = [(None, 0.0, 0.0)] * len(values)
    for group in row_groups(engine.schema, rows, column):
        posterior = engine.rows.posterior(column, group)
        expected = posterior.expected()
        answers: dict[Any, tuple[Array, Array]] = {}
        for place, i in enumerate(group.index.tolist()):
            value, gone = values[i], float(p_missing[i])
            cell = None if gone > 0.5 else scalar(expected[place])
            if value is None:
                compared[i] = cell, gone, _log(gone)
            elif not is_read[i]:  # a level or a number that the column was not fitted to
                compared[i] = cell, column.codec.share, _log(column.codec.share)
            else:
                if str(value) not in answers:
                    answers[str(value)] = tail_probability(posterior, value), posterior.log_density(value)
                tail, log_density = (float(np.ravel(part)[place]) for part in answers[str(value)])
                compared[i] = cell, (1 - gone) * tail, _log(1 - gone) + log_density
    return compared


def _log(share: float) -> float:
    return math.log(share) if share > 0 else -math.inf


def tail_probability(posterior: Posterior, value: Any) -> Array:
    """The probability of values that are at least as surprising as this one, `(*batch,)`."""
    codec = posterior.codec
    if codec.ordered:
        below, above = posterior.probabilities([(None, value), (value, None)])
        return np.asarray(np.minimum(1.0, 2 * np.minimum(below, above)))
    probs = posterior.probs()
    prob = probs[..., int(codec.encode(codec.raw([value])).parts[0])]
    return np.asarray(np.minimum(1.0, np.where(probs <= prob[..., None] * (1 + 1e-9), probs, 0).sum(-1)))
