"""The words of a query, and errors that point at one of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from kdmkit._core.checks import bad_argument

# A word may be a name, a level, a number or a date: 0.5, 1e-3, -7, hours-per-week, 2024-02-29T12:30.
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<quoted> "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' | `[^`]*` )
      | (?P<symbol> <= | >= | != | == | [≤≥≠∈<>=(){}\[\],|&] )
      | (?P<word> [+-]?[\w.?$€%][\w.:+\-/%?]* )
    )""",
    re.VERBOSE,
)
# Signs that mean the same.
_SAME = {"==": "=", "≤": "<=", "≥": ">=", "≠": "!=", "∈": "in", "&": ","}


class QueryError(ValueError):
    """A query that cannot be read; the message shows the query and points at the place."""


@dataclass(frozen=True)
class Token:
    """A piece of a query: what it says, and where it is."""

    kind: Literal["word", "quoted", "symbol", "end"]
    text: str
    start: int
    stop: int

    def is_symbol(self, *symbols: str) -> bool:
        return self.kind == "symbol" and self.text in symbols

    def is_keyword(self, *words: str) -> bool:
        return self.kind == "word" and self.text.lower() in words

    @property
    def is_value(self) -> bool:
        return self.kind in ("word", "quoted")


def tokenize(text: str) -> list[Token]:
    """The tokens of a query, and one more at its end.

    >>> [token.text for token in tokenize("0.5 <= 'price in $' <= 1e3")]
    ['0.5', '<=', 'price in $', '<=', '1e3', '']
    """
    tokens, place = [], 0
    end = len(text.rstrip())
    while place < end:
        found = _TOKEN.match(text, place)
        if found is None:
            raise _unreadable(text, place + len(text[place:]) - len(text[place:].lstrip()))
        tokens.append(_token(found))
        place = found.end()
    return [*tokens, Token("end", "", end, end + 1)]


def _token(found: re.Match[str]) -> Token:
    quoted, symbol, word = found.group("quoted", "symbol", "word")
    if quoted:
        text = quoted[1:-1] if quoted[0] == "`" else re.sub(r"\\(.)", r"\1", quoted[1:-1])
        return Token("quoted", text, *found.span("quoted"))
    if symbol:
        text = _SAME.get(symbol, symbol)
        return Token("word" if text == "in" else "symbol", text, *found.span("symbol"))
    return Token("word", word, *found.span("word"))


def _unreadable(text: str, place: int) -> QueryError:
    if text[place] in "\"'`":
        return error_at(text, Token("end", "", place, len(text)), "a closing quote", "none")
    return error_at(text, Token("end", "", place, place + 1), "a name, a value or a sign", repr(text[place]))


def error_at(text: str, token: Token, wanted: str, got: str | None = None) -> QueryError:
    """An error that shows the query with marks under the token.

    >>> print(error_at("P(a | b)", Token("word", "b", 6, 7), "a condition"))
    query: expected a condition, got 'b'
      P(a | b)
            ^
    """
    if got is None:
        got = "its end" if token.kind == "end" else repr(token.text)
    line = re.sub(r"\s", " ", text)
    marks = " " * token.start + "^" * max(1, token.stop - token.start)
    return QueryError(f"{bad_argument('query', wanted, got)}\n  {line}\n  {marks}")
