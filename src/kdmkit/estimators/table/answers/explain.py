"""Which cells of a row are surprising given the others, and what was expected there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kdmkit._core.checks import bad_argument
from kdmkit.estimators.table.answers.answer import plain, scalar, shown
from kdmkit.estimators.table.answers.inference import Inference
from kdmkit.estimators.table.answers.posterior import Posterior
from kdmkit.estimators.table.frames.read import read_frame
from kdmkit.estimators.table.frames.restore import to_objects
from kdmkit.estimators.table.printing import rich_table, text_table
from kdmkit.estimators.table.schema import Column, Encoded


@dataclass(frozen=True)
class Cell:
    """A cell of a row, compared with its distribution given the other cells: an element of an `Explanation`.

    Attributes:
        column: the name of the column.
        value: the cell.
        expected: what was expected in its place: the mean of numbers, the most probable level.
        probability: of a value that is at least as surprising: the two-sided tail probability of ordered
            values, the probability of all levels that are not more probable than this one.
        log_density: log p(value | other cells).

    >>> import kdmkit as kdm
    >>> import numpy as np
    >>> x = np.linspace(0, 1, 200)
    >>> table = kdm.KDMTable(n_components=4, max_epochs=2, random_state=0).fit({"x": x, "big": x > 0.5})
    >>> cell = table.explain({"x": 0.9, "big": False})[0]
    >>> 0 <= cell.probability <= 1
    True
    """

    column: str
    value: Any
    expected: Any
    probability: float
    log_density: float


class Explanation(Sequence[Cell]):
    """The cells of a row, the most surprising first; prints as a table. `KDMTable.explain` returns it.

    >>> import kdmkit as kdm
    >>> import numpy as np
    >>> x = np.linspace(0, 1, 200)
    >>> table = kdm.KDMTable(n_components=4, max_epochs=2, random_state=0).fit({"x": x, "big": x > 0.5})
    >>> sorted(cell.column for cell in table.explain({"x": 0.9, "big": False}))
    ['big', 'x']
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
    raw = read_frame("row", {name: [value] for name, value in row.items()} if is_row(row) else row)
    rows = engine.schema.encode(raw)
    if rows.n_rows != 1:
        raise ValueError(bad_argument("row", "one row", f"{rows.n_rows} rows"))
    known = {name: to_objects(column)[0] for name, column in raw.columns.items()}
    columns = [column for name, column in engine.columns.items() if known.get(name) is not None]
    return Explanation([_compared(engine, column, rows, known[column.name]) for column in columns])


def is_row(row: Any) -> bool:
    """Whether a row is a mapping from column to one value, or a Series of pandas."""
    if isinstance(row, Mapping):
        return not any(isinstance(value, list | tuple | np.ndarray) for value in row.values())
    return hasattr(row, "to_frame") and hasattr(row, "items")


def _compared(engine: Inference, column: Column, rows: Encoded, value: Any) -> Cell:
    posterior = engine.posterior(column, rows)
    expected = scalar(posterior.expected()[0])
    if not all(bool(rows.observed[name][0]) for name in column.variables):
        # A level or a number that the column was not fitted to.
        share = column.codec.share
        return Cell(column.name, value, expected, share, math.log(share) if share else -math.inf)
    tail = tail_probability(posterior, value)
    return Cell(column.name, value, expected, tail, float(posterior.log_density(value)[0]))


def tail_probability(posterior: Posterior, value: Any) -> float:
    """The probability of values that are at least as surprising as this one."""
    codec = posterior.codec
    if codec.ordered:
        below = float(posterior.probability((None, value)).squeeze())
        above = float(posterior.probability((value, None)).squeeze())
        return min(1.0, 2 * min(below, above))
    probs = posterior.probs()[0]
    own = probs[int(codec.event(value)[0])]
    return float(min(1.0, probs[probs <= own * (1 + 1e-9)].sum()))
