"""The words of a query, what they mean, and errors that point at them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Literal, NamedTuple

from kdmkit._core.checks import bad_argument, did_you_mean
from kdmkit.distributions.event_text import KEYWORDS, DatePart, Key, Pair
from kdmkit.estimators.table.literals import (
    MONTHS,
    WEEKDAYS,
    is_number,
    number_of_name,
    plain_number,
    read_number,
)

# A word may be a name, a level, a number or a date: 0.5, 1e-3, -7, hours-per-week, 2024-02-29T12:30.
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<word> [+\-−]?[\w.?$€£¥%∞][\w.:+\-/%?$€£¥]* )
      | (?P<symbol> <= | >= | <> | != | == | && | [≤≥≠∈<>=(){}\[\],|&] )
      | (?P<value> "(?:[^"\\]++|\\.)*+" | '(?:[^'\\]++|\\.)*+' )
      | (?P<name> `(?:[^`]++|``)*+` )
      | (?P<unreadable> \S )
    )""",
    re.VERBOSE | re.DOTALL,
)
# Signs that mean the same.
_SAME = {"==": "=", "≤": "<=", "≥": ">=", "≠": "!=", "<>": "!=", "∈": "in", "&": "and", "&&": "and"}
_KEYWORDS = {form(word): word for word in KEYWORDS for form in (str.lower, str.upper, str.capitalize)}
# What one query may have.
_MOST_CHARACTERS = 200_000
_MOST_TOKENS = 12_500
# Texts in error messages, and the options that are searched for a similar one.
_LONGEST_SHOWN = 60
_MOST_SEARCHED = 1_000
_INFINITE = {f"{sign}{word}": sign in ("-", "−") for sign in ("", "+", "-", "−") for word in ("inf", "∞")}
_PART_NAMES = {"month": (MONTHS, 1), "weekday": (WEEKDAYS, 0)}
_LONGEST_VALUE = 1_000
_MOST_LISTED = 10


# ---- tokens


class QueryError(ValueError):
    """A query that cannot be read, or has no answer.

    Where it cannot be read, the message shows the query and points at the place. `KDMTable.query` raises it.

    With `table` as in the example of `KDMTable`:

    >>> table.query("P(size | weight > )")
    Traceback (most recent call last):
    kdmkit.estimators.table.vocabulary.QueryError: query: expected a value or a column, got ')'
      P(size | weight > )
                        ^
    """


class Token(NamedTuple):
    """A piece of a query: its text and its place.

    Attributes:
        kind: "word", "value" (in quotes), "name" (in backticks), "end", or the keyword or sign that it is.
        part: the part of a date, if it is one.
    """

    kind: str
    text: str
    start: int
    stop: int
    part: DatePart | None = None


def tokenize(text: str, pattern: re.Pattern[str] = _TOKEN) -> list[Token]:
    """The tokens of a query, and one more at its end.

    Args:
        pattern: with the groups "word", "symbol", "value", "name" and "unreadable".

    >>> [token.text for token in tokenize("0.5 <= 'price in $' <= 1e3")]
    ['0.5', '<=', 'price in $', '<=', '1e3', '']
    """
    _check_text(text)
    tokens = []
    for match in pattern.finditer(text):
        kind, stop = match.lastgroup or "", match.end()
        piece = match[kind]
        start = stop - len(piece)
        if kind == "word":
            kind = _KEYWORDS.get(piece, kind)
        elif kind == "symbol":
            kind = _SAME.get(piece, piece)
        elif kind == "unreadable":
            raise _unreadable(text, start)
        else:
            piece = _unquoted(piece)
        tokens.append(Token(kind, piece, start, stop))
        if len(tokens) > _MOST_TOKENS:
            raise error_at(text, tokens[-1], f"at most {_MOST_TOKENS} words and signs", "more")
    end = len(text.rstrip())
    return [*tokens, Token("end", "", end, end + 1)]


def _unquoted(piece: str) -> str:
    mark, inside = piece[0], piece[1:-1]
    if mark == "`":
        return inside.replace("``", "`")
    if "\\" not in inside:
        return inside
    return "\\".join(part.replace("\\", "") for part in inside.split("\\\\"))


def _check_text(text: str) -> None:
    if len(text) > _MOST_CHARACTERS:
        end = Token("end", "", _MOST_CHARACTERS, _MOST_CHARACTERS + 1)
        raise error_at(text, end, f"at most {_MOST_CHARACTERS} characters", str(len(text)))
    if bad := re.search("[\0\ud800-\udfff]", text):
        raise error_at(text, Token("word", bad[0], *bad.span()), "signs that can be written")


