"""Questions as people put them: text or mappings, made into conditions of columns and back into text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from kdmkit._core.checks import check_instance
from kdmkit.estimators.table.codecs.base import Codec
from kdmkit.estimators.table.codecs.dates import DateCodec
from kdmkit.estimators.table.conditions import Among, ColumnSyntax, Condition, Query, Range, as_given, both
from kdmkit.estimators.table.frames.storage import is_missing
from kdmkit.estimators.table.language import parse_conditions, parse_query
from kdmkit.estimators.table.schema import Column, Schema
from kdmkit.kernels import OneOf

_WORD = re.compile(r"[^\W\d][\w.\-]*")


def read_query(schema: Schema, text: str) -> Query:
    return parse_query(text, *_syntax(schema))


def read_given(schema: Schema, given: Any) -> dict[str, Any]:
    """Evidence by column, from a mapping, from conditions as text, or from None for no evidence."""
    if given is None:
        return {}
    if isinstance(given, str):
        return as_mapping(schema, parse_conditions(given, *_syntax(schema)))
    check_instance("given", given, Mapping, "a mapping from column to what is known, or text")
    return {name: None if is_missing(value) else value for name, value in given.items()}


def as_mapping(schema: Schema, conditions: Mapping[str, Condition]) -> dict[str, Any]:
    """Conditions as the mapping `given` writes them."""
    columns = schema.modelled
    return {name: as_given(condition, columns[name].codec.beside) for name, condition in conditions.items()}


def _syntax(schema: Schema) -> tuple[dict[str, ColumnSyntax], dict[str, str]]:
    """The syntax of each column of the model; for each other column, why it is left out."""
    left_out = {column.name: column.reason for column in schema.columns.values() if not column.variables}
    return {name: _column_syntax(column) for name, column in schema.modelled.items()}, left_out


def _column_syntax(column: Column) -> ColumnSyntax:
    codec = column.codec
    if codec.numeric:
        return ColumnSyntax()
    if codec.levels is not None and column.kind != "time":
        return ColumnSyntax(codec.levels, ordered=codec.ordered)

    def read(text: str) -> str:
        codec.region(text)  # raises if it is no date or time of the column
        return text

    return ColumnSyntax(read=read, wanted="a date or a time")


def check_target(schema: Schema, target: Any) -> Column:
    check_instance("target", target, str, "the name of a column, or a query")
    return schema.modelled_column("target", target)


# ---- text


def describe(target: str, given: Mapping[str, Any]) -> str:
    """The question in the query language.

    >>> describe("price", {"carat": (0.5, None), "cut": ["Ideal", "Good"], "color": None})
    'P(price | carat in [0.5, inf), cut in {Ideal, Good})'
    """
    conditions = {name: _condition(value) for name, value in given.items() if value is not None}
    return describe_query(Query(target, given=conditions))


def describe_query(query: Query) -> str:
    event = ", ".join(_written(name, condition) for name, condition in query.event.items())
    target = event if query.target is None else _quoted(query.target)
    given = ", ".join(_written(name, condition) for name, condition in query.given.items())
    return f"P({target} | {given})" if given else f"P({target})"


def _written(name: str, condition: Condition) -> str:
    if isinstance(condition, Among):
        values = list(map(_text, condition.values))
        if len(values) == 1:
            return f"{_quoted(name)} = {values[0]}"
        return f"{_quoted(name)} in {{{', '.join(values)}}}"
    low, high = (None if end is None else _text(end) for end in (condition.low, condition.high))
    return f"{_quoted(name)} in {Range(low, high, condition.above, condition.below)}"


def _text(value: Any) -> str:
    """A value as a query writes it; durations are in seconds."""
    return _quoted(str(value.total_seconds() if hasattr(value, "total_seconds") else value))


def _quoted(text: str) -> str:
    """A name or a value as a query writes it: in quotes unless it is a word or a number."""
    try:
        float(text)
    except ValueError:
        return text if _WORD.fullmatch(text) else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return text


# ---- two conditions on one column


def in_common(codec: Codec, a: Any, b: Any) -> list[Any]:
    """The values that satisfy both conditions, as disjoint values, ranges or sets; empty if there are none.

    Args:
        a, b: values, ranges or sets of the column, as in `given`.
    """
    if codec.levels is not None:
        codes = sorted(codes_of(codec, a) & codes_of(codec, b))
        return [[codec.levels[code] for code in codes]] if codes else []
    if isinstance(codec, DateCodec):
        ranges = [
            Range(*one).intersected(Range(*other)) for one in codec.spans(a) for other in codec.spans(b)
        ]
        return [(one.low, one.high) for one in ranges if not one.is_empty]
    common = both(_condition(a), _condition(b))
    if common is None:
        return []
    return [(common.low, common.high) if isinstance(common, Range) else list(common.values)]


def codes_of(codec: Codec, value: Any) -> set[int]:
    """The codes of the levels that satisfy a condition."""
    assert codec.levels is not None
    allowed: set[int] = set()
    for (region,) in codec.region(value):
        if region is None:
            return set(range(len(codec.levels)))
        codes = region.values if isinstance(region, OneOf) else region
        assert isinstance(codes, Tensor)
        allowed |= {int(code) for code in codes.reshape(-1)}
    return allowed


def _condition(value: Any) -> Condition:
    if isinstance(value, tuple) and len(value) == 2:
        return Range(*value)
    several = isinstance(value, list | set | frozenset | tuple | np.ndarray)
    return Among(tuple(value) if several else (value,))
