"""The query language: `P(price | 0.5 <= carat <= 1, cut in {Ideal, Good})`, read into events.

    query      :=  "P(" target ["|" event] ")"  or the same without "P(" and ")"
    target     :=  column  or  event
    event      :=  either {"," either}                  (a comma is a loose "and")
    either     :=  both {"or" both}
    both       :=  single {"and" single}
    single     :=  {"not"} ( "(" event ")"  |  condition  |  "true"  |  "false" )
    condition  :=  term comparison term [comparison term]
                |  subject ["not"] "in" set-or-range
                |  subject ["not"] "between" value "and" value
                |  subject "is" ["not"] "missing"
    comparison :=  "<" | "<=" | ">" | ">=" | "=" | "!="
    term       :=  subject  |  value
    subject    :=  column  |  ("year" | "month" | "weekday" | "day" | "hour") "(" column ")"
    set        :=  "{" value {"," value} "}"
    range      :=  "[" or "("  value "," value  "]" or ")"

Columns and values are words, or texts in quotes. Backticks always mean a column; on the right, "…" and '…'
always mean a value, and a word is a column only if it is no value of the column on the left.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kdmkit.distributions.event_text import DATE_PARTS, KEYWORDS, DatePart, Key
from kdmkit.distributions.events import CERTAIN, IMPOSSIBLE, All, AnyOf, Condition, Event, Not
from kdmkit.estimators.table.literals import is_number
from kdmkit.estimators.table.vocabulary import (
    ColumnSyntax,
    QueryError,
    Token,
    Vocabulary,
    error_at,
    shown,
    span,
    tokenize,
)
from kdmkit.kernels.regions import Interval, Missing, OneOf, Region, interval

__all__ = ["ColumnSyntax", "Query", "QueryError", "error_at", "parse_event", "parse_query"]

_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!="}
_CLOSING = {"{": ("}",), "[": ("]", ")"), "(": ("]", ")")}
_OPERANDS = ("word", "value", "name")
_CONSTANTS = {"true": CERTAIN, "false": IMPOSSIBLE}
_MISSING = ("missing", "null", "na")
_US_DATE = re.compile(r"[A-Za-z]{3,9}\.? \d{1,2}(?:st|nd|rd|th)?, \d{4}")
_DEEPEST = 60
_LONGEST_NUMBER = 400


@dataclass(frozen=True)
class Query:
    """A query: the distribution of a column, or the probability of an event.

    Args:
        target: the column whose distribution is wanted; None for the probability of an event.
        event: the event; certain if there is a target.
        given: the evidence.
    """

    target: str | None
    event: Event = CERTAIN
    given: Event = CERTAIN


def parse_query(text: str, columns: Mapping[str, ColumnSyntax]) -> Query:
    """The query that `text` states.

    >>> query = parse_query("P(price | 0.5 <= Carat < 1)", {"price": ColumnSyntax(), "carat": ColumnSyntax()})
    >>> query.target, str(query.given)
    ('price', 'carat in [0.5, 1)')
    """
    return _Parser(text, columns).query()


def parse_event(text: str, columns: Mapping[str, ColumnSyntax]) -> Event:
    """The event that conditions state, as they stand behind the bar of a query.

    >>> columns = {"cut": ColumnSyntax("levels", ["Ideal", "Good"]), "price": ColumnSyntax()}
    >>> parse_event("cut != ideal", columns)
    Not(event=Condition(key='cut', region=OneOf(['Ideal'])))
    >>> str(parse_event("not (price between 2k and 20,000 or cut is missing), price > 5", columns))
    'not (price in [2000, 20000] or cut is missing) and price > 5'
    """
    parser = _Parser(text, columns)
    event = parser.event()
    if parser.here.kind != "end":
        raise parser.error(parser.here, "',', 'and', 'or' or the end of the query")
    return event


class _Parser:
    """Reads tokens from left to right; every method leaves `here` behind what it has read."""

    def __init__(self, text: str, columns: Mapping[str, ColumnSyntax]) -> None:
        self.text, self.columns = text, Vocabulary(text, columns)
        self.tokens, self.depth = tokenize(text), 0
        self.move(0)

    # ---- moving

    def move(self, place: int) -> None:
        self.place, self.here = place, self.tokens[place]

    def take(self) -> Token:
        token = self.here
        if token.kind != "end":
            self.place += 1
            self.here = self.tokens[self.place]
        return token

    def skip(self, kind: str) -> bool:
        """Whether a token of this kind is here; it is taken."""
        return self.here.kind == kind and bool(self.take())

    def error(self, token: Token, wanted: str, got: str | None = None) -> QueryError:
        return error_at(self.text, token, wanted, got)

    def expect(self, *kinds: str) -> Token:
        if self.here.kind not in kinds:
            raise self.error(self.here, " or ".join(map(repr, kinds)))
        return self.take()

    # ---- queries

    def query(self) -> Query:
        start = self.here
        wrapped = start.kind == "word" and start.text.lower() in ("p", "pr") and self.tokens[1].kind == "("
        self.move(2 if wrapped else 0)
        target = self.target()
        event: Event = self.event() if target is None else CERTAIN
        given: Event = CERTAIN
        has_bar = self.skip("|")
        if has_bar:
            given = self.event()
        if wrapped and not self.skip(")"):
            raise self.error(self.here, "',', 'and', 'or' or ')'" if has_bar else "'|' or ')'")
        if self.here.kind != "end":
            raise self.error(self.here, "the end of the query" if wrapped else "',', 'and', '|' or the end")
        return Query(target, event, given)

    def target(self) -> str | None:
        """The name of a column that stands alone; None for an event, which is left to be read."""
        start = self.place
        if self.here.kind not in _OPERANDS:
            return None
        token = self.operand()
        alone = self.here.kind in ("end", "|", ")", ",")
        if not alone or (token.text in _CONSTANTS and self.columns.subject(token, exact=True) is None):
            self.move(start)
            return None
        if self.here.kind == ",":
            raise self.error(self.here, "one column, or conditions: P(a > 1, b = 2 | …)")
        key = self.columns.key(token)
        if not isinstance(key, str):
            raise self.error(token, "a column, or a condition such as month(date) = 7")
        return key

    # ---- events

    def event(self) -> Event:
        event = self.joined(",", "or", "and")
        if _depth(event) > _DEEPEST:
            raise self.too_deep(self.here)
        return event

    def joined(self, word: str, *tighter: str) -> Event:
        """Events between which a word stands."""
        parts = [self.joined(*tighter) if tighter else self.single()]
        while self.here.kind == word:
            self.take()
            parts.append(self.joined(*tighter) if tighter else self.single())
        if len(parts) == 1:
            return parts[0]
        kind = AnyOf if word == "or" else All
        flat = [one for part in parts for one in (part.parts if type(part) is kind else (part,))]
        return flat[0] if len(flat) == 1 else kind(tuple(flat))

    def single(self) -> Event:
        negated = False
        while self.here.kind == "not":
            self.take()
            negated = not negated
        event = self.group() if self.here.kind == "(" else self.condition()
        return ~event if negated else event

    def group(self) -> Event:
        opening, self.depth = self.take(), self.depth + 1
        if self.depth > _DEEPEST:
            raise self.too_deep(opening)
        event = self.joined(",", "or", "and")
        if not self.skip(")"):
            raise self.error(self.here, "',', 'and', 'or' or ')'")
        self.depth -= 1
        return event

    def too_deep(self, token: Token) -> QueryError:
        return self.error(token, f"conditions nested at most {_DEEPEST} deep", "more")

    # ---- conditions

    def condition(self) -> Event:
        first = self.operand(is_first=True)
        following = self.here.kind
        if following in _MIRRORED:
            return self.comparison(first)
        is_constant = first.kind == "word" and first.text in _CONSTANTS
        if is_constant and following not in ("is", "in", "not", "between"):
            return _CONSTANTS[first.text]
        if following == "is":
            return self.emptiness(first)
        negated = self.skip("not")
        if self.here.kind == "between":
            return self.between(first, negated)
        if self.here.kind == "in":
            return self.membership(first, negated)
        wanted = "a comparison (<, <=, >, >=, =, !=), 'in', 'between' or 'is missing'"
        raise self.error(self.here, "'in' or 'between'" if negated else wanted)

    def comparison(self, left: Token) -> Event:
        sign, right = self.take(), self.operand()
        if self.here.kind in _MIRRORED:
            return self.chain(left, sign, right, self.take(), self.operand())
        return _compared(*self.relation(left, sign, right))

    def chain(self, left: Token, sign: Token, middle: Token, second: Token, right: Token) -> Event:
        """low < column < high, or two comparisons with columns: 0 < column < other."""
        if second.kind[0] not in "<>" or sign.kind[0] != second.kind[0] or self.here.kind in _MIRRORED:
            raise self.error(second, "two comparisons in one direction: 0.5 <= carat <= 1")
        is_column = self.columns.subject(left) is not None
        if all(self.columns.subject(term) is None for term in (middle, right)) and is_column:
            raise self.error(second, "',', 'and' or the column between its ends: 0.5 <= carat <= 1")
        steps = [self.relation(left, sign, middle), self.relation(middle, second, right)]
        (key, over, low), (other, under, high) = steps if sign.kind[0] == "<" else steps[::-1]
        if key != other or over[0] + under[0] != "><":
            return All(tuple([_compared(*step) for step in steps]))
        return _event(key, self.range(left, low, high, over == ">", under == "<"))

    def relation(self, left: Token, sign: Token, right: Token) -> tuple[Key, str, Any]:
        """The subject of a comparison, the sign behind it, and a value, which is 0 for a pair of columns."""
        kind = sign.kind
        if self.columns.is_mirrored(left, right):
            left, kind, right = right, _MIRRORED[kind], left
        key = self.columns.key(left)
        if self.columns.is_second_subject(key, right):
            return self.columns.pair(key, left, right), kind, 0
        if kind in ("=", "!="):
            return key, kind, self.columns.value(key, right)
        self.columns.check_order(key, right, sign.text)
        return key, kind, self.columns.end(key, right, is_low=kind[0] == ">")

    def membership(self, first: Token, negated: bool) -> Event:
        """column in {…}, column in [low, high]."""
        key = self.columns.key(first)
        self.take()
        opening = self.expect(*_CLOSING)
        terms = [self.operand(inside=key)]
        while self.here.kind == ",":
            self.take()
            terms.append(self.operand(inside=key))
        closing = self.expect(*_CLOSING[opening.kind])
        syntax = self.columns.syntax(key)
        is_range = syntax.ordered and len(terms) == 2 if syntax.kind == "levels" else True
        if opening.kind == "{" or not is_range:
            return _event(
                key, OneOf(dict.fromkeys([self.columns.value(key, term) for term in terms])), negated
            )
        place = span(self.text, opening, closing)
        if len(terms) != 2:
            raise self.error(place, "two ends in a range (braces make a set)", str(len(terms)))
        low, high = (
            self.columns.end(key, terms[0], is_low=True),
            self.columns.end(key, terms[1], is_low=False),
        )
        return _event(key, self.range(place, low, high, opening.kind == "(", closing.kind == ")"), negated)

    def between(self, first: Token, negated: bool) -> Event:
        """column between low and high."""
        key, word = self.columns.key(first), self.take()
        self.columns.check_order(key, word, word.text)
        low = self.operand()
        self.expect("and")
        high = self.operand()
        ends = self.columns.end(key, low, is_low=True), self.columns.end(key, high, is_low=False)
        return _event(key, self.range(span(self.text, low, high), *ends, False, False), negated)

    def emptiness(self, first: Token) -> Event:
        """column is [not] missing."""
        key = self.columns.key(first)
        self.take()
        negated = self.skip("not")
        if self.here.text.lower() not in _MISSING:
            raise self.error(self.here, "'missing'")
        self.take()
        return _event(key, Missing, negated)

    def range(self, place: Token, low: Any, high: Any, above: bool, below: bool) -> Interval:
        try:
            return interval(low, high, above=above, below=below)
        except ValueError as error:
            raise self.error(place, "a lower end below the upper one") from error

    # ---- terms

    def operand(self, *, is_first: bool = False, inside: Key | None = None) -> Token:
        """A column, a part of a date, or a value, all of one or several words.

        Args:
            is_first: whether a condition starts here, so that a keyword is no word.
            inside: the subject of a set or range, in which commas are between values.
        """
        token = self.here
        if token.kind not in _OPERANDS and (is_first or token.kind not in KEYWORDS):
            wanted = "a condition such as 0.5 <= carat <= 1" if is_first else "a value or a column"
            raise self.error(token, wanted)
        self.take()
        if token.kind != "word":
            return token._replace(kind="word") if token.kind in KEYWORDS else token
        if self.here.kind == "(":
            return self.part(token)
        return self.words(token, inside) if self.here.kind in ("word", ",") else token

    def words(self, token: Token, inside: Key | None = None) -> Token:
        """All words from one on: a name or a value of several words is one."""
        while self.here.kind == "word" or (self.here.kind == "," and self.is_inner_comma(token, inside)):
            between = self.text[self.take().start : self.here.start] if self.here.kind == "," else " "
            other = self.take()
            token = Token("word", f"{token.text}{between}{other.text}", token.start, other.stop)
        return token

    def is_inner_comma(self, token: Token, inside: Key | None) -> bool:
        """Whether a comma is in a number, 20,000, or in a date, July 4, 2015."""
        other = self.tokens[self.place + 1]
        is_possible = other.kind == "word" and token.text[-1].isalnum() and other.text[0].isdigit()
        if not is_possible or len(token.text) > _LONGEST_NUMBER:
            return False
        is_date = inside is None or self.columns.syntax(inside).kind == "date"
        if is_date and _US_DATE.fullmatch(f"{token.text}, {other.text}"):
            return True
        return inside is None and other.start == token.stop + 1 and is_number(f"{token.text},{other.text}")

    def part(self, word: Token) -> Token:
        """month(date): a part of a column of dates."""
        name = word.text.lower()
        if name not in DATE_PARTS:
            raise self.error(word, f"a part of a date ({', '.join(DATE_PARTS)}) before '('")
        self.take()
        token = self.expect(*_OPERANDS)
        token = self.words(token) if token.kind == "word" else token
        column = self.columns.key(token)
        kind = self.columns.syntax(column).kind
        if not isinstance(column, str) or (kind != "date" and (kind, name) != ("time", "hour")):
            raise self.error(token, f"a column that has a {name}", f"{shown(token.text)} ({kind})")
        place = span(self.text, word, self.expect(")"))
        return place._replace(kind="part", part=DatePart(column, name))


def _compared(key: Key, sign: str, value: Any) -> Event:
    """The event that a variable compares with a value; infinite ends are None."""
    if sign in ("=", "!="):
        return _event(key, OneOf([value]), sign == "!=")
    low, high = (value, None) if sign[0] == ">" else (None, value)
    return _event(key, Interval(low, high, "both" if sign.endswith("=") else "neither"))


def _event(key: Key, region: Region, negated: bool = False) -> Event:
    if isinstance(region, Interval) and region.low is None and region.high is None:
        region, negated = Missing, not negated
    condition = Condition(key, region)
    return Not(condition) if negated else condition


def _depth(event: Event) -> int:
    """How deep conjunctions, disjunctions and negations are nested."""
    if type(event) is All or type(event) is AnyOf:
        return 1 + max([_depth(part) for part in event.parts if type(part) is not Condition], default=0)
    return 1 + _depth(event.event) if type(event) is Not else 0
