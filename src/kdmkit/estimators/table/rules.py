"""Rules between columns: what they say, how people write them, and which of them a table keeps."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kdmkit._core.checks import bad_argument, did_you_mean
from kdmkit.estimators.table.derived import breaks_function
from kdmkit.estimators.table.display import rich_table, text_table
from kdmkit.estimators.table.frames.storage import RawColumn

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
        """By the text of every rule whose cells are there, the rows that break it."""
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


def quoted(name: str) -> str:
    """A column's name in the text of a rule: in backticks unless it is a word."""
    return name if name.replace("_", "a").replace(".", "a").isalnum() else f"`{name.replace('`', '``')}`"


# ---- text

_ARROW = re.compile(r"\s*(?:->|→)\s*")


def read_rule(text: Any, names: Collection[str] | None, **counts: Any) -> Rule:
    """The rule that a text states.

    Args:
        text: for example `zip -> city`.
        names: of all columns; None: those in the text exist.
        counts: attributes of the rule.
    """
    if not isinstance(text, str):
        raise TypeError(bad_argument("rules", 'texts such as "zip -> city"', repr(text)))
    sides = _ARROW.split(text.strip())
    if len(sides) != 2:
        raise ValueError(bad_argument("rules", 'a rule such as "zip -> city"', repr(text)))
    source, target = (_name(side, names, text) for side in sides)
    return FunctionRule(source=source, target=target, **counts)


def _name(word: str, names: Collection[str] | None, text: str) -> str:
    name = word[1:-1].replace("``", "`") if word[:1] == word[-1:] == "`" else word
    if names is not None and name not in names:
        raise ValueError(
            bad_argument(f"rules: {text!r}", f"a column of the table{did_you_mean(name, names)}", repr(name))
        )
    return name


def rules_from_config(config: Sequence[Mapping[str, Any]]) -> Rules:
    """The rules that `config` describes."""
    counts = ("n_rows", "exceptions", "is_given")
    return Rules([read_rule(one["text"], None, **{name: one[name] for name in counts}) for one in config])
