"""Rules between columns: what they say, how people write them, and which of them a table keeps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kdmkit.estimators.table.codecs.dates import DateCodec
from kdmkit.estimators.table.codecs.numbers import as_numbers
from kdmkit.estimators.table.derived import breaks_function
from kdmkit.estimators.table.display import rich_table, text_table
from kdmkit.estimators.table.expressions import (
    WHOLE_STEP,
    Expression,
    half_step,
    is_linear,
    quoted,
    relative_error,
)
from kdmkit.estimators.table.frames.storage import RawColumn
from kdmkit.estimators.table.rule_text import read_statement

#: Above the lines of rules in a printed table.
RULE_HEADER = ("rule", "rows", "exceptions", "")


@dataclass(frozen=True)
class Rule(ABC):
    """A rule between columns: an element of `KDMTable.rules_`. `str(rule)` is its text, as `rules=` takes it.

    Attributes:
        n_rows: the rows of the fit that have all of its cells.
        exceptions: how many of them break it.
        is_given: whether the user gave the rule; otherwise it was found.

    With `table` as in the example of `KDMTable`, whose columns keep no rule:

    >>> [str(rule) for rule in table.rules_]
    []
    """

    n_rows: int
    exceptions: int
    is_given: bool

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The names of its columns."""

    @abstractmethod
    def __str__(self) -> str: ...

    @abstractmethod
    def broken(self, schema: Any, cells: Mapping[str, RawColumn]) -> np.ndarray:
        """The rows that break the rule; rows without one of its cells do not.

        Args:
            schema: of the table.
            cells: of its columns.
        """

    def config(self) -> dict[str, Any]:
        """A JSON-ready description."""
        counts = {"n_rows": self.n_rows, "exceptions": self.exceptions, "is_given": self.is_given}
        return {"text": str(self), **counts}

    @property
    def line(self) -> tuple[str, ...]:
        """The line of the rule in a printed table, below `RULE_HEADER`."""
        origin = "given" if self.is_given else "found"
        return (str(self), f"{self.n_rows:,}", f"{self.exceptions:,}", origin)


@dataclass(frozen=True)
class FunctionRule(Rule):
    """A column is a function of another one: the rows with one value of `source` have one value of `target`.

    With `table` as in the example of `KDMTable`, whose columns keep no rule:

    >>> table.rules_
    no rules
    """

    source: str
    target: str

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.source, self.target)

    def __str__(self) -> str:
        return f"{quoted(self.source)} -> {quoted(self.target)}"

    def broken(self, schema: Any, cells: Mapping[str, RawColumn]) -> np.ndarray:
        return breaks_function(schema, self.source, self.target, cells)


@dataclass(frozen=True)
class OrderRule(Rule):
    """A column is at most another one, or less, in rows that have both cells.

    With `table` as in the example of `KDMTable`, whose columns keep no rule:

    >>> any(isinstance(rule, OrderRule) for rule in table.rules_)
    False
    """

    low: str
    high: str
    strict: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.low, self.high)

    def __str__(self) -> str:
        return f"{quoted(self.low)} {'<' if self.strict else '<='} {quoted(self.high)}"

    def broken(self, schema: Any, cells: Mapping[str, RawColumn]) -> np.ndarray:
        low, high = (comparable(schema, name, cells[name]) for name in self.columns)
        wrong = low >= high if self.strict else low > high
        return wrong & ~cells[self.low].missing & ~cells[self.high].missing


@dataclass(frozen=True)
class FormulaRule(Rule):
    """A column of numbers is computed from others, to the rounding of all of them.

    With `table` as in the example of `KDMTable`, whose columns keep no rule:

    >>> any(isinstance(rule, FormulaRule) for rule in table.rules_)
    False
    """

    target: str
    expression: Expression

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.target, *self.expression.names)

    def __str__(self) -> str:
        return f"{quoted(self.target)} = {self.expression}"

    def broken(self, schema: Any, cells: Mapping[str, RawColumn]) -> np.ndarray:
        numbers = {name: as_numbers(cells[name]) for name in self.columns}
        wanted = self.expression.value(numbers)
        off = np.abs(numbers[self.target] - wanted)
        # Every cell may be rounded by half a step; whole numbers in products are exact.
        tolerance, is_sum = half_step(schema.columns[self.target]), is_linear(self.expression)
        for name in self.expression.names:
            step = half_step(schema.columns[name])
            if step and (is_sum or step < WHOLE_STEP):
                tolerance = tolerance + np.abs(
                    self.expression.value({**numbers, name: numbers[name] + step}) - wanted
                )
        rounding = max(relative_error(schema.columns[name]) for name in self.columns)
        sizes = [np.abs(numbers[name]) for name in self.columns]
        tolerance = tolerance * (1 + 1e-6) + rounding * np.maximum(np.abs(wanted), sizes[0])
        with np.errstate(invalid="ignore"):
            return np.asarray(np.isfinite(wanted) & (off > tolerance))


def comparable(schema: Any, name: str, cells: RawColumn) -> np.ndarray:
    """Cells of a column as numbers whose order is that of the column; anything where they are missing."""
    codec, there = schema.columns[name].codec, ~cells.missing
    if codec.numeric:
        return as_numbers(cells)
    numbers, values = np.zeros(len(there)), cells.values[there]
    if isinstance(codec, DateCodec):
        numbers[there] = codec.instants_of(values).astype("datetime64[us]").astype(np.int64)
    else:
        numbers[there] = codec.outcomes_of(values) if values.dtype == object else values
    return numbers


class Rules(Sequence[Rule]):
    """The rules that a table keeps; prints as a table. `KDMTable.rules_` has it.

    With `table` as in the example of `KDMTable`, whose columns keep no rule:

    >>> len(table.rules_)
    0
    """

    def __init__(self, rules: Sequence[Rule] = ()) -> None:
        self._rules = tuple(rules)

    def __getitem__(self, index: Any) -> Any:
        return self._rules[index]

    def __len__(self) -> int:
        return len(self._rules)

    def __iter__(self) -> Iterator[Rule]:
        return iter(self._rules)

    def broken(self, schema: Any, cells: Mapping[str, RawColumn]) -> dict[str, np.ndarray]:
        """The rows that break each rule whose cells are there, by the text of the rule."""
        there = [rule for rule in self if all(name in cells for name in rule.columns)]
        return {str(rule): rule.broken(schema, cells) for rule in there}

    def config(self) -> list[dict[str, Any]]:
        """A JSON-ready description."""
        return [rule.config() for rule in self]

    def __repr__(self) -> str:
        return text_table(RULE_HEADER, [rule.line for rule in self]) if self._rules else "no rules"

    def __rich__(self) -> Any:
        return rich_table(RULE_HEADER, [rule.line for rule in self])


NO_RULES = Rules()


def read_rule(text: Any, names: Collection[str] | None, **counts: Any) -> Rule:
    """The rule that a text states.

    Args:
        text: for example `zip -> city`, `low <= high` or `total = price + tax`.
        names: of all columns; None: those in the text exist.
        counts: attributes of the rule.
    """
    sign, left, right = read_statement(text, names)
    if sign == "->":
        return FunctionRule(source=left, target=right, **counts)
    if sign == "=":
        return FormulaRule(target=left, expression=right, **counts)
    return OrderRule(low=left, high=right, strict=sign == "<", **counts)


def rules_from_config(config: Sequence[Mapping[str, Any]], names: Collection[str]) -> Rules:
    """The rules between columns of these names that `config` describes."""
    counts = ("n_rows", "exceptions", "is_given")
    return Rules([read_rule(one["text"], names, **{name: one[name] for name in counts}) for one in config])
