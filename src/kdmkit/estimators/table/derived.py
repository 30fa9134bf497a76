"""Derived columns in rows: the codes that rows have beside the events of the finer columns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from kdmkit.estimators.table.codecs.base import Codec
from kdmkit.estimators.table.codecs.categories import LevelsCodec
from kdmkit.estimators.table.codecs.functions import GONE, DerivedCodec, commonest
from kdmkit.estimators.table.frames.read import RawFrame
from kdmkit.estimators.table.frames.storage import RawColumn
from kdmkit.kernels import Interval, OneOf, Region
from kdmkit.kernels.regions import NOTHING, WHOLE, Missing, intersection, union
from kdmkit.nn import Variable
from kdmkit.training import Table

if TYPE_CHECKING:
    from kdmkit.estimators.table.column import Column
    from kdmkit.estimators.table.schema import Schema

#: The code of a cell of which the finer one says nothing.
UNKNOWN = -2


def linked(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The columns, with codecs of functions that know those of the finer columns."""
    return {
        name: replace(column, codec=column.codec.of(columns[column.source].codec))
        if column.source
        else column
        for name, column in columns.items()
    }


def encode_derived(
    schema: Schema,
    column: Any,
    raw: RawFrame,
    is_outcome: bool,
    values: dict[str, Tensor],
    observed: dict[str, Tensor],
) -> Tensor:
    """Adds the codes of a column that is a function of another; what to add to log p of every row.

    A row that breaks the rule has log p = −∞, or the logarithm of the share of such rows. If the finer cell
    alone is missing, the code says in which region it lies.
    """
    source, codec = schema.columns[column.source], column.codec
    expected = expected_codes(source, column, Table(values, observed))
    if column.name not in raw.columns:
        values[column.code] = torch.zeros(raw.n_rows, dtype=torch.long)
        observed[column.code] = torch.zeros(raw.n_rows, dtype=torch.bool)
        return torch.zeros(raw.n_rows, dtype=torch.float64)
    cells = raw.columns[column.name]
    encoded = codec.encode(cells)
    seen = encoded.observed.numpy()
    codes = np.where(seen, encoded.parts[0].numpy(), GONE)
    rare, offset = math.log(codec.exceptions), np.zeros(raw.n_rows)
    present, is_known = ~cells.missing, expected != UNKNOWN
    # A new level of which the finer cell says nothing.
    offset[present & ~seen & ~is_known] = math.log(codec.share) if codec.share else -math.inf
    broken = present & is_known & (codes != expected)
    if source.presence is not None and source.name in raw.columns:
        # The finer cell is empty, but cannot be missing in rows with this one.
        filled = broken & raw.columns[source.name].missing
        for name in source.presence.there:
            observed[name] = observed[name] & torch.from_numpy(~filled)
        offset[filled] = rare
        broken &= ~filled
    offset[broken] = rare if schema.broken_rules == "rare" else -math.inf
    if is_outcome:  # an empty cell that the finer one determines is as rare as an exception
        offset[~present & is_known & (expected != GONE)] = rare
    values[column.code] = torch.from_numpy(np.maximum(codes, 0))
    observed[column.code] = torch.from_numpy(seen)
    return torch.from_numpy(offset)


def expected_codes(source: Column, column: Any, rows: Table) -> np.ndarray:
    """The code of a derived cell by the finer cell of every row; −2 where that is not known."""
    (name,) = source.variables
    codes = np.where(rows.observed[name], column.codec.codes(rows.columns[name]), UNKNOWN)
    if source.presence is not None:
        gone = source.presence.is_known_missing(rows)
        codes = np.where(gone, column.codec.steps.missing, codes)
    return codes


def root_of(schema: Schema, name: str) -> str:
    """The column that has the variables of a column: itself, or the finer one that it is a function of."""
    return schema.columns[name].source or name


