"""Two tables that belong together: the rows of a child table, each with the row of its parent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kdmkit._core.checks import bad_argument, check_instance, did_you_mean
from kdmkit.estimators.table.frames.read import RawFrame, read_frame
from kdmkit.estimators.table.frames.restore import build_frame
from kdmkit.estimators.table.frames.storage import RawColumn, Storage

_SHOWN = 3


@dataclass(frozen=True)
class JoinedTables:
    """Two frames to fit a table to each: of parents, and of children with what their parents are.

    Attributes:
        parents: the parents, with the number of their children.
        children: the children, each with the cells of its parent.
        key: the column that says which parent a child has.
        count: the column of `parents` with the number of children.

    >>> import numpy as np
    >>> shops = {"shop": ["a", "b"], "city": ["Rome", "Oslo"]}
    >>> joined = join_tables(shops, {"shop": ["b", "b"], "price": [3.5, 4.0]}, on="shop")
    >>> joined.parents["n_children"].tolist(), joined.children["city"].tolist()
    ([0, 2], ['Oslo', 'Oslo'])
    """

    parents: Any
    children: Any
    key: str
    count: str

    def conditions(self, parents: Any) -> Any:
        """The frame of conditions for the children of some parents: each as often as it has children.

        `sample(given=…)` of a table of the children completes its rows.

        Args:
            parents: rows like those of `JoinedTables.parents`, for example draws of a table of them.
        """
        frame = read_frame("parents", parents)
        for name in (self.key, self.count):
            _column("parents", frame, name)
        counts = frame.columns[self.count]
        numbers = np.where(counts.missing, 0, counts.values)
        if counts.storage.base not in ("integer", "float") or (numbers < 0).any():
            wanted = f"numbers of children ≥ 0 in {self.count!r}"
            raise ValueError(bad_argument("parents", wanted, counts.example))
        repeated = frame.take(np.repeat(np.arange(frame.n_rows), numbers.astype(np.int64)))
        return _built(repeated, {n: c for n, c in repeated.columns.items() if n != self.count})


def join_tables(parent: Any, child: Any, *, on: str, count: str = "n_children") -> JoinedTables:
    """The frames of two tables that belong together, such as customers and their orders.

    A table that is fitted to the first draws parents with the number of their children, one that is fitted to
    the second draws children given their parents. Children of one parent are independent given its row.

    Args:
        parent: a frame in which every row has a key of its own.
        child: a frame of the same kind, whose rows have the key of their parent.
        on: the column of the key, in both.
        count: the name of the new column with the number of children.

    Returns:
        The frames, which also make the conditions for new children.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> shops = {"shop": np.array([f"S{i}" for i in range(30)]), "big": rng.random(30) < 0.5}
    >>> at = rng.integers(0, 30, 200)
    >>> sales = {"shop": shops["shop"][at], "price": rng.normal(np.where(shops["big"][at], 9, 3), 1).round(1)}
    >>> joined = join_tables(shops, sales, on="shop")
    >>> int(joined.parents["n_children"].sum()), list(joined.children)
    (200, ['shop', 'price', 'big'])
    """
    check_instance("on", on, str, "the name of a column")
    parents, children = read_frame("parent", parent), read_frame("child", child)
    keys, of_child = _column("parent", parents, on), _column("child", children, on)
    common = [name for name in parents.columns if name in children.columns and name != on]
    if common:
        wanted = "columns with other names than those of `parent`, but for the key"
        raise ValueError(bad_argument("child", wanted, ", ".join(map(repr, common))))
    for frame in (parents, children):
        if count in frame.columns:
            raise ValueError(bad_argument("count", "the name of a new column", repr(count)))
    places = _places(keys, of_child)
    counts = np.bincount(places, minlength=parents.n_rows)
    counted = parents.columns | {
        count: RawColumn(count, counts, np.zeros(parents.n_rows, bool), Storage("integer", "int64"))
    }
    taken = parents.take(places).columns
    both = children.columns | {name: column for name, column in taken.items() if name != on}
    return JoinedTables(_built(parents, counted), _built(children, both), on, count)


def _column(argument: str, frame: RawFrame, name: str) -> RawColumn:
    if name not in frame.columns:
        wanted = f"a frame with the column {name!r}{did_you_mean(name, frame.columns)}"
        raise ValueError(bad_argument(argument, wanted, list(frame.columns)))
    return frame.columns[name]


def _places(keys: RawColumn, of_child: RawColumn) -> np.ndarray:
    """The row of the parent of every child."""
    place: dict[Any, int] = {}
    for i, (key, gone) in enumerate(zip(keys.values.tolist(), keys.missing, strict=True)):
        if gone or key in place:
            got = f"{'none' if gone else repr(key)} in row {i}"
            raise ValueError(bad_argument(f"parent[{keys.name!r}]", "a key of its own in every row", got))
        place[key] = i
    wanted = [
        None if gone else key for key, gone in zip(of_child.values.tolist(), of_child.missing, strict=True)
    ]
    unknown = list(dict.fromkeys(key for key in wanted if key not in place))
    if unknown:
        listed = ", ".join(map(repr, unknown[:_SHOWN])) + (", …" if len(unknown) > _SHOWN else "")
        raise ValueError(bad_argument(f"child[{of_child.name!r}]", "keys of rows of `parent`", listed))
    return np.array([place[key] for key in wanted], dtype=np.int64)


def _built(frame: RawFrame, columns: dict[str, RawColumn]) -> Any:
    """A frame of the same library with other columns."""
    labels: Sequence[Any] = [
        dict(zip(frame.columns, frame.labels, strict=True)).get(name, name) for name in columns
    ]
    return build_frame([replace(c, name=n) for n, c in columns.items()], frame.backend, labels)
