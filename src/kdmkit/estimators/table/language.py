"""The query language: `P(price | 0.5 <= carat <= 1, cut in {Ideal, Good})`.

    query      :=  "P(" targets ["|" conditions] ")"  or the same without "P(" and ")"
    targets    :=  column  or  conditions
    conditions :=  condition {("," or "and") condition}
    condition  :=  column comparison value  |  value comparison column [comparison value]
                |  column ["not"] "in" set  |  column "in" range
    comparison :=  "<" | "<=" | ">" | ">=" | "=" | "!="
    set        :=  "{" value {"," value} "}"
    range      :=  "[" or "("  value "," value  "]" or ")"

Names and values are words, or text in quotes: 'hours per week', ">50K". Conditions on one column are
combined.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kdmkit._core.checks import bad_argument, did_you_mean
from kdmkit.estimators.table.conditions import Among, ColumnSyntax, Condition, Query, Range, both

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
    """A piece of a query: its text and its place."""

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
        match = _TOKEN.match(text, place)
        if match is None:
            raise _unreadable(text, place + len(text[place:]) - len(text[place:].lstrip()))
        tokens.append(_token(match))
        place = match.end()
    return [*tokens, Token("end", "", end, end + 1)]


def _token(match: re.Match[str]) -> Token:
    quoted, symbol, word = match.group("quoted", "symbol", "word")
    if quoted:
        text = quoted[1:-1] if quoted[0] == "`" else re.sub(r"\\(.)", r"\1", quoted[1:-1])
        return Token("quoted", text, *match.span("quoted"))
    if symbol:
        text = _SAME.get(symbol, symbol)
        return Token("word" if text == "in" else "symbol", text, *match.span("symbol"))
    return Token("word", word, *match.span("word"))


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


_ORDER = ("<", "<=", ">", ">=")
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!="}
_OPENING, _CLOSING = ("{", "[", "("), ("}", "]", ")")


def parse_query(
    text: str, columns: Mapping[str, ColumnSyntax], left_out: Mapping[str, str] | None = None
) -> Query:
    """The query that `text` states.

    >>> query = parse_query("P(price | 0.5 <= carat < 1)", {"price": ColumnSyntax(), "carat": ColumnSyntax()})
    >>> query.target, str(query.given["carat"])
    ('price', '[0.5, 1.0)')
    """
    return _Parser(text, columns, left_out).query()


def parse_conditions(
    text: str, columns: Mapping[str, ColumnSyntax], left_out: Mapping[str, str] | None = None
) -> dict[str, Condition]:
    """Conditions by column, as they stand behind the bar of a query.

    >>> parse_conditions("cut = ideal", {"cut": ColumnSyntax(levels=["Ideal", "Good"])})
    {'cut': Among(values=('Ideal',))}
    """
    parser = _Parser(text, columns, left_out)
    conditions = parser.conditions()
    parser.expect_end()
    return conditions


class _Parser:
    """Reads tokens from left to right; every method leaves `place` behind what it has read."""

    def __init__(
        self, text: str, columns: Mapping[str, ColumnSyntax], left_out: Mapping[str, str] | None
    ) -> None:
        self.text, self.columns, self.left_out = text, columns, left_out or {}
        self.tokens, self.place = tokenize(text), 0

    # ---- moving

    @property
    def here(self) -> Token:
        return self.tokens[self.place]

    def ahead(self, steps: int = 1) -> Token:
        return self.tokens[min(self.place + steps, len(self.tokens) - 1)]

    def take(self) -> Token:
        token = self.here
        self.place = min(self.place + 1, len(self.tokens) - 1)
        return token

    def error(self, token: Token, wanted: str, got: str | None = None) -> QueryError:
        return error_at(self.text, token, wanted, got)

    def expect(self, *symbols: str) -> Token:
        if not self.here.is_symbol(*symbols):
            raise self.error(self.here, " or ".join(map(repr, symbols)))
        return self.take()

    def expect_end(self) -> None:
        if self.here.kind != "end":
            raise self.error(self.here, "',', 'and' or the end of the query")

    # ---- queries

    def query(self) -> Query:
        wrapped = self.here.is_keyword("p", "pr") and self.ahead().is_symbol("(")
        if wrapped:
            self.place += 2
        target, event = self.targets()
        given: dict[str, Condition] = {}
        if self.here.is_symbol("|"):
            self.take()
            given = self.conditions()
        if wrapped:
            if not self.here.is_symbol(")"):
                raise self.error(self.here, "',', 'and' or ')'" if given else "'|' or ')'")
            self.take()
        if self.here.kind != "end":
            raise self.error(self.here, "the end of the query" if wrapped else "',', 'and', '|' or the end")
        return Query(target, event, given)

    def targets(self) -> tuple[str | None, dict[str, Condition]]:
        """One column, or an event."""
        after = self.ahead()
        if self.here.is_value and (after.kind == "end" or after.is_symbol("|", ")", ",")):
            target = self.column(self.take())
            if self.here.is_symbol(","):
                raise self.error(self.here, "one column, or conditions: P(a > 1, b = 2 | …)")
            return target, {}
        return None, self.conditions()

    # ---- conditions

    def conditions(self) -> dict[str, Condition]:
        conditions: dict[str, Condition] = {}
        while True:
            first = self.here
            name, condition = self.condition()
            if name in conditions:
                together = both(conditions[name], condition)
                if together is None:
                    raise self.error(first, f"conditions on {name!r} that a value can satisfy", "none")
                condition = together
            conditions[name] = condition
            if not (self.here.is_symbol(",") or self.here.is_keyword("and")):
                return conditions
            self.take()

    def condition(self) -> tuple[str, Condition]:
        if not self.here.is_value:
            raise self.error(self.here, "a condition such as 0.5 <= carat <= 1")
        first = self.take()
        if self.here.is_keyword("in", "not"):
            return self.membership(first)
        sign = self.comparison()
        second = self.operand()
        if self.here.is_symbol(*_MIRRORED):
            return self.chain(first, sign, second)
        if not self.is_column(first) and self.is_column(second):
            first, sign, second = second, _MIRRORED[sign], first
        name = self.column(first)
        return name, self.compared(name, sign, second)

    def chain(self, low: Token, sign: str, middle: Token) -> tuple[str, Condition]:
        """low < column < high."""
        if self.is_column(low) and not self.is_column(middle):
            raise self.error(self.here, "',', 'and' or the column between its ends: 0.5 <= carat <= 1")
        name = self.column(middle)
        place = self.here
        other = self.comparison()
        if sign not in _ORDER or other not in _ORDER or sign[0] != other[0]:
            raise self.error(place, "two comparisons in one direction: 0.5 <= carat <= 1")
        high = self.operand()
        together = both(self.compared(name, _MIRRORED[sign], low), self.compared(name, other, high))
        if together is None:
            raise self.error(low, "a lower end below the upper one", repr(low.text))
        return name, together

    def comparison(self) -> str:
        if not self.here.is_symbol(*_MIRRORED):
            raise self.error(self.here, "a comparison (<, <=, >, >=, =, !=) or 'in'")
        return self.take().text

    def operand(self) -> Token:
        if not self.here.is_value:
            raise self.error(self.here, "a value or a column")
        return self.take()

    def compared(self, name: str, sign: str, token: Token) -> Condition:
        value = self.value(name, token)
        if sign == "=":
            return Among((value,))
        if sign == "!=":
            return self.others(name, (value,), token)
        if self.columns[name].levels is not None:
            return self.between_levels(name, sign, value, token)
        if sign[0] == "<":
            return Range(high=value, below=sign == "<")
        return Range(low=value, above=sign == ">")

    def between_levels(self, name: str, sign: str, level: Any, token: Token) -> Condition:
        """The levels above or below one of them."""
        if not self.columns[name].ordered:
            raise self.error(token, f"= or in {{…}} for {name!r}, whose levels have no order", repr(sign))
        levels = tuple(self.columns[name].levels or ())
        place = levels.index(level)
        kept = levels[: place + (sign == "<=")] if sign[0] == "<" else levels[place + (sign == ">") :]
        return self.among(name, kept, token)

    def others(self, name: str, values: tuple[Any, ...], token: Token) -> Condition:
        """All levels but some."""
        levels = self.columns[name].levels
        if levels is None:
            raise self.error(token, f"a range: {name!r} has no levels to choose from")
        return self.among(name, tuple(level for level in levels if level not in values), token)

    def among(self, name: str, kept: tuple[Any, ...], token: Token) -> Among:
        if not kept:
            raise self.error(token, f"a level of {name!r} that is left", "none")
        return Among(kept)

    def membership(self, first: Token) -> tuple[str, Condition]:
        """column in {…}, column not in {…}, column in [low, high]."""
        name = self.column(first)
        negated = self.here.is_keyword("not")
        if negated:
            self.take()
        if not self.here.is_keyword("in"):
            raise self.error(self.here, "'in'")
        self.take()
        opening = self.expect(*_OPENING)
        values = [self.value(name, self.operand())]
        while self.here.is_symbol(","):
            self.take()
            values.append(self.value(name, self.operand()))
        closing = self.expect(*_CLOSING)
        if negated:
            return name, self.others(name, tuple(values), opening)
        if self._is_set(name, opening, closing):
            return name, Among(tuple(dict.fromkeys(values)))
        return name, self.range(name, values, opening, closing)

    def _is_set(self, name: str, opening: Token, closing: Token) -> bool:
        """Whether brackets make a set: braces always, all brackets for levels, which have no ranges."""
        if (opening.text == "{") != (closing.text == "}"):
            raise self.error(closing, "'}'" if opening.text == "{" else "']' or ')'")
        return opening.text == "{" or self.columns[name].levels is not None

    def range(self, name: str, values: list[Any], opening: Token, closing: Token) -> Range:
        place = Token("word", "", opening.start, closing.stop)
        if len(values) != 2:
            raise self.error(place, "two ends in a range (braces make a set)", str(len(values)))
        between = Range(values[0], values[1], above=opening.text == "(", below=closing.text == ")")
        if between.is_empty:
            raise self.error(place, "a lower end below the upper one", str(between))
        return between

    # ---- columns and values

    def is_column(self, token: Token) -> bool:
        return token.text in self.columns

    def column(self, token: Token) -> str:
        if token.text in self.left_out:
            got = f"{token.text!r}, which is left out ({self.left_out[token.text]})"
            raise self.error(token, "a column of the model", got)
        if not self.is_column(token):
            raise self.error(token, "a column", f"{token.text!r}{did_you_mean(token.text, self.columns)}")
        return token.text

    def value(self, name: str, token: Token) -> Any:
        syntax = self.columns[name]
        if syntax.levels is not None:
            return self.level(name, syntax.levels, token)
        try:
            return syntax.read(token.text)
        except ValueError as error:
            raise self.error(token, f"{syntax.wanted} for {name!r}") from error

    def level(self, name: str, levels: Sequence[Any], token: Token) -> Any:
        """The level of that name, or the only one that differs in upper and lower case alone."""
        for level in levels:
            if str(level) == token.text:
                return level
        alike = [level for level in levels if str(level).lower() == token.text.lower()]
        if len(alike) == 1:
            return alike[0]
        raise self.error(token, f"a level of {name!r}", f"{token.text!r}{did_you_mean(token.text, levels)}")
