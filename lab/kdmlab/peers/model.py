"""What a library is asked for. A library's adapter says what its documented calls give."""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Rows = dict[str, Array]

Value = str | float
#: A value, the two ends of a range, or a list of levels.
Condition = Value | tuple[float, float] | list[str]
#: Conditions that hold together.
Box = Mapping[str, Condition]
#: Boxes, of which at least one holds.
Event = Sequence[Box]

#: Components of mixtures and hidden states per column, the same for all libraries that need a number.
COMPONENTS = 32
#: Draws under a condition, from which frequencies and intervals are taken.
DRAWS = 1000
COVERAGE = 0.9


class NotOffered(Exception):
    """No documented call gives the answer."""


class Peer:
    """A model of a table. What an adapter does not override is not offered.

    Args:
        seed: of the fit and of the draws.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        #: The rows of the fit, which the worker sets.
        self.rows: Rows = {}

    def fit(self, rows: Rows) -> None:
        """Learns from complete rows: texts are levels, numbers are whole."""
        raise NotImplementedError

    def log_prob(self, rows: Rows) -> Array:
        """log P of whole rows, a recorded number standing for its unit interval."""
        raise NotOffered

    def draw(self, n: int, given: Box | None = None) -> Rows:
        """New rows, of all columns; those that satisfy a condition."""
        raise NotOffered

    def mass(self, box: Box) -> float:
        """The probability of values and ranges of some columns, the others integrated out."""
        raise NotOffered

    def compare(self, larger: str, smaller: str) -> float:
        """The probability that a number is larger than another one of the same row."""
        raise NotOffered

    def impute(self, rows: Rows) -> Rows:
        """Rows with missing cells, filled."""
        raise NotOffered

    def likeliest(self, given: Box) -> Box:
        """The most probable values of all other columns together."""
        raise NotOffered

    def information(self, first: str, second: str) -> float:
        """The mutual information of two columns, in nats."""
        raise NotOffered

    def probability(self, event: Event, given: Event = ({},)) -> float:
        """P(event | given): sums and a ratio of `mass`."""
        both = [meet(a, b) for a, b in itertools.product(event, given)]
        return self._union([box for box in both if box is not None]) / self._union(given)

    def levels(self, target: str, names: Sequence[str], given: Box) -> list[float]:
        """The probabilities of a column's levels, given cells of the row."""
        joint = np.array([self.mass({**given, target: name}) for name in names])
        return list(joint / joint.sum())

    def interval(self, column: str, given: Box) -> tuple[float, float]:
        """An interval that holds a number with 90 %: quantiles of draws under the condition."""
        drawn = np.asarray(self.draw(DRAWS, given)[column], float)
        low, high = np.quantile(drawn, [0.5 - COVERAGE / 2, 0.5 + COVERAGE / 2])
        return float(low), float(high)

    def _union(self, boxes: Event) -> float:
        """The probability of a union, by inclusion and exclusion."""
        total = 0.0
        for size in range(1, len(boxes) + 1):
            for some in itertools.combinations(boxes, size):
                box: Box | None = some[0]
                for other in some[1:]:
                    box = None if box is None else meet(box, other)
                if box is not None:
                    total += (-1) ** (size + 1) * self._any_level(box)
        return total

    def _any_level(self, box: Box) -> float:
        """The probability of a box with lists of levels, as a sum over the levels."""
        lists = {name: value for name, value in box.items() if isinstance(value, list)}
        rest = {name: value for name, value in box.items() if name not in lists}
        if not rest and not lists:
            return 1.0
        choices = itertools.product(*lists.values())
        return sum(self.mass({**rest, **dict(zip(lists, choice, strict=True))}) for choice in choices)


class Codes:
    """Columns as numbers: levels are counted from 0 in the order of their names."""

    def __init__(self, rows: Rows) -> None:
        self.names = list(rows)
        self.levels = {name: sorted(set(column)) for name, column in rows.items() if column.dtype == object}
        self.numbers = [name for name in rows if name not in self.levels]

    def code(self, name: str, value: Any) -> float:
        """The code of a level; a number as it is. A level that the rows lacked is the last one."""
        if name not in self.levels:
            return float(value)
        levels = self.levels[name]
        return float(levels.index(value)) if value in levels else float(len(levels))

    def matrix(self, rows: Rows) -> Array:
        return np.array([[self.code(name, value) for value in rows[name]] for name in self.names]).T

    def rows(self, matrix: Array) -> Rows:
        return {name: self.decoded(name, matrix[:, i]) for i, name in enumerate(self.names)}

    def decoded(self, name: str, column: Array) -> Array:
        if name not in self.levels:
            return np.round(np.asarray(column, float))
        levels = self.levels[name]
        return np.array([levels[min(int(code), len(levels) - 1)] for code in column], dtype=object)


def meet(a: Box, b: Box) -> Box | None:
    """The box where both hold; None where no row can satisfy both.

    >>> meet({"age": (20, 40)}, {"age": (30, 50), "sex": "Male"})
    {'age': (30, 40), 'sex': 'Male'}
    >>> meet({"sex": "Male"}, {"sex": ["Female"]})
    """
    both = dict(a)
    for name, condition in b.items():
        if name in both:
            common = _common(both[name], condition)
            if common is None:
                return None
            both[name] = common
        else:
            both[name] = condition
    return both


def _common(a: Condition, b: Condition) -> Condition | None:
    names, others = _as_levels(a), _as_levels(b)
    if names and others:
        shared = [name for name in names if name in others]
        return shared[0] if len(shared) == 1 else shared or None
    (low, high), (least, most) = ends(a), ends(b)
    low, high = max(low, least), min(high, most)
    return None if low > high else (low, high)


def _as_levels(condition: Condition) -> list[str]:
    """The levels of a condition; none for numbers."""
    if isinstance(condition, str):
        return [condition]
    return condition if isinstance(condition, list) else []


def ends(condition: Condition) -> tuple[float, float]:
    """The ends of a range; a number is both of its ends."""
    if isinstance(condition, tuple):
        return condition
    if isinstance(condition, str | list):
        raise TypeError(f"condition: expected numbers, got {condition!r}")
    return condition, condition


def one_value(condition: Condition) -> Value:
    """The value; raises where ranges and lists of levels are not offered."""
    if isinstance(condition, tuple | list):
        raise NotOffered
    return condition


def holds(event: Event, rows: Rows) -> Array:
    """Which rows satisfy an event.

    >>> holds([{"x": (0, 1)}, {"x": 5.0}], {"x": np.array([0.0, 2.0, 5.0])})
    array([ True, False,  True])
    """
    return np.any([_holds(box, rows) for box in event], axis=0)


def _holds(box: Box, rows: Rows) -> Array:
    parts = [np.ones(len(next(iter(rows.values()))), dtype=bool)]
    for name, condition in box.items():
        column = rows[name]
        if isinstance(condition, tuple):
            parts.append((column >= condition[0]) & (column <= condition[1]))
        else:
            is_level = column.dtype == object
            parts.append(np.isin(column.astype(str), condition) if is_level else column == condition)
    return np.all(parts, axis=0)


def normal_mass(low: float | Array, high: float | Array, mean: Array, scale: Array) -> Array:
    """The probability that normal variables lie between two ends."""
    cdf = np.vectorize(lambda z: 0.5 * math.erfc(-z / math.sqrt(2)))
    mass: Array = cdf((high - mean) / scale) - cdf((low - mean) / scale)
    return mass


def load_peer(name: str, seed: int) -> Peer:
    """The adapter of a library."""
    peer: Peer = importlib.import_module(f"kdmlab.peers.adapters.{name}").Model(seed)
    return peer
