"""The text of rules: `zip -> city`, `temp_min <= temp_max`, `total = parts + tax`, read into statements.

    rule    :=  column "->" column
             |  column ("<" | "<=" | ">" | ">=") column
             |  column "=" sum
    sum     :=  product {("+" | "-") product}
    product :=  factor {("*" | "/") factor}
    factor  :=  column  |  number  |  "(" sum ")"  |  "-" factor

Names are found as in queries; those with spaces or signs may stand in backticks.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from kdmkit._core.checks import bad_argument
from kdmkit.estimators.table.expressions import Constant, Expression, Operation, Reference
from kdmkit.estimators.table.literals import is_number, read_number
from kdmkit.estimators.table.vocabulary import QueryError, Token, error_at, shown, similar, span, tokenize

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<word> [\w.%$€£¥?] (?: [\w.:%$€£¥?+/] | [-−](?!>) )* )
      | (?P<symbol> -> | → | <= | >= | == | [≤≥<>=()+*/−-] )
      | (?P<value> "(?:[^"\\]++|\\.)*+" | '(?:[^'\\]++|\\.)*+' )
      | (?P<name> `(?:[^`]++|``)*+` )
      | (?P<unreadable> \S )
    )""",
    re.VERBOSE | re.DOTALL,
)
_SAME = {"→": "->", "−": "-", "×": "*"}
_SIGNS = ("->", "<=", ">=", "<", ">", "=")
_MIRRORED = {">": "<", ">=": "<="}
_DEEPEST = 60
_EXAMPLE = 'a rule such as "zip -> city", "low <= high" or "total = price + tax"'


class Statement(NamedTuple):
    """What a rule says.

    Attributes:
        sign: `"->"`, `"<"`, `"<="` or `"="`.
        left: a column.
        right: a column, or for `"="` an expression.
    """

    sign: str
    left: str
    right: Any


def read_statement(text: Any, names: Collection[str] | None) -> Statement:
    """The statement that a text makes.

    Args:
        names: of all columns; None: those in the text exist.

    >>> statement = read_statement("dep = 100*hour + minute", ["dep", "hour", "minute"])
    >>> statement.left, str(statement.right)
    ('dep', '100 * hour + minute')
    """
    if not isinstance(text, str):
        raise TypeError(bad_argument("rules", 'texts such as "zip -> city"', repr(text)))
    try:
        return _RuleParser(text, names).statement()
    except QueryError as error:
        raise QueryError("rules" + str(error).removeprefix("query")) from error


