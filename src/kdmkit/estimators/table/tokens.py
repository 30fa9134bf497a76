"""Tokens of the query language, and errors that point at them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice
from typing import Any, NamedTuple

from kdmkit._core.checks import bad_argument, did_you_mean
from kdmkit.distributions.event_text import KEYWORDS, DatePart

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


class QueryError(ValueError):
    """A query that cannot be read; the message shows the query and points at the place."""


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


def tokenize(text: str) -> list[Token]:
    """The tokens of a query, and one more at its end.

    >>> [token.text for token in tokenize("0.5 <= 'price in $' <= 1e3")]
    ['0.5', '<=', 'price in $', '<=', '1e3', '']
    """
    _check_text(text)
    tokens = []
    for match in _TOKEN.finditer(text):
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


def similar(text: str, options: Iterable[Any]) -> str:
    """A hint at a similar one of the first short options."""
    if len(text) > _LONGEST_SHOWN:
        return ""
    first = islice(options, _MOST_SEARCHED)
    return did_you_mean(text, [option for option in first if len(str(option)) <= _LONGEST_SHOWN])
