"""Which cells of a row are surprising given the others, and what was expected there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kdmkit._core.checks import bad_argument
from kdmkit.estimators.table.answers.answer import plain, scalar, shown
from kdmkit.estimators.table.answers.inference import Inference
from kdmkit.estimators.table.answers.posterior import Posterior
from kdmkit.estimators.table.printing import rich_table, text_table
from kdmkit.estimators.table.schema import Column, Encoded


@dataclass(frozen=True)
class Cell:
    """A cell of a row, compared with its distribution given the other cells.

    Attributes:
        column: the name of the column.
        value: the cell.
        expected: what was expected in its place: the mean of numbers, the most probable level.
        probability: of a value that is at least as surprising: the two-sided tail probability of ordered
            values, the probability of all levels that are not more probable than this one.
        log_density: log p(value | other cells).
    """

    column: str
    value: Any
    expected: Any
    probability: float
    log_density: float


class Explanation(Sequence[Cell]):
    """The cells of a row, the most surprising first; prints as a table."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._cells = sorted(cells, key=lambda cell: cell.probability)

    def __getitem__(self, index: Any) -> Any:
        return self._cells[index]

    def __len__(self) -> int:
        return len(self._cells)

    def __iter__(self) -> Iterator[Cell]:
        return iter(self._cells)

    def _lines(self) -> list[tuple[str, ...]]:
        return [(c.column, shown(c.value), shown(c.expected), f"{c.probability:.2%}") for c in self._cells]

    def to_list(self) -> list[dict[str, Any]]:
        """The cells in the types of JSON."""
        return [{name: plain(value) for name, value in vars(cell).items()} for cell in self._cells]

    def __repr__(self) -> str:
        return text_table(_HEADER, self._lines())

    def __rich__(self) -> Any:
        return rich_table(_HEADER, self._lines())


_HEADER = ("column", "value", "expected", "as surprising or more")


def explain_row(engine: Inference, row: Any) -> Explanation:
    """Compares every cell of a row with its distribution given the others."""
    frame = {name: [value] for name, value in row.items()} if is_mapping_of_cells(row) else row
    rows = engine.schema.encode(frame)
    if rows.n_rows != 1:
        raise ValueError(bad_argument("row", "one row", f"{rows.n_rows} rows"))
    cells = [_compared(engine, column, rows) for column in engine.columns.values() if _is_known(column, rows)]
    return Explanation(cells)


def is_mapping_of_cells(row: Any) -> bool:
    """Whether a row is a mapping from column to one value."""
    return isinstance(row, Mapping) and not any(
        isinstance(value, list | tuple | np.ndarray) for value in row.values()
    )


def _is_known(column: Column, rows: Encoded) -> bool:
    return all(bool(rows.observed[name][0]) for name in column.variables)


def _compared(engine: Inference, column: Column, rows: Encoded) -> Cell:
    posterior = engine.posterior(column, rows)
    value = scalar(column.codec.decode(*(rows.values[name] for name in column.variables))[0])
    return Cell(
        column.name,
        value,
        scalar(posterior.expected()[0]),
        float(tail_probability(posterior, value)),
        float(posterior.log_density(value)[0]),
    )


def tail_probability(posterior: Posterior, value: Any) -> float:
    """The probability of values that are at least as surprising as this one."""
    codec = posterior.codec
    if codec.ordered:
        below = float(posterior.probability((None, value)).squeeze())
        above = float(posterior.probability((value, None)).squeeze())
        return min(1.0, 2 * min(below, above))
    probs = posterior.probs()[0]
    own = probs[list(codec.levels or ()).index(value)]
    return float(min(1.0, probs[probs <= own * (1 + 1e-9)].sum()))