def compared_region(schema: Schema, left: str, right: str, signs: Region) -> Region:
    """The outcomes of the root of two columns for which the sign of left − right lies in a region."""
    first, second = schema.columns[left], schema.columns[right]
    if not first.source:
        flipped = union([OneOf([-sign]) for sign in (-1, 0, 1) if sign in signs])
        return compared_region(schema, right, left, flipped | (Missing if signs.has_missing else NOTHING))
    gone = first.codec.steps.preimage(Missing)
    parts: list[Region] = []
    for code, level in enumerate(first.codec.levels):
        beside = {
            -1: Interval(level, None, "neither"),
            0: OneOf([level]),
            1: Interval(None, level, "neither"),
        }
        others = [second.codec.read(region) for sign, region in beside.items() if sign in signs]
        if second.source:
            gone = union([gone, second.codec.steps.preimage(Missing)])
            others = [second.codec.steps.preimage(region) for region in others]
        if others:
            parts.append(intersection([first.codec.steps.preimage(OneOf([code])), union(others)]))
    gone = union([gone, Missing]) if schema.columns[root_of(schema, left)].presence else gone
    return union([*parts, gone] if signs.has_missing else [*parts, NOTHING]) & (
        WHOLE if signs.has_missing else ~gone
    )


def grown_function(column: Any, before: Codec, source: Codec, rows: RawFrame, least_rows: int | None) -> Any:
    """A derived column with the levels of more rows, and with its values for new levels of the finer one.

    Args:
        before, source: the codec of the finer column without and with the new levels.
    """
    codec, cells = column.codec, rows.columns[column.name]
    inner = codec.inner.grown(cells, least_rows) if isinstance(codec.inner, LevelsCodec) else codec.inner
    old, new = len(before.levels or ()), len(source.levels or ())
    steps = codec.steps
    if new > old:
        fine, coarse = source.encode(rows.columns[source.name]), inner.encode(cells)
        places = fine.parts[0].numpy()
        codes = np.where(coarse.observed.numpy(), coarse.parts[0].numpy(), GONE)
        used = fine.observed.numpy() & (places >= old)
        more = commonest(places[used] - old, codes[used], new - old)
        if not column.can_miss:  # new levels without a value have that of most rows
            usual = commonest(np.zeros(len(codes), np.int64), codes, 1)[0]
            more = np.where(more == GONE, max(usual, 0), more)
        steps = replace(
            steps,
            cuts=(*steps.cuts, *(old - 0.5 + np.arange(new - old))),
            codes=(*steps.codes, *more.tolist()),
        )
    if steps is codec.steps and inner is codec.inner:
        return column
    made = DerivedCodec(inner, source, steps, codec.exceptions)
    return replace(column, codec=made, details=made.describe())


def breaks_function(schema: Schema, source: str, target: str, cells: Mapping[str, RawColumn]) -> np.ndarray:
    """The rows whose cells in two columns of one root cannot occur together; cells that are missing can.

    Args:
        source, target: columns that are functions of one column, or that column itself.
        cells: the cells of both.
    """
    columns = [schema.columns[name] for name in (source, target)]
    steps = [column.codec.steps for column in columns if column.source]
    cuts = np.unique(np.concatenate([step.cuts for step in steps]))
    places = np.concatenate([cuts - 1e-9, [np.inf]]) if len(cuts) else np.zeros(1)
    pairs = [column.codec.steps(places) if column.source else np.arange(len(places)) for column in columns]
    allowed = set(zip(*(codes.tolist() for codes in pairs), strict=True))
    codes = [_codes_of(column, cells[column.name], cuts) for column in columns]
    can = np.array(
        [pair in allowed for pair in zip(*(one.tolist() for one in codes), strict=True)], dtype=bool
    )
    # Of new levels of the finer column nothing is known.
    return ~can & (codes[0] != UNKNOWN) & ~cells[source].missing & ~cells[target].missing


def _codes_of(column: Any, cells: RawColumn, cuts: np.ndarray) -> np.ndarray:
    """The codes of cells of a derived column, or the steps in which cells of the root lie; −2: neither."""
    encoded = column.codec.encode(cells)
    seen = encoded.observed.numpy()
    if column.source:
        return np.where(seen, encoded.parts[0].numpy(), UNKNOWN)
    codes = np.full(len(seen), UNKNOWN)
    codes[seen] = np.searchsorted(cuts, column.codec.outcomes_of(cells.values[seen]), side="right")
    return codes


def code_variables(schema: Schema) -> list[Variable]:
    """Variables of the codes of derived columns: rows have them, the model does not."""
    return [
        Variable(column.code, column.codec.inner.kernels()[0], column.codec.inner.shapes[0])
        for column in schema.derived.values()
    ]


