"""Conditions on the columns of a table: how they are written, read, and made into outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kdmkit._core.checks import bad_argument, check_instance
from kdmkit.distributions.event_text import DatePart, Key, Pair
from kdmkit.distributions.events import Event, Outcomes, as_event, is_unknown
from kdmkit.estimators.table.column import Column
from kdmkit.estimators.table.derived import compared_region, root_of
from kdmkit.estimators.table.language import parse_event
from kdmkit.estimators.table.literals import read_people_duration
from kdmkit.estimators.table.presence import PRESENT
from kdmkit.estimators.table.schema import Schema
from kdmkit.estimators.table.vocabulary import ColumnSyntax
from kdmkit.kernels import Missing, Region
from kdmkit.kernels.regions import NOTHING, WHOLE, union


class ColumnOutcomes(Outcomes):
    """The outcomes of the columns of a table."""

    def __init__(self, schema: Schema, argument: str = "given") -> None:
        self._schema, self._argument = schema, argument

    def read(self, key: Key, region: Region) -> tuple[Key, Region]:
        if isinstance(key, Pair):
            left, right = key
            if left != right and root_of(self._schema, left) == root_of(self._schema, right):
                return root_of(self._schema, left), compared_region(self._schema, left, right, region)
            if left != right:
                return key, region
            # A column compared with itself: equal where it is present.
            parts = [PRESENT] * (0 in region) + [Missing] * region.has_missing
            return key.left, union(parts) if parts else NOTHING
        name = key.name if isinstance(key, DatePart) else key
        column: Any = self._schema.modelled_column(self._argument, name)
        if isinstance(key, DatePart):
            return name, column.codec.read_part(key.part, region)
        if region is Missing and column.missing and not column.can_miss:
            wanted = "conditions on values: missing cells count as unknown values, which have no probability"
            raise ValueError(bad_argument(f"column {name!r}", wanted, "is missing"))
        outcomes = column.codec.read(region)
        return (column.source, column.codec.steps.preimage(outcomes)) if column.source else (name, outcomes)

    def trimmed(self, key: Key, region: Region) -> Region:
        if isinstance(key, Pair):
            if any(name in self._schema.can_miss for name in key):  # cells of which one is missing
                return region
            return NOTHING if not region.spans else WHOLE if region.spans == WHOLE.spans else region
        return self._schema.columns[str(key)].trimmed(region)


def syntax_of(schema: Schema) -> dict[str, ColumnSyntax]:
    """How a query writes the values of each column; made once."""
    if schema.syntax is None:
        schema.syntax = {name: _syntax(column) for name, column in schema.columns.items()}
    syntax: dict[str, ColumnSyntax] = schema.syntax
    return syntax


def _syntax(column: Column) -> ColumnSyntax:
    codec = column.codec
    if not column.variables:
        return ColumnSyntax("left out", reason=column.reason)
    if codec.numeric:
        is_written = column.storage.writing is not None
        people = read_people_duration if column.kind == "duration" else None
        return ColumnSyntax("number", read=codec.read_text if is_written else people)
    if column.kind in ("date", "time"):
        return ColumnSyntax("date" if column.kind == "date" else "time", read=codec.read_text)
    return ColumnSyntax("levels", levels=codec.levels, ordered=codec.ordered)


def read_event(schema: Schema, given: Any) -> Event:
    """Conditions as an event, from an event, a mapping, text, or None for none.

    None and NaN in a mapping are missing cells, as in a frame: unknown if the column has no such outcome.
    """
    if isinstance(given, str):
        return parse_event(given, syntax_of(schema))
    if given is None or isinstance(given, Event):
        return as_event(given)
    check_instance("given", given, Mapping, "an event, a mapping from column to what is known, or text")
    return as_event({n: Missing if n in schema.can_miss and is_unknown(v) else v for n, v in given.items()})


def columns_of(event: Event) -> set[str]:
    """The columns that an event is about."""
    keys = event.keys()
    pairs = {name for key in keys if isinstance(key, Pair) for name in key}
    return pairs | {str(getattr(key, "name", key)) for key in keys if not isinstance(key, Pair)}


def check_target(schema: Schema, target: Any) -> Column:
    """The column that a question is about."""
    check_instance("target", target, str, "the name of a column, a query, or an event")
    return schema.modelled_column("target", target)
