"""What the words of a query mean: columns, parts of dates, values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Literal

from kdmkit.distributions.event_text import DatePart, Key, Pair
from kdmkit.estimators.table.literals import MONTHS, WEEKDAYS, is_number, number_of_name, read_number
from kdmkit.estimators.table.tokens import QueryError, Token, error_at, shown, similar, span

_INFINITE = {f"{sign}{word}": sign in ("-", "−") for sign in ("", "+", "-", "−") for word in ("inf", "∞")}
_PART_NAMES = {"month": (MONTHS, 1), "weekday": (WEEKDAYS, 0)}
_LONGEST_VALUE = 1_000
_MOST_LISTED = 10


@dataclass(frozen=True)
class ColumnSyntax:
    """How conditions on a column are written.

    Args:
        kind: what its values are. Columns that are left out of the model have none.
        levels: all levels in their order, for kind "levels".
        ordered: whether the order of the levels means something.
        read: a date or a time from its text. A ValueError says what was expected: "a date".
        reason: why the column is left out.
        percent: the value of 1 %, for kind "number". With the default, 5% is 0.05.
    """

    kind: Literal["number", "levels", "date", "time", "left out"] = "number"
    levels: Sequence[Any] | None = None
    ordered: bool = False
    read: Callable[[str], Any] | None = None
    reason: str = ""
    percent: float = 0.01

    def value(self, text: str) -> Any:
        """The value that a text means. A ValueError says what was expected."""
        if self.kind == "levels":
            return self._level(text)
        if len(text) > _LONGEST_VALUE:
            raise ValueError("a shorter text")
        return read_number(text, self.percent) if self.read is None else self.read(text)

    def compares_with(self, other: ColumnSyntax) -> bool:
        """Whether the values of two columns have one order."""
        if self.kind != "levels" or other.kind != "levels":
            return self.kind == other.kind
        return self.ordered and other.ordered and list(self.levels or ()) == list(other.levels or ())

    def _level(self, text: str) -> Any:
        """The level of that text, or the only one that differs in case alone, or the one of that number."""
        for levels, word in ((self._exact, text), (self._folded, text.casefold())):
            if word in levels:
                return levels[word]
        number = read_number(text) if self._numbers and is_number(text) else None
        if number not in self._numbers:
            raise ValueError("a level")
        return self._numbers[number]

    @cached_property
    def _exact(self) -> dict[str, Any]:
        return {str(level): level for level in self.levels or ()}

    @cached_property
    def _folded(self) -> dict[str, Any]:
        words = _unique((text.casefold(), level) for text, level in self._exact.items())
        if list(self._exact) == ["False", "True"]:
            no, yes = self._exact.values()
            words |= {"no": no, "0": no, "yes": yes, "1": yes}
        return words

    @cached_property
    def _numbers(self) -> dict[float, Any]:
        return {level: level for level in self.levels or () if isinstance(level, int | float)}


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """A dictionary of the keys that occur once."""
    found: dict[str, Any] = {}
    twice = set()
    for key, value in pairs:
        if key in found:
            twice.add(key)
        found[key] = value
    return {key: value for key, value in found.items() if key not in twice}


class Vocabulary:
    """Columns and values by the tokens of one query."""

    def __init__(self, text: str, columns: Mapping[str, ColumnSyntax]) -> None:
        self.text, self.columns = text, columns
        self._pairs: dict[tuple[Key, Key], Pair] = {}

    def syntax(self, key: Key) -> ColumnSyntax:
        return self.columns[_name(key)]

    def error(self, token: Token, wanted: str, got: str | None = None) -> QueryError:
        return error_at(self.text, token, wanted, got)

    @cached_property
    def _folded(self) -> dict[str, str]:
        return _unique((name.casefold(), name) for name in self.columns)

    def subject(self, token: Token, exact: bool = False) -> Key | None:
        """The column, or the part of a date, that a token names."""
        if token.part is not None or token.text in self.columns:
            return token.part or token.text
        return None if exact else self._folded.get(token.text.casefold())

    def key(self, token: Token) -> Key:
        key = self.subject(token)
        if key is None:
            raise self.error(token, "a column", shown(token.text) + similar(token.text, self.columns))
        syntax = self.syntax(key)
        if syntax.kind == "left out":
            got = f"{shown(_name(key))}, which is left out ({syntax.reason})"
            raise self.error(token, "a column of the model", got)
        return key

    def is_mirrored(self, left: Token, right: Token) -> bool:
        """Whether the subject is on the right: exact names go before those in another case."""
        for exact in (True, False):
            if left.kind == "name" or self.subject(left, exact) is not None:
                return False
            if right.kind == "name" or self.subject(right, exact) is not None:
                return True
        return is_number(left.text)

    def is_second_subject(self, key: Key, token: Token) -> bool:
        """Whether the other term of a comparison is no value."""
        if token.kind != "word":
            return token.kind != "value"
        if self.subject(token) is None:
            return False
        try:
            self.read(key, token)
        except ValueError:
            return True
        return False

    def pair(self, key: Key, left: Token, right: Token) -> Pair:
        """Two columns that are compared."""
        other = self.key(right)
        if (key, other) not in self._pairs:
            place = span(self.text, left, right)
            if not (isinstance(key, str) and isinstance(other, str)):
                raise self.error(place, "two columns, or a part of a date and a number")
            one, two = self.columns[key], self.columns[other]
            if not one.compares_with(two):
                wanted = "two columns of numbers, of dates, of times, or of the same ordered levels"
                raise self.error(place, wanted, f"{shown(key)} ({one.kind}) and {shown(other)} ({two.kind})")
            self._pairs[key, other] = Pair(key, other)
        return self._pairs[key, other]

    def check_order(self, key: Key, token: Token, sign: str) -> None:
        syntax = self.syntax(key)
        if syntax.kind == "levels" and not syntax.ordered:
            wanted = f"= or in {{…}} for {shown(_name(key))}, whose levels have no order"
            raise self.error(token, wanted, repr(sign))

    # ---- values

    def end(self, key: Key, token: Token, *, is_low: bool) -> Any:
        """An end of a range; None if it is infinite."""
        negative = _INFINITE.get(token.text.lower()) if token.kind == "word" else None
        if negative is None or self.syntax(key).kind == "levels":
            return self.value(key, token)
        if negative != is_low:
            raise self.error(token, "-inf as a lower end and inf as an upper one")
        return None

    def value(self, key: Key, token: Token) -> Any:
        try:
            return self.read(key, token)
        except ValueError as error:
            levels = self.syntax(key).levels
            place = shown(key) if isinstance(key, str) else str(key)
            got = shown(token.text)
            if levels is not None:
                listed = [shown(level) for level in islice(levels, _MOST_LISTED)]
                listed += ["…"] * (len(levels) > _MOST_LISTED)
                got += f"{similar(token.text, levels)}; its levels: {', '.join(listed)}"
            raise self.error(token, f"{error} {'of' if levels else 'for'} {place}", got) from error

    def read(self, key: Key, token: Token) -> Any:
        """The value that a token means. A ValueError says what was expected."""
        if token.kind == "name" or token.part:
            raise ValueError("a value")
        if not isinstance(key, DatePart):
            return self.syntax(key).value(token.text)
        names, first = _PART_NAMES.get(key.part, ((), 0))
        place = number_of_name(token.text, names)
        return read_number(token.text) if place is None else place + first


def _name(key: Key) -> str:
    return key if isinstance(key, str) else key[0]