def places_of_variables(schema: Schema) -> list[list[int]]:
    """The places of the variables of every column among those of the model, then of codes."""
    every = [*schema.variables(), *code_variables(schema)]
    place = {variable.name: i for i, variable in enumerate(every)}
    return [
        [place[name] for name in ([column.code] if column.source else column.all_variables)]
        for column in schema.modelled.values()
    ]


def derived_cells(schema: Schema, column: Any, values: Mapping[str, Tensor]) -> RawColumn:
    """The cells of a derived column, by the events of the finer one."""
    codes = column.codec.codes(*(values[part] for part in column.variables))
    presence = schema.columns[column.source].presence
    if presence is not None and not values.keys().isdisjoint(presence.there):
        codes = np.where(presence.is_missing(values).cpu().numpy(), column.codec.steps.missing, codes)
    cells, missing = column.codec.cells(codes)
    return RawColumn(column.name, cells, missing, column.storage)


def without_codes(schema: Schema, rows: Table) -> Table:
    """The rows as the model has them: without the codes of derived columns."""
    codes = {column.code for column in schema.derived.values()}
    if not codes:
        return rows
    columns = {name: value for name, value in rows.columns.items() if name not in codes}
    return replace(
        rows, columns=columns, observed={name: m for name, m in rows.observed.items() if name in columns}
    )


# ---- rows in which a coarser cell is known and the finer one is not


@dataclass(frozen=True)
class RowGroup:
    """Rows that are answered together.

    Attributes:
        index: their places.
        rows: the rows as the model has them.
        regions: of variables, what coarser cells say about finer ones; None if they contradict each other.
        codes: the codes of the target, if it is derived, by the finer cells; −2 where these are not known.
    """

    index: Int[Tensor, " m"]
    rows: Table
    regions: Mapping[str, Region] | None
    codes: np.ndarray | None = None


def row_groups(schema: Schema, rows: Table, target: Any = None) -> Iterator[RowGroup]:
    """The rows in groups of which each has one region of every finer cell that is not known.

    Args:
        target: the column that is asked about: its cells say nothing.
    """
    plain = without_codes(schema, rows)
    codes = None
    if target is not None and target.source:
        codes = expected_codes(schema.columns[target.source], target, plain)
    asked = "" if target is None else target.name
    derived = [
        column for column in schema.derived.values() if column.code in rows.columns and column.name != asked
    ]
    keys = np.stack(
        [_evidence(schema, column, rows, asked) for column in derived] or [np.full(len(rows), GONE)]
    )
    if not len(rows):
        yield RowGroup(torch.arange(0), plain, {}, codes)
        return
    distinct, place = np.unique(keys, axis=1, return_inverse=True)
    for i in range(distinct.shape[1]):
        index = torch.from_numpy(np.flatnonzero(place.reshape(-1) == i))
        regions: dict[str, list[Region]] = {}
        for column, code in zip(derived, distinct[:, i].tolist(), strict=False):
            if code != GONE:
                regions.setdefault(column.source, []).append(column.codec.steps.preimage(OneOf([code])))
        part = plain if distinct.shape[1] == 1 else plain.take(index)
        yield RowGroup(
            index, *_inside(schema, part, regions), None if codes is None else codes[index.numpy()]
        )


def _evidence(schema: Schema, column: Any, rows: Table, asked: str) -> np.ndarray:
    """The codes of a column where they say more than the finer cells; `GONE` elsewhere."""
    source = schema.columns[column.source]
    evidence = rows.observed[source.variables[0]]
    evidence = torch.zeros_like(evidence) if asked == source.name else evidence
    if source.presence is not None:
        evidence = evidence | source.presence.is_known_missing(rows)
    return np.where(rows.observed[column.code] & ~evidence, rows.columns[column.code], GONE)


def _inside(
    schema: Schema, rows: Table, regions: Mapping[str, list[Region]]
) -> tuple[Table, dict[str, Region] | None]:
    """The rows, in which cells with regions are there, and the regions by variable."""
    columns, observed = dict(rows.columns), dict(rows.observed)
    every: dict[str, Region] = {}
    for name, several in regions.items():
        source = schema.columns[name]
        boxes = source.value_boxes(intersection([*several, ~Missing]))
        if not boxes:
            return rows, None
        every |= boxes[0]
        if source.presence is not None:
            source.presence.put_there(columns, observed, len(rows))
    return replace(rows, columns=columns, observed=observed), every
