"""Arithmetic between columns of numbers, as rules state it, and the precision of its results."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kdmkit.estimators.table.codecs.numbers import NumberCodec, from_numbers
from kdmkit.estimators.table.frames.storage import shortest

_RANKS = {"+": 1, "-": 1, "*": 2, "/": 2}
_OPERATIONS = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}


def quoted(name: str) -> str:
    """A column's name in the text of a rule: in backticks unless it is a word.

    >>> quoted("paid_total"), quoted("hours per week")
    ('paid_total', '`hours per week`')
    """
    is_word = name.replace("_", "a").replace(".", "a").isalnum() and not name[0].isdigit()
    return name if is_word else f"`{name.replace('`', '``')}`"


@dataclass(frozen=True)
class Expression(ABC):
    """A number for every row, computed from columns; `str` writes it as rules are written."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """The columns, in the order in which they first occur."""

    @abstractmethod
    def value(self, numbers: Mapping[str, np.ndarray]) -> np.ndarray:
        """The numbers of all rows; NaN or infinite where there is none."""

    def solved(self, name: str, value: Expression) -> Expression | None:
        """What a column must be for the expression to have a value; None if it occurs more than once."""
        return None


@dataclass(frozen=True)
class Constant(Expression):
    """A number."""

    number: float

    @property
    def names(self) -> tuple[str, ...]:
        return ()

    def value(self, numbers: Mapping[str, np.ndarray]) -> np.ndarray:
        return np.array(self.number)

    def __str__(self) -> str:
        return f"{self.number:.15g}"


@dataclass(frozen=True)
class Reference(Expression):
    """A column."""

    name: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def value(self, numbers: Mapping[str, np.ndarray]) -> np.ndarray:
        return numbers[self.name]

    def solved(self, name: str, value: Expression) -> Expression | None:
        return value if name == self.name else None

    def __str__(self) -> str:
        return quoted(self.name)


@dataclass(frozen=True)
class Operation(Expression):
    """A sum, a difference, a product or a quotient."""

    sign: str
    left: Expression
    right: Expression

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.left.names, *self.right.names)))

    def value(self, numbers: Mapping[str, np.ndarray]) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.asarray(_OPERATIONS[self.sign](self.left.value(numbers), self.right.value(numbers)))

    def solved(self, name: str, value: Expression) -> Expression | None:
        on_left, on_right = name in self.left.names, name in self.right.names
        if on_left == on_right:
            return None
        inverse = {"+": "-", "-": "+", "*": "/", "/": "*"}[self.sign]
        if on_left:
            return self.left.solved(name, Operation(inverse, value, self.right))
        if self.sign in "-/":
            return self.right.solved(name, Operation(self.sign, self.left, value))
        return self.right.solved(name, Operation(inverse, value, self.left))

    def __str__(self) -> str:
        rank = _RANKS[self.sign]
        left, right = str(self.left), str(self.right)
        if isinstance(self.left, Operation) and _RANKS[self.left.sign] < rank:
            left = f"({left})"
        if isinstance(self.right, Operation) and _RANKS[self.right.sign] + (self.sign in "+*") <= rank:
            right = f"({right})"
        return f"{left} {self.sign} {right}"


def is_linear(expression: Expression) -> bool:
    """Whether an expression is a sum of multiples of columns and a number."""
    if not isinstance(expression, Operation):
        return True
    left, right = expression.left, expression.right
    if expression.sign == "*" and left.names and right.names:
        return False
    if expression.sign == "/" and right.names:
        return False
    return is_linear(left) and is_linear(right)


def linear(coefficients: Mapping[str, float], constant: float = 0.0) -> Expression:
    """A sum of multiples of columns, as people write it.

    >>> [str(linear(parts)) for parts in ({"a": 1, "b": -1}, {"a": 100, "b": 1}, {"a": 0.5, "b": 0.5})]
    ['a - b', '100 * a + b', '(a + b) / 2']
    """
    ordered = sorted(coefficients.items(), key=lambda pair: pair[1] < 0)
    sizes = {abs(size) for size in coefficients.values()}
    share = 1 / sizes.pop() if len(sizes) == 1 else 1.0
    if share > 1 and abs(share - round(share)) < 1e-9 and not constant and len(coefficients) > 1:
        whole = linear({name: np.sign(size) for name, size in ordered})
        return Operation("/", whole, Constant(round(share)))
    total: Expression | None = None
    for name, size in ordered:
        term: Expression = Reference(name)
        if abs(size) != 1:
            term = Operation("*", Constant(abs(size)), term)
        if total is None:
            total = term if size > 0 else Operation("*", Constant(size), Reference(name))
        else:
            total = Operation("+" if size > 0 else "-", total, term)
    if total is None:
        return Constant(constant)
    return Operation("+" if constant > 0 else "-", total, Constant(abs(constant))) if constant else total


#: Half a step of whole numbers.
WHOLE_STEP = 0.5
# Finer numbers have no resolution.
_MOST_DECIMALS = 9
# What numbers with fewer than 15 digits may lose, and others, which may have been float32 once.
_SINGLE, _DOUBLE = 1e-5, 1e-6
_DOUBLE_DIGITS = 15


def decimals_of(column: Any) -> int | None:
    """How many decimals the numbers of a column have; None if they are not rounded."""
    codec = column.codec.inner if column.source else column.codec
    if codec.base in ("integer", "boolean"):
        return 0
    part = codec.part
    if part.values is not None:
        return _decimals(part.values)
    return _decimals((part.step, part.origin)) if part.step else None


def _decimals(numbers: Any) -> int | None:
    values = np.asarray(numbers, dtype=float)
    for decimals in range(_MOST_DECIMALS + 1):
        if bool(np.allclose(values, np.round(values, decimals), rtol=1e-12, atol=0)):
            return decimals
    return None


def half_step(column: Any) -> float:
    """Half a unit of the last decimal of a column; 0 if its numbers are not rounded, or it is constant."""
    if column.kind == "constant":
        return 0.0
    decimals = decimals_of(column)
    return 0.0 if decimals is None else 0.5 * 10.0**-decimals


def relative_error(column: Any) -> float:
    """What arithmetic in the dtype of a column may lose."""
    return _DOUBLE if column.storage.digits >= _DOUBLE_DIGITS else _SINGLE


def as_cells(column: Any, numbers: np.ndarray) -> np.ndarray:
    """Numbers as cells of a column: rounded as its numbers are, in its dtype."""
    codec: NumberCodec = column.codec
    decimals = decimals_of(column)
    rounded = numbers if decimals is None else np.round(numbers, decimals) + 0.0
    return from_numbers(shortest(rounded, codec.digits), codec.base)


def is_in_range(column: Any, numbers: np.ndarray) -> np.ndarray:
    """Whether numbers are not below the least one that the column may have, such as 0 of counts."""
    part = column.codec.number_part
    return np.asarray(numbers >= (-math.inf if part is None else part.low))
