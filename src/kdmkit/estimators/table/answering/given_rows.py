"""Rows that are drawn given a frame of conditions: one new row, or several, for each of its rows."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kdmkit._core.checks import bad_argument, check_choice, did_you_mean
from kdmkit.distributions.arguments import gather_masks
from kdmkit.distributions.event_inference import restriction
from kdmkit.distributions.evidence import gather_evidence
from kdmkit.estimators.table.answering.engine import BLOCK, TableEngine
from kdmkit.estimators.table.answering.imputation import RuledCells
from kdmkit.estimators.table.answering.whole_rows import decoded_cells
from kdmkit.estimators.table.codecs.functions import GONE
from kdmkit.estimators.table.codecs.rare import pooled
from kdmkit.estimators.table.column import Column
from kdmkit.estimators.table.derived import RowGroup, row_groups
from kdmkit.estimators.table.frames.cells import joined
from kdmkit.estimators.table.frames.read import RawFrame, read_frame
from kdmkit.estimators.table.frames.restore import build_frame
from kdmkit.estimators.table.frames.storage import RawColumn
from kdmkit.training import Table

_NUMBERS = ("integer", "float")
_SHOWN = 5
# Draws of a row that breaks a rule.
_ROUNDS = 1000


def is_frame(given: Any) -> bool:
    """Whether conditions are a frame, with one row for each row to be drawn: also a path, no text."""
    return isinstance(given, os.PathLike | RawFrame) or hasattr(given, "columns")


def held_columns(given: Any, hold: Sequence[str] | None) -> Any:
    """The conditions on some columns alone.

    Args:
        given: a mapping, a series of pandas (one row), or a frame, which is read.
        hold: the columns; None: all of them.
    """
    if hasattr(given, "to_dict") and not hasattr(given, "columns"):
        given = given.to_dict()
    names = [hold] if isinstance(hold, str) else hold
    if is_frame(given):
        frame = read_frame("given", given)
        return frame if names is None else _selected(frame, names)
    if names is None:
        return given
    if not isinstance(given, Mapping):
        wanted = "None: only a row or a frame of conditions has columns to choose from"
        raise ValueError(bad_argument("hold", wanted, repr(hold)))
    return {_checked(name, given): given[name] for name in names}


def _selected(frame: RawFrame, names: Sequence[str]) -> RawFrame:
    columns = {_checked(name, frame.columns): frame.columns[name] for name in names}
    return replace(frame, columns=columns, labels=tuple(columns), native=_index_of(frame.native))


def _checked(name: str, names: Any) -> str:
    if name not in names:
        wanted = f"columns of `given`{did_you_mean(name, names)}"
        raise ValueError(bad_argument("hold", wanted, repr(name)))
    return name


class GivenRowSampler:
    """Draws of whole rows, each given one row of conditions.

    A cell that is there is a condition, which the draw repeats as it is. Cells of absent columns are unknown,
    and empty cells mean what they mean in other rows. Columns that the model leaves out are repeated.

    Args:
        engine: the fitted table.
        frame: the conditions, as `held_columns` gives them.
        missing: what an empty cell is, as in `Schema.encode`.
        complete: whether all cells are there; then an empty cell is an unknown value.
    """

    def __init__(
        self, engine: TableEngine, frame: RawFrame, missing: str = "outcome", *, complete: bool = False
    ) -> None:
        self.engine, self._schema, self._frame = engine, engine.schema, frame
        self._numbers = np.arange(frame.n_rows) if frame.numbers is None else frame.numbers
        if not frame.n_rows:
            raise ValueError(bad_argument("given", "at least one row of conditions", "none"))
        for name in frame.columns:
            if name not in self._schema.columns:
                wanted = f"columns of the table{did_you_mean(name, self._schema.columns)}"
                raise ValueError(bad_argument("given", wanted, repr(name)))
        self._cells: dict[str, RawColumn] = self._schema.read(frame).columns
        self._check_values()
        for rule, broken in self._schema.rules.broken(self._schema, self._cells).items():
            if broken.any():
                raise self._impossible(broken, f"which breaks the rule {rule}")
        rows = self._schema.encode(frame, missing=missing)
        self._rows = _complete(self._schema, rows) if complete else self._with_missing(rows, missing)

    # ---- conditions

    def _check_values(self) -> None:
        """Raises if a cell has a value that its column cannot have; warns of values outside of the data."""
        outside = []
        for name, cells in self._cells.items():
            column = self._schema.columns[name]
            if column.kind == "constant":
                wrong = ~cells.missing & (cells.values != column.codec.constant)
                far = np.zeros_like(wrong)
            elif not column.variables:
                continue
            else:
                seen = column.codec.encode(cells).observed.numpy()
                wrong = ~cells.missing & ~seen
                if cells.storage.base != "string":
                    wrong |= ~cells.missing & ~column.codec.are_outcomes(cells)
                far = ~wrong & ~cells.missing & ~self._is_inside(column, cells)
            if wrong.any():
                raise self._no_value(column, cells, int(np.flatnonzero(wrong)[0]))
            outside += [f"{int(far.sum())} in {name!r}"] if far.any() else []
        if outside:
            listed = ", ".join(outside)
            warnings.warn(
                f"given: values outside of the data: {listed}; draws rest on the tails of the model",
                stacklevel=5,
            )

    def _no_value(self, column: Column, cells: RawColumn, place: int) -> ValueError:
        value = cells.values[place]
        similar = "" if column.codec.levels is None else did_you_mean(value, column.codec.levels)
        wanted = f"a value that the column can have{similar}"
        value = value.item() if isinstance(value, np.generic) else value
        argument = f"given, row {self._numbers[place]}, column {column.name!r}"
        return ValueError(bad_argument(argument, wanted, repr(value)))

    def _is_inside(self, column: Column, cells: RawColumn) -> np.ndarray:
        if column.codec.levels is not None or cells.storage.base != column.storage.base:
            return np.ones(len(cells.missing), dtype=bool)
        return np.asarray(column.seen.contains(column.codec.outcomes_of(cells.values)))

    def _with_missing(self, rows: Table, missing: str) -> Table:
        """The rows, in which finer cells are missing where only a coarser one is given, as missing."""
        if missing != "outcome" or self._schema.missing != "outcome":
            return rows
        columns, observed = dict(rows.columns), dict(rows.observed)
        for name, column in self._schema.derived.items():
            presence = self._schema.columns[column.source].presence
            if name in self._cells and presence is not None and column.codec.steps.missing == GONE:
                empty = torch.from_numpy(self._cells[name].missing) & ~observed[presence.name]
                columns[presence.name] = torch.where(empty, 0, columns[presence.name])
                observed[presence.name] = observed[presence.name] | empty
        return replace(rows, columns=columns, observed=observed)

    def _impossible(self, rows: np.ndarray, why: str) -> ValueError:
        numbers = self._numbers[rows]
        shown = ", ".join(map(str, numbers[:_SHOWN])) + (", …" if len(numbers) > _SHOWN else "")
        wanted = "conditions that can occur together"
        return ValueError(bad_argument("given", wanted, f"row {shown}, {why}"))

    # ---- draws

    def frame(self, n: int, generator: torch.Generator, library: str | None, first_key: int = 0) -> Any:
        """A frame of n rows for each row of conditions, one after the other.

        Args:
            library, first_key: as in `RowSampler.frame`.
        """
        check_choice("frame", library, (None, "pandas", "polars", "arrow"))
        schema, n_rows = self._schema, n * self._frame.n_rows
        values = {name: value.cpu() for name, value in self.draw(n, generator).items()}
        given = {name: _repeated(cells, n) for name, cells in self._cells.items()}
        ruled = self._ruled(values, given, n, generator)
        columns = []
        for name, column in schema.columns.items():
            if name in ruled:
                columns.append(pooled(ruled[name], column.codec, self._cells))
            elif column.variables or column.codec.keys is not None or column.kind == "constant":
                drawn = pooled(
                    schema.decode_column(name, values, n_rows, first_key), column.codec, self._cells
                )
                columns.append(_with_given(drawn, given[name], column) if name in given else drawn)
            elif name in given:
                columns.append(given[name])
        labels = dict(zip(schema.columns, schema.labels, strict=True))
        columns = joined(columns, schema.texts)
        index = _index_of(self._frame.native)
        index = None if index is None else index.repeat(n)
        backend = library or schema.backend
        return build_frame(columns, backend, [labels[column.name] for column in columns], index)

    def _ruled(
        self,
        values: dict[str, Tensor],
        given: Mapping[str, RawColumn],
        n: int,
        generator: torch.Generator,
    ) -> dict[str, RawColumn]:
        """The cells of columns with rules; rows that break one are drawn again, in place."""
        schema, n_rows = self._schema, n * self._frame.n_rows
        is_open = dict.fromkeys(schema.columns, np.ones(n_rows, dtype=bool))
        rules = RuledCells(self.engine, is_open | {name: cells.missing for name, cells in given.items()})
        for _ in range(_ROUNDS):
            cells = decoded_cells(schema, values, rules.names)
            for name in cells.keys() & given.keys():
                cells[name] = _with_given(cells[name], given[name], schema.columns[name])
            cells = rules.computed(cells)
            rows = rules.broken(cells)
            if not len(rows):
                return cells
            part = self._rows.take(torch.from_numpy(rows // n))
            for name, value in self._draw_block(part, 0, 1, generator).items():
                values[name][torch.from_numpy(rows)] = value.flatten(0, 1).cpu().to(values[name].dtype)
        where = np.zeros(self._frame.n_rows, dtype=bool)
        where[rows // n] = True
        raise self._impossible(where, f"of which {_ROUNDS} draws broke a rule")

    def draw(self, n: int, generator: torch.Generator) -> dict[str, Tensor]:
        """n rows of all variables for each row of conditions."""
        parts = []
        for start, rows in zip(range(0, self._frame.n_rows, BLOCK), self._rows.blocks(BLOCK), strict=True):
            parts.append(self._draw_block(rows, start, n, generator))
        return {name: torch.cat([part[name] for part in parts]).flatten(0, 1) for name in parts[0]}

    def _draw_block(self, rows: Table, start: int, n: int, generator: torch.Generator) -> dict[str, Tensor]:
        """`(rows, n, *event)` by variable."""
        drawn: dict[str, Tensor] = {}
        for group in row_groups(self._schema, rows):
            for name, value in self._draw_group(group, start, n, generator).items():
                if name not in drawn:
                    drawn[name] = value.new_zeros(len(rows), *value.shape[1:])
                drawn[name][group.index] = value
        return drawn

    def _draw_group(
        self, group: RowGroup, start: int, n: int, generator: torch.Generator
    ) -> dict[str, Tensor]:
        if group.regions is None:
            where = np.zeros(self._frame.n_rows, dtype=bool)
            where[group.index.numpy() + start] = True
            raise self._impossible(where, "of which two cells contradict each other")
        joint, rows, regions = self.engine.joint, group.rows, group.regions
        seen = {
            name: mask for name, mask in rows.observed.items() if name not in regions and bool(mask.any())
        }
        wanted = [name for name in joint.variables if name not in seen or not bool(seen[name].all())]
        drawn: dict[str, Tensor] = {}
        if wanted:
            points = {name: rows.columns[name] for name in seen}
            rho = self._posterior(wanted, {**points, **regions}, seen, len(rows))
            impossible = torch.isneginf(rho.log_evidence).cpu().numpy() if points or regions else [False]
            if np.any(impossible):
                where = np.zeros(self._frame.n_rows, dtype=bool)
                where[group.index.numpy() + start] = impossible
                raise self._impossible(where, "which has probability 0")
            sample: Any = rho.sample((n,), generator=generator)
            sample = sample if isinstance(sample, dict) else {wanted[0]: sample}
            drawn = {name: value.transpose(0, 1).cpu() for name, value in sample.items()}
        for name, mask in seen.items():
            value = rows.columns[name].unsqueeze(1)
            value = value.expand(len(rows), n, *value.shape[2:])
            if name in drawn:
                there = mask.reshape(-1, *(1,) * (value.ndim - 1))
                value = torch.where(there, value.to(drawn[name].dtype), drawn[name])
            drawn[name] = value
        return drawn

    def _posterior(
        self, wanted: Sequence[str], evidence: Mapping[str, Any], seen: Mapping[str, Tensor], n_rows: int
    ) -> Any:
        """The distribution of some variables given evidence, which may be on these in other rows."""
        joint = self.engine.joint
        if not evidence:
            return joint.marginal(*wanted).expand((n_rows,))
        masks = gather_masks(seen, list(evidence), next(iter(joint.components.values())))
        rho = joint._over(tuple(wanted), gather_evidence(joint, None, evidence, masks, False))
        rho = rho.expand((n_rows,))
        for name in wanted:
            region = evidence.get(name)
            if name in seen or region is None:
                continue
            if len(wanted) == 1:
                kernel, components = restriction(rho.kernel, region, rho.components)
                return type(rho)._made(components, rho._weights, kernel, False)
            inside = restriction(rho.kernels[name], region, rho.components[name])
            rho.kernels[name], rho.components[name] = inside
        return rho


def _complete(schema: Any, rows: Table) -> Table:
    """The rows, in which no cell is missing: empty ones are unknown."""
    columns, observed = dict(rows.columns), dict(rows.observed)
    for presence in schema.presences.values():
        columns[presence.name] = torch.ones_like(columns[presence.name])
        observed[presence.name] = torch.ones_like(observed[presence.name])
    return replace(rows, columns=columns, observed=observed)


def _repeated(cells: RawColumn, n: int) -> RawColumn:
    return replace(cells, values=cells.values.repeat(n), missing=cells.missing.repeat(n))


def _with_given(drawn: RawColumn, given: RawColumn, column: Column) -> RawColumn:
    """Drawn cells of a column, with those that were given as they were, in the dtype of the column."""
    if column.variables and column.codec.levels is not None:
        return drawn  # levels are drawn exactly
    base, other = drawn.storage.base, given.storage.base
    if base != other and not (base in _NUMBERS and other in _NUMBERS):
        return drawn
    there = ~given.missing
    values = drawn.values.copy()
    values[there] = given.values[there]
    return replace(drawn, values=values, missing=np.where(there, False, drawn.missing))


def _index_of(native: Any) -> Any:
    """The index of a frame of pandas, or an index itself; None of other frames."""
    index = getattr(native, "index", native)
    return index if hasattr(index, "repeat") and hasattr(index, "names") else None