def _unreadable(text: str, place: int) -> QueryError:
    if text[place] in "\"'`":
        return error_at(text, Token("end", "", place, len(text)), "a closing quote", "none")
    return error_at(text, Token("end", "", place, place + 1), "a name, a value or a sign", repr(text[place]))


def error_at(text: str, token: Token, wanted: str, got: str | None = None) -> QueryError:
    """An error that shows the query, or the part of a long one, with marks under the token.

    >>> print(error_at("P(a | b)", Token("word", "b", 6, 7), "a condition"))
    query: expected a condition, got 'b'
      P(a | b)
            ^
    """
    if got is None:
        got = "its end" if token.kind == "end" else shown(token.text)
    first = max(0, token.start - _LONGEST_SHOWN) if len(text) > 3 * _LONGEST_SHOWN else 0
    line = text[first : first + 3 * _LONGEST_SHOWN]
    line = "".join(sign if sign.isprintable() else " " for sign in line)
    stop = min(token.stop - first, len(line) + 1)
    marks = " " * (token.start - first) + "^" * max(1, stop - (token.start - first))
    return QueryError(f"{bad_argument('query', wanted, got)}\n  {line}\n  {marks}")


def span(text: str, first: Token, last: Token) -> Token:
    """A token for an error about everything between two tokens."""
    start, stop = min(first.start, last.start), max(first.stop, last.stop)
    return Token("word", text[start:stop], start, stop)


def shown(value: Any) -> str:
    """A value in an error: not at full length if it is long."""
    text = str(value)
    return repr(value) if len(text) <= _LONGEST_SHOWN else repr(text[:_LONGEST_SHOWN] + "…")


def left_out(name: str, reason: str) -> str:
    """What an error says about a column that has no part in the model, with the way to take it in.

    >>> print(left_out("zip", "identifier"))
    'zip', which is left out (identifier): KDMTable(types={"zip": "category"}) takes it in
    """
    types = f'{{"{name}": "category"}}'
    return f"{shown(name)}, which is left out ({reason}): KDMTable(types={types}) takes it in"


def similar(text: str, options: Iterable[Any]) -> str:
    """A hint at a similar one of the first short options."""
    if len(text) > _LONGEST_SHOWN:
        return ""
    first = islice(options, _MOST_SEARCHED)
    return did_you_mean(text, [option for option in first if len(str(option)) <= _LONGEST_SHOWN])


# ---- columns and values


@dataclass(frozen=True)
class ColumnSyntax:
    """How conditions on a column are written.

    Args:
        kind: what its values are. Columns that are left out of the model have none.
        levels: all levels in their order, for kind "levels".
        ordered: whether the order of the levels means something.
        read: a date or a time from its text. A ValueError says what was expected: "a date".
        reason: why the column is left out.
    """

    kind: Literal["number", "levels", "date", "time", "left out"] = "number"
    levels: Sequence[Any] | None = None
    ordered: bool = False
    read: Callable[[str], Any] | None = None
    reason: str = ""

    def value(self, text: str) -> Any:
        """The value that a text means. A ValueError says what was expected."""
        if self.kind == "levels":
            return self._level(text)
        if len(text) > _LONGEST_VALUE:
            raise ValueError("a shorter text")
        return read_number(text) if self.read is None else self.read(text)

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
    values: dict[str, Any] = {}
    twice = set()
    for key, value in pairs:
        if key in values:
            twice.add(key)
        values[key] = value
    return {key: value for key, value in values.items() if key not in twice}


class Vocabulary:
    """Columns and values by the tokens of one query."""

    def __init__(self, text: str, columns: Mapping[str, ColumnSyntax]) -> None:
        self.text, self.columns = text, columns
        self._pairs: dict[tuple[Key, Key], Pair] = {}

    def syntax(self, key: Key) -> ColumnSyntax:
        return self.columns[key if isinstance(key, str) else key[0]]

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
            raise self.error(token, "a column of the model", left_out(_name(key), syntax.reason))
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
            syntax = self.syntax(key)
            # Plain numbers are those of Python: 1.234 is no thousand, whatever the writing of the column.
            number = None
            if token.kind == "word" and syntax.kind == "number":
                number = plain_number(token.text)
            return syntax.value(token.text) if number is None else number
        names, first = _PART_NAMES.get(key.part, ((), 0))
        place = number_of_name(token.text, names)
        return read_number(token.text) if place is None else place + first


def _name(key: Key) -> str:
    return key if isinstance(key, str) else key[0]
