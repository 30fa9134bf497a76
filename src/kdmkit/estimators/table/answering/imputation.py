"""Frames whose missing cells are filled in, so that rows keep their rules."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kdmkit.estimators.common.arrays import Array
from kdmkit.estimators.table.answering.engine import BLOCK, TableEngine
from kdmkit.estimators.table.codecs.numbers import as_numbers
from kdmkit.estimators.table.column import Column
from kdmkit.estimators.table.derived import row_groups
from kdmkit.estimators.table.expressions import is_in_range
from kdmkit.estimators.table.frames.cells import joined
from kdmkit.estimators.table.frames.read import RawFrame
from kdmkit.estimators.table.frames.restore import fill_frame
from kdmkit.estimators.table.frames.storage import RawColumn
from kdmkit.estimators.table.row_rules import Cells, RowRules, ways_to_compute
from kdmkit.estimators.table.rules import FormulaRule, OrderRule
from kdmkit.kernels import Interval
from kdmkit.training import Table

# Rounds of draws of rows that break rules; rows that a warning lists.
_ROUNDS, _SHOWN = 50, 5


class Imputer:
    """The missing cells of a frame.

    Args:
        engine: the fitted table.
        X: the frame.
        missing: what an empty cell is, as in `Schema.encode`.
    """

    def __init__(self, engine: TableEngine, X: Any, missing: str = "outcome") -> None:
        self.engine, self._empty = engine, missing
        self.raw: RawFrame = engine.schema.marked(X)
        self.rows: Table = engine.schema.encode(self.raw, missing=missing)
        read = engine.schema.read(self.raw).columns if engine.schema.rules else {}
        self._read = {name: cells for name, cells in read.items() if name in engine.schema.columns}
        is_open = {name: self.raw.columns[engine.schema.source_of(name)].missing for name in self._read}
        self._rules = RuledCells(engine, is_open)
        self._open = {name: is_open[name] for name in self._rules.names}

    def _missing(self, column: Column) -> Array:
        """Numbers of the rows that lack a cell of the column; none if the frame lacks the column."""
        raw = self.raw.columns.get(self.engine.schema.source_of(column.name))
        return np.flatnonzero(raw.missing) if raw is not None else np.array([], dtype=np.int64)

    def _rows_with_cells(self) -> Table:
        """The rows, with all cells of the frame's columns there: their values are to be filled in."""
        schema, values, observed = self.engine.schema, dict(self.rows.columns), dict(self.rows.observed)
        for name, presence in schema.presences.items():
            if not presence.name:  # the cell is a number or a text, which is drawn
                continue
            missing = torch.zeros(len(self.rows), dtype=torch.bool)
            missing[self._missing(schema.columns[name])] = True
            values[presence.name] = torch.where(missing, 1, values[presence.name])
            if name in schema.texts:  # the same in models of 0.2
                observed[presence.name] = observed[presence.name] & ~missing
        return replace(self.rows, columns=values, observed=observed)

    # ---- three ways to fill in

    def expected(self) -> Any:
        """Every cell by its expectation given the observed cells of the row."""
        return self._frame(self._ruled(self._expected_cells()))

    def _ruled(self, filled: dict[str, Array]) -> dict[str, Array]:
        """Filled cells that keep the rules of the table; draws where changes of single cells do not."""
        rules = self._rules
        if not rules:
            return filled
        cells = rules.computed(rules.ordered(rules.computed(self._whole(filled)), self.rows))
        return self._redrawn(self._back(filled, cells), torch.Generator(self._device).manual_seed(0))

    def _whole(self, filled: Mapping[str, Array]) -> dict[str, RawColumn]:
        """The cells of rules, with missing ones filled in."""
        whole = {}
        for name, is_open in self._open.items():
            whole[name] = cells = self._read[name]
            if name in filled:
                values = cells.values.astype(np.asarray(filled[name]).dtype, copy=True)
                values[is_open] = filled[name]
                storage = self.engine.schema.columns[name].storage
                whole[name] = RawColumn(name, values, cells.missing & ~is_open, storage)
        return whole

    def _back(self, filled: dict[str, Array], whole: Mapping[str, RawColumn]) -> dict[str, Array]:
        """The filled cells, with those of rules as they are in whole rows."""
        return filled | {name: whole[name].values[self._open[name]] for name in filled if name in whole}

    @property
    def _device(self) -> torch.device:
        return next(iter(self.engine.joint.components.values())).device

    def _expected_cells(self) -> dict[str, Array]:
        filled = {}
        for column in self.engine.schema.roots.values():
            index = self._missing(column)
            if len(index):
                filled[column.name] = self._typical(column, index)
        for column in self.engine.schema.derived.values():
            index = self._missing(column)
            if len(index):
                filled[column.name] = self._typical(column, index)
                finer, places = self._missing(self.engine.root(column)), np.full(self.raw.n_rows, -1)
                places[finer] = np.arange(len(finer))
                both = places[index] >= 0
                outcomes = (
                    column.codec.source.outcomes_of(filled[column.source][places[index][both]])
                    if both.any()
                    else []
                )
                if len(outcomes):
                    filled[column.name][both] = column.codec.cells(column.codec.steps(outcomes))[0]
        return filled

    def _typical(self, column: Column, index: Array) -> Array:
        """The expectations of the cells of a column in some rows."""
        parts = self.rows.take(torch.from_numpy(index)).blocks(BLOCK)
        ask = self.engine.rows.by_groups
        return np.concatenate([ask(column, part, lambda rho: rho.typical()) for part in parts])

    def most_probable(self) -> Any:
        """All cells of a row together: the most probable values and components.

        Or `expected`, if that has a higher log p.
        """
        if not self.raw.n_rows:
            return self._frame({})
        parts = [self._mode(block) for block in self._rows_with_cells().blocks(BLOCK)]
        values = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        ways = (self._decoded(values), self._expected_cells())
        return self._frame(self._better(*map(self._ruled, ways)))

    def _mode(self, rows: Table) -> dict[str, Tensor]:
        """The most probable values of the variables of some rows."""
        values: dict[str, Tensor] = {}
        for group in row_groups(self.engine.schema, rows):
            regions = group.regions or {}
            points = {name: value for name, value in group.rows.columns.items() if name not in regions}
            observed = {name: mask for name, mask in group.rows.observed.items() if name in points}
            mode = self.engine.joint.mode(observed=observed, **points, **regions).values
            for name, value in mode.items():
                values.setdefault(name, value.cpu().new_zeros(len(rows), *value.shape[1:]))
                values[name][group.index] = value.cpu()
        return values

    def _better(self, first: dict[str, Array], second: dict[str, Array]) -> dict[str, Array]:
        """For every row, the one of two completions with the higher log p."""
        schema = self.engine.schema
        scores = [
            np.concatenate(
                [
                    self.engine.rows.log_prob(block).numpy()
                    for block in schema.encode(self._frame(cells)).blocks(BLOCK)
                ]
            )
            for cells in (first, second)
        ]
        is_second = scores[1] > scores[0]
        return {
            name: np.where(is_second[self._missing(schema.columns[name])], second[name], cells)
            for name, cells in first.items()
        }

    def drawn(self, generator: torch.Generator) -> Any:
        """All cells of a row together, drawn from their distribution given the observed cells.

        By the chain rule: one column after the other, given the observed cells and those drawn before. Rows
        that break a rule are drawn again.
        """
        filled = self._drawn_cells(generator)
        return self._frame(self._redrawn(filled, generator) if self._rules else filled)

    def _redrawn(self, filled: dict[str, Array], generator: torch.Generator) -> dict[str, Array]:
        """Filled cells, with those of rows that break a rule drawn until they keep it."""
        rows = self._rules.broken(self._whole(filled))
        for _ in range(_ROUNDS):
            if not len(rows):
                return filled
            part = Imputer(self.engine, self.raw.take(rows), self._empty)
            for name, cells in part._drawn_cells(generator).items():
                column = self.engine.schema.columns[name]
                place = np.searchsorted(self._missing(column), rows[part._missing(column)])
                filled[name] = filled[name].astype(np.result_type(filled[name], cells))
                filled[name][place] = cells
            rows = self._rules.broken(self._whole(filled))
        listed = ", ".join(map(str, rows[:_SHOWN].tolist()))
        warnings.warn(f"no values were drawn that keep the rules in {len(rows)} rows: {listed}", stacklevel=4)
        return filled

    def _drawn_cells(self, generator: torch.Generator) -> dict[str, Array]:
        """Draws of the missing cells, those that formulas determine computed."""
        blocks = self._rows_with_cells().blocks(BLOCK)
        parts = [self._draw(rows, BLOCK * i, generator) for i, rows in enumerate(blocks)]
        values = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        filled = self._decoded(values)
        return self._back(filled, self._rules.computed(self._whole(filled))) if self._rules else filled

    def _draw(self, rows: Table, start: int, generator: torch.Generator) -> dict[str, Tensor]:
        values = {name: value.clone() for name, value in rows.columns.items()}
        observed = {name: mask.clone() for name, mask in rows.observed.items()}
        schema = self.engine.schema
        for column in schema.roots.values():
            missing = self._missing(column)
            for coarser in schema.derived.values():
                if coarser.source == column.name:  # a finer cell that is there, with a new level
                    new = self._missing(coarser)
                    new = new[(new >= start) & (new < start + BLOCK)]
                    missing = np.union1d(missing, new[~observed[column.variables[0]][new - start].numpy()])
            index = torch.from_numpy(missing[(missing >= start) & (missing < start + BLOCK)] - start)
            if len(index):
                part = Table(values, observed).take(index)
                for group in row_groups(schema, part, column):
                    rho = self.engine.rows.posterior(column, group).rho
                    drawn = rho.sample((), generator=generator)
                    drawn = drawn if isinstance(drawn, dict) else {column.variables[0]: drawn}
                    for name, value in drawn.items():
                        values[name][index[group.index]] = value.cpu().to(values[name].dtype)
                        observed[name][index[group.index]] = True
        return values

    # ---- back to a frame

    def _decoded(self, values: Mapping[str, Tensor]) -> dict[str, Array]:
        filled = {}
        for column in self.engine.columns.values():
            index = self._missing(column)
            if len(index):
                parts = (values[name][torch.from_numpy(index)] for name in column.variables)
                filled[column.name] = column.codec.decode(*parts)
        return filled

    def _frame(self, filled: Mapping[str, Array]) -> Any:
        """The frame with some missing cells filled in; constants are filled in, too."""
        schema = self.engine.schema
        cells = dict(filled)
        for name, column in schema.columns.items():
            missing = self._missing(column)
            if column.kind == "constant" and len(missing):
                cells[name] = schema.decode_column(name, {}, len(missing)).values
        columns = [
            RawColumn(name, values, np.zeros(len(values), bool), schema.columns[name].storage)
            for name, values in cells.items()
        ]
        whole = joined(columns, schema.texts)
        return fill_frame(self.raw, {c.name: c.values for c in whole}, {c.name: c.storage for c in whole})


