"""Questions as people put them: text or mappings, made into evidence and back into text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from kdmkit._core.checks import check_instance
from kdmkit.estimators.table.answers.inference import Inference
from kdmkit.estimators.table.frames.objects import is_missing
from kdmkit.estimators.table.queries.conditions import Among, Condition, Range, as_given
from kdmkit.estimators.table.queries.language import ColumnSyntax, Query, parse_conditions, parse_query
from kdmkit.estimators.table.schema import Column

_WORD = re.compile(r"[^\W\d][\w.\-]*")


def syntax_of(column: Column) -> ColumnSyntax:
    """How values of a column are written in a query."""
    codec = column.codec
    if codec.numeric:
        return ColumnSyntax()
    if codec.levels is not None and column.kind != "time":
        return ColumnSyntax(codec.levels, ordered=codec.ordered)

    def read(text: str) -> str:
        codec.region(text)  # raises where it is no date or time of the column
        return text

    return ColumnSyntax(read=read, wanted="a date or a time")


def read_query(inference: Inference, text: str) -> Query:
    return parse_query(text, _syntax(inference), _left_out(inference))


def read_given(inference: Inference, given: Any) -> dict[str, Any]:
    """What is known, by column: from a mapping, from conditions as text, or None for nothing."""
    if given is None:
        return {}
    if isinstance(given, str):
        return known_by_column(inference, parse_conditions(given, _syntax(inference), _left_out(inference)))
    check_instance("given", given, Mapping, "a mapping from column to what is known, or text")
    return {name: None if is_missing(value) else value for name, value in given.items()}


def known_by_column(inference: Inference, conditions: Mapping[str, Condition]) -> dict[str, Any]:
    """Conditions as the mapping `given` writes them."""
    return {
        name: as_given(condition, inference.columns[name].codec.beside)
        for name, condition in conditions.items()
    }


def _syntax(inference: Inference) -> dict[str, ColumnSyntax]:
    return {name: syntax_of(column) for name, column in inference.columns.items()}


def _left_out(inference: Inference) -> dict[str, str]:
    """Columns that the model does not hold, and why."""
    columns = inference.schema.columns.values()
    return {column.name: column.reason for column in columns if not column.variables}


def check_target(inference: Inference, target: Any) -> Column:
    check_instance("target", target, str, "the name of a column, or a query")
    return inference.column("target", target)


# ---- text


def describe(target: str, given: Mapping[str, Any]) -> str:
    """The question in the query language.

    >>> describe("price", {"carat": (0.5, None), "cut": ["Ideal", "Good"], "color": None})
    'P(price | carat in [0.5, inf), cut in {Ideal, Good})'
    """
    known = [_told(name, value) for name, value in given.items() if value is not None]
    return f"P({quoted(target)}{' | ' if known else ''}{', '.join(known)})"


def describe_query(query: Query) -> str:
    event = ", ".join(_condition(name, condition) for name, condition in query.event.items())
    target = event if query.target is None else quoted(query.target)
    known = [_condition(name, condition) for name, condition in query.given.items()]
    return f"P({target}{' | ' if known else ''}{', '.join(known)})"


def _told(name: str, value: Any) -> str:
    if isinstance(value, tuple) and len(value) == 2:
        return _condition(name, Range(*value))
    several = isinstance(value, list | set | frozenset | tuple | np.ndarray)
    return _condition(name, Among(tuple(value) if several else (value,)))


def _condition(name: str, condition: Condition) -> str:
    if isinstance(condition, Among):
        values = list(map(_text, condition.values))
        if len(values) == 1:
            return f"{quoted(name)} = {values[0]}"
        return f"{quoted(name)} in {{{', '.join(values)}}}"
    low, high = (None if end is None else _text(end) for end in (condition.low, condition.high))
    return f"{quoted(name)} in {Range(low, high, condition.above, condition.below)}"


def _text(value: Any) -> str:
    """A value as a query writes it; durations are in seconds."""
    return quoted(str(value.total_seconds() if hasattr(value, "total_seconds") else value))


def quoted(text: str) -> str:
    """A name or a value as a query writes it: in quotes where it is no word or number."""
    try:
        float(text)
    except ValueError:
        return text if _WORD.fullmatch(text) else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return text
