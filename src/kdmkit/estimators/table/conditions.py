"""Conditions on a column: a value, a range, or a set of values; queries that consist of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Range:
    """Values between two ends, of numbers or of dates.

    Args:
        low, high: the ends; None is an open end.
        above, below: whether values are strictly above `low`, strictly below `high`.

    >>> print(Range(0.5, 1, below=True))
    [0.5, 1)
    """

    low: Any = None
    high: Any = None
    above: bool = False
    below: bool = False

    def __contains__(self, value: Any) -> bool:
        over = self.low is None or (value > self.low if self.above else value >= self.low)
        return over and (self.high is None or (value < self.high if self.below else value <= self.high))

    @property
    def is_empty(self) -> bool:
        if self.low is None or self.high is None:
            return False
        return bool(self.low > self.high or (self.low == self.high and (self.above or self.below)))

    def intersected(self, other: Range) -> Range:
        """The values that lie in both ranges."""
        low, above = _inner(self.low, self.above, other.low, other.above, max)
        high, below = _inner(self.high, self.below, other.high, other.below, min)
        return Range(low, high, above, below)

    def __str__(self) -> str:
        low = "(-inf" if self.low is None else f"{'(' if self.above else '['}{self.low}"
        high = "inf)" if self.high is None else f"{self.high}{')' if self.below else ']'}"
        return f"{low}, {high}"


def _inner(a: Any, a_strict: bool, b: Any, b_strict: bool, choose: Any) -> tuple[Any, bool]:
    """The tighter bound, and whether it is strict."""
    if a is None or b is None:
        return (b, b_strict) if a is None else (a, a_strict)
    if a == b:
        return a, a_strict or b_strict
    inner = choose(a, b)
    return inner, a_strict if inner == a else b_strict


@dataclass(frozen=True)
class Among:
    """One of some values.

    >>> print(Among(("Ideal", "Good")))
    {Ideal, Good}
    """

    values: tuple[Any, ...]

    def __str__(self) -> str:
        return "{" + ", ".join(map(str, self.values)) + "}"


Condition = Range | Among


def both(a: Condition, b: Condition) -> Condition | None:
    """The conjunction of two conditions on one column; None if no value satisfies both.

    >>> print(both(Range(low=0), Range(high=2, below=True)), both(Among((1, 2, 3)), Range(low=2)))
    [0, 2) {2, 3}
    """
    if isinstance(a, Range) and isinstance(b, Range):
        together = a.intersected(b)
        return None if together.is_empty else together
    if isinstance(a, Range):
        a, b = b, a
    assert isinstance(a, Among)
    kept = tuple(value for value in a.values if value in (b if isinstance(b, Range) else b.values))
    return Among(kept) if kept else None


#: The next value of a column above (True) or below (False) a value.
Beside = Callable[[Any, bool], Any]


def as_given(condition: Condition, beside: Beside) -> Any:
    """A condition as the mapping `given` writes it: a value, a pair (a closed range), or a list.

    >>> whole = lambda value, up: value + 1 if up else value - 1
    >>> as_given(Range(1, 5, below=True), whole), as_given(Among((3,)), whole), as_given(Among((3, 4)), whole)
    ((1, 4), 3, [3, 4])
    """
    if isinstance(condition, Among):
        return condition.values[0] if len(condition.values) == 1 else list(condition.values)
    low = beside(condition.low, True) if condition.above else condition.low
    high = beside(condition.high, False) if condition.below else condition.high
    return (low, high)


# ---- queries


def _number(text: str) -> float:
    number = float(text)
    if math.isnan(number):
        raise ValueError(text)
    return number


@dataclass(frozen=True)
class ColumnSyntax:
    """The syntax of a column's values.

    Args:
        levels: all values of a column of levels; None for numbers and dates.
        ordered: whether the order of the levels means something.
        read: makes a value from text, for columns without levels; raises a ValueError.
        wanted: names the texts that `read` takes, for errors.
    """

    levels: Sequence[Any] | None = None
    ordered: bool = False
    read: Callable[[str], Any] = _number
    wanted: str = "a number"


@dataclass(frozen=True)
class Query:
    """A query: the distribution of a column, or the probability of an event.

    Args:
        target: the column whose distribution is wanted; None for the probability of an event.
        event: the event, conditions by column.
        given: the evidence, conditions by column.
    """

    target: str | None
    event: dict[str, Condition] = field(default_factory=dict)
    given: dict[str, Condition] = field(default_factory=dict)