class _RuleParser:
    """Reads tokens from left to right; every method leaves `place` behind what it has read."""

    def __init__(self, text: str, names: Collection[str] | None) -> None:
        self.text, self.names = text, names
        self.folded: dict[str, list[str]] = {}
        for name in names or ():
            self.folded.setdefault(name.casefold(), []).append(name)
        self.tokens = list(self._joined([one for t in tokenize(text, _TOKEN) for one in self._pieces(t)]))
        self.place = self.depth = 0

    @property
    def here(self) -> Token:
        return self.tokens[self.place]

    def take(self) -> Token:
        token = self.here
        self.place += token.kind != "end"
        return token

    def error(self, token: Token, wanted: str, got: str | None = None) -> QueryError:
        return error_at(self.text, token, wanted, got)

    # ---- words

    def _column(self, token: Token) -> str | None:
        """The column that a token names."""
        if self.names is None or token.text in self.names:
            return token.text
        several = self.folded.get(token.text.casefold(), []) if token.kind == "word" else []
        return several[0] if len(several) == 1 else None

    def _pieces(self, token: Token) -> Iterator[Token]:
        """A token, or the parts of a word with signs in it that is neither a column nor a number."""
        if token.kind in _SAME:
            token = token._replace(kind=_SAME[token.kind])
        if token.kind not in ("word", "name", "value", "end", *_SIGNS, *"()+-*/"):
            token = token._replace(kind="word")  # a keyword of queries
        is_name = token.kind != "word" or self.names is None or self._column(token) is not None
        pieces = [token.text] if is_name or is_number(token.text) else re.split(r"([-−+/])", token.text)
        start = token.start
        for piece in pieces:
            if piece in _SAME or piece in ("+", "-", "/"):
                yield Token(_SAME.get(piece, piece), piece, start, start + 1)
            elif piece or len(pieces) == 1:
                stop = token.stop if len(pieces) == 1 else start + len(piece)
                yield token._replace(text=piece, start=start, stop=stop)
            start += len(piece)

    def _joined(self, tokens: list[Token]) -> Iterator[Token]:
        """The tokens, with the words of a name as one."""
        place = 0
        while place < len(tokens):
            end = place + 1
            while tokens[place].kind == "word" and end < len(tokens) and tokens[end].kind == "word":
                end += 1
            words = [token.text for token in tokens[place:end]]
            length = len(words)
            while length > 1 and self._column(Token("word", " ".join(words[:length]), 0, 0)) is None:
                length -= 1
            first, last = tokens[place], tokens[place + length - 1]
            yield first._replace(text=" ".join(words[:length]), stop=last.stop) if length > 1 else first
            place += length

    # ---- statements

    def statement(self) -> Statement:
        if self.here.kind == "end":
            raise self.error(self.here, _EXAMPLE)
        start, left = self.here, self.sum()
        sign = self.take()
        if sign.kind not in _SIGNS:
            raise self.error(sign, f"'->', '<=', '<', '>', '>=' or '=' ({_EXAMPLE})")
        first, right = self.here, self.sum()
        if self.here.kind != "end":
            several = self.here.kind in _SIGNS
            raise self.error(self.here, "one comparison in a rule" if several else "a sign or the end")
        places = [span(self.text, start, sign), span(self.text, first, self.tokens[self.place - 1])]
        places[0] = places[0]._replace(stop=sign.start, text=self.text[start.start : sign.start].strip())
        return self._statement(sign, [left, right], places)

    def _statement(self, sign: Token, sides: list[Expression], places: list[Token]) -> Statement:
        is_column = [isinstance(side, Reference) for side in sides]
        if sign.kind == "=":
            if not any(is_column):
                raise self.error(places[0], "a column alone on one side of '='")
            if not is_column[0]:
                sides = sides[::-1]
            target = sides[0].names[0]
            if target in sides[1].names:
                raise self.error(places[1], f"a formula without {target!r} itself, which is circular")
            return Statement("=", target, sides[1])
        for side, is_one, place in zip(sides, is_column, places, strict=True):
            if not is_one:
                raise self.error(place, f"a column beside '{sign.text}'", shown(str(side)))
        left, right = (side.names[0] for side in sides)
        if left == right:
            raise self.error(places[1], "two columns", shown(left))
        mirrored = _MIRRORED.get(sign.kind)
        return Statement(mirrored, right, left) if mirrored else Statement(sign.kind, left, right)

    # ---- expressions

    def sum(self) -> Expression:
        total = self.product()
        while self.here.kind in ("+", "-"):
            total = Operation(self.take().kind, total, self.product())
        return total

    def product(self) -> Expression:
        total = self.factor()
        while self.here.kind in ("*", "/"):
            total = Operation(self.take().kind, total, self.factor())
        return total

    def factor(self) -> Expression:
        token, self.depth = self.take(), self.depth + 1
        if self.depth > _DEEPEST:
            raise self.error(token, f"a formula nested at most {_DEEPEST} deep", "more")
        expression = self._factor(token)
        self.depth -= 1
        return expression

    def _factor(self, token: Token) -> Expression:
        if token.kind == "-":
            inner = self.factor()
            if isinstance(inner, Constant):
                return Constant(-inner.number)
            return Operation("*", Constant(-1.0), inner)
        if token.kind == "(":
            inside = self.sum()
            if self.here.kind != ")":
                raise self.error(self.here, "')' or a sign")
            self.take()
            return inside
        if token.kind not in ("word", "name"):
            raise self.error(token, "a column or a number")
        is_other = token.kind == "name" or not is_number(token.text)
        if is_other or (self.names is not None and token.text in self.names):
            name = self._column(token)
            if name is None:
                got = shown(token.text) + similar(token.text, self.names or ())
                raise self.error(token, "a column of the table", got)
            return Reference(name)
        return Constant(float(read_number(token.text)))