class RuledCells:
    """Cells of rows of which some are filled in, as rules allow them.

    A cell that a formula determines is computed. If several cells of a formula are filled in, one of them is
    computed from the values of the others. An order that filled cells would break conditions one of them.

    Args:
        engine: the fitted table.
        is_open: by column of the rows, the cells that are filled in.
    """

    def __init__(self, engine: TableEngine, is_open: Mapping[str, Array]) -> None:
        self._engine, self._rules = engine, RowRules(engine.schema)
        self._open = {name: is_open[name] for name in self._rules.names if name in is_open}

    def __bool__(self) -> bool:
        return any(is_open.any() for is_open in self._open.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of the rows that rules are about."""
        return tuple(self._open)

    # ---- formulas

    def computed(self, cells: Cells) -> dict[str, RawColumn]:
        """Cells, those that formulas determine computed."""
        cells = dict(cells)
        for (name, way), rows in self._to_compute:
            made = self._rules.filled(name, way, cells, rows & ~cells[name].missing)
            cells |= {name: made, **self._coarser({name: made}, cells)}
        return cells

    def _coarser(self, made: Cells, cells: Cells) -> dict[str, RawColumn]:
        """Filled cells of columns that are functions of some."""
        coarser = {}
        for name, new in self._rules.coarser_cells(made).items():
            if name in self._open:
                values = np.where(self._open[name], new.values, cells[name].values)
                missing = np.where(self._open[name], new.missing, cells[name].missing)
                coarser[name] = replace(cells[name], values=values, missing=missing)
        return coarser

    @cached_property
    def _to_compute(self) -> list[tuple[tuple[str, Any], Array]]:
        """Columns with the expressions that give them, in order, and the rows in which they are computed."""
        formulas = [
            rule
            for rule in self._rules.rules
            if isinstance(rule, FormulaRule) and all(name in self._open for name in rule.columns)
        ]
        unknown = {name: is_open.copy() for name, is_open in self._open.items()}
        steps: list[tuple[tuple[str, Any], Array]] = []
        while True:
            counts = [np.sum([unknown[name] for name in rule.columns], 0) for rule in formulas]
            # What is determined comes first; then one formula leaves the choice of a column.
            some = [(rule, n == 1) for rule, n in zip(formulas, counts, strict=True) if (n == 1).any()]
            some = some or [(rule, n > 1) for rule, n in zip(formulas, counts, strict=True) if (n > 1).any()]
            if not some:
                return steps
            rule, rows = some[0]
            rest = rows.copy()
            for name, way in ways_to_compute(self._engine.schema, rule, rounded=True).items():
                here = rest & unknown[name]
                if here.any():
                    steps.append(((name, way), here))
                rest &= ~here
            for name in rule.columns:
                unknown[name] = unknown[name] & ~rows

    # ---- orders

    def ordered(self, cells: Cells, rows: Table) -> dict[str, RawColumn]:
        """Cells that keep the orders: those that break one are filled in again, within its range.

        Args:
            rows: as the schema encodes them, with the cells that were there.
        """
        cells = {name: replace(one, values=one.values.copy()) for name, one in cells.items()}
        orders = [
            rule
            for rule in self._rules.rules
            if isinstance(rule, OrderRule) and all(name in self._open for name in rule.columns)
        ]
        free = dict(self._open)
        for (name, _), is_computed in self._to_compute:
            free[name] = free[name] & ~is_computed
        for name in dict.fromkeys(name for rule in orders for name in rule.columns):
            column = self._engine.schema.columns[name]
            about = [rule for rule in orders if name in rule.columns]
            broken = np.logical_or.reduce([rule.broken(self._engine.schema, cells) for rule in about])
            for row in np.flatnonzero(broken & free[name]).tolist():
                ends = self._range(name, about, cells, row)
                one_row = rows.take(torch.tensor([row]))
                cells[name].values[row] = self._inside(column, *ends, one_row)
            cells |= self._coarser({name: cells[name]}, cells)
        return cells

    def _range(self, name: str, orders: list[OrderRule], cells: Cells, row: int) -> tuple[Any, Any, Any]:
        """The ends between which the orders of a column put a cell, and whether they are inside."""
        above = [rule.high for rule in orders if rule.low == name and not cells[rule.high].missing[row]]
        below = [rule.low for rule in orders if rule.high == name and not cells[rule.low].missing[row]]
        low = max((cells[other].values[row] for other in below), default=None)
        high = min((cells[other].values[row] for other in above), default=None)
        return low, high, "neither" if any(rule.strict for rule in orders) else "both"

    def _inside(self, column: Column, low: Any, high: Any, closed: Any, row: Table) -> Any:
        """The typical value of a cell within a range; an end of the range if there is none."""
        nearest = low if low is not None else high
        if low is not None and high is not None and low > high:
            return nearest
        boxes = column.value_boxes(column.codec.read(Interval(low, high, closed)))
        if len(column.variables) != 1 or column.source or len(boxes) != 1 or not boxes[0]:
            return nearest
        value = self._engine.rows.inside(column, row, boxes[0]).typical()[0]
        is_inside = (low is None or low <= value) and (high is None or value <= high)
        return value if is_inside else nearest

    # ---- draws

    def broken(self, cells: Cells) -> Array:
        """The rows that break a rule, or a bound, and would not if their filled cells were others."""
        wrong = np.zeros(len(next(iter(self._open.values()), ())), dtype=bool)
        for rule in self._rules.rules:
            if all(name in self._open for name in rule.columns):
                is_open = np.logical_or.reduce([self._open[name] for name in rule.columns])
                wrong |= rule.broken(self._engine.schema, cells) & is_open
        for (name, _), rows in self._to_compute:
            numbers = as_numbers(cells[name])
            wrong |= rows & ~cells[name].missing & ~is_in_range(self._engine.schema.columns[name], numbers)
        return np.flatnonzero(wrong)
