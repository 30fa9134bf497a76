"""Cells that are filled in so that rows keep their rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kdmkit.estimators.common.arrays import Array
from kdmkit.estimators.table.codecs.numbers import as_numbers
from kdmkit.estimators.table.column import Column
from kdmkit.estimators.table.frames.read import RawFrame
from kdmkit.estimators.table.frames.storage import RawColumn
from kdmkit.estimators.table.resolutions import is_in_range
from kdmkit.estimators.table.row_rules import RowRules, ways_to_compute
from kdmkit.estimators.table.rules import FormulaRule, OrderRule
from kdmkit.kernels import Interval
from kdmkit.training import Table

if TYPE_CHECKING:
    from kdmkit.estimators.table.answering.engine import TableEngine

Filled = Mapping[str, Array]


class RuledCells:
    """The missing cells of a frame, as rules allow them.

    A cell that a formula determines is computed. If several cells of a formula are missing, one of them is
    computed from the values of the others. An order that filled cells would break conditions one of them.

    Args:
        engine: the fitted table.
        raw: the frame.
        rows: the frame as the schema encodes it.
    """

    def __init__(self, engine: TableEngine, raw: RawFrame, rows: Table) -> None:
        self._engine, self._rows = engine, rows
        self._rules = RowRules(engine.schema)
        #: Of columns of rules that the frame has.
        self._cells: dict[str, RawColumn] = {}
        if self._rules:
            read = engine.schema.read(raw).columns
            self._cells = {name: read[name] for name in self._rules.names if name in read}
        sources = {name: raw.columns[engine.schema.source_of(name)] for name in self._cells}
        #: The cells that are filled in.
        self._open = {name: column.missing for name, column in sources.items()}

    def __bool__(self) -> bool:
        return any(is_open.any() for is_open in self._open.values())

    def _whole(self, filled: Filled) -> dict[str, RawColumn]:
        """The cells of the rules, with missing ones filled in."""
        whole = {}
        for name, cells in self._cells.items():
            if name in filled:
                values = cells.values.astype(np.asarray(filled[name]).dtype, copy=True)
                values[self._open[name]] = filled[name]
                storage = self._engine.schema.columns[name].storage
                cells = RawColumn(name, values, cells.missing & ~self._open[name], storage)
            whole[name] = cells
        return whole

    def _back(self, filled: Filled, whole: Mapping[str, RawColumn]) -> dict[str, Array]:
        """The filled cells, with those of some columns as they are in whole rows."""
        changed = {name: whole[name].values[self._open[name]] for name in filled if name in whole}
        return {**filled, **changed}

    # ---- formulas

    def computed(self, filled: Filled) -> dict[str, Array]:
        """Filled cells, those that formulas determine computed."""
        whole = self._whole(filled)
        for (name, way), rows in self._to_compute:
            made = self._rules.filled(name, way, whole, rows)
            whole |= {name: made, **self._coarser({name: made}, whole)}
        return self._back(filled, whole)

    def _coarser(self, made: Mapping[str, RawColumn], whole: Mapping[str, RawColumn]) -> dict[str, RawColumn]:
        """Cells of columns that are functions of some, where they were missing."""
        coarser = {}
        for name, cells in self._rules.coarser_cells(made).items():
            if name in whole and name in self._cells:
                values = np.where(self._open[name], cells.values, whole[name].values)
                coarser[name] = replace(whole[name], values=values)
        return coarser

    @cached_property
    def _to_compute(self) -> list[tuple[tuple[str, Any], np.ndarray]]:
        """Columns with the expressions that give them, in order, and the rows in which they are computed."""
        formulas = [
            rule
            for rule in self._rules.rules
            if isinstance(rule, FormulaRule) and all(name in self._cells for name in rule.columns)
        ]
        unknown = {name: is_open.copy() for name, is_open in self._open.items()}
        steps: list[tuple[tuple[str, Any], np.ndarray]] = []

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

    def ordered(self, filled: Filled) -> dict[str, Array]:
        """Filled cells that keep the orders: those that break one are filled in again, within its range."""
        whole = self._whole(filled)
        orders = [
            rule
            for rule in self._rules.rules
            if isinstance(rule, OrderRule) and all(name in whole for name in rule.columns)
        ]
        computed = {name: np.zeros(len(cells.missing), bool) for name, cells in whole.items()}
        for (name, _), rows in self._to_compute:
            computed[name] = computed[name] | rows
        # Upper columns last: they are filled in above the lower ones.
        for name in dict.fromkeys(name for rule in orders for name in rule.columns):
            column = self._engine.schema.columns[name]
            own = [rule for rule in orders if name in rule.columns]
            broken = np.logical_or.reduce([rule.broken(self._engine.schema, whole) for rule in own])
            for row in np.flatnonzero(broken & self._open[name] & ~computed[name]).tolist():
                low, high, closed = self._range(name, own, whole, row)
                value = self._inside(column, low, high, closed, row)
                whole[name].values[row] = value
            whole |= self._coarser({name: whole[name]}, whole)
        return self._back(filled, whole)

    def _range(self, name: str, orders: list[OrderRule], whole: Mapping[str, RawColumn], row: int) -> Any:
        """The ends between which the orders of a column put a cell, and whether they are inside."""
        above = [rule.high for rule in orders if rule.low == name and not whole[rule.high].missing[row]]
        below = [rule.low for rule in orders if rule.high == name and not whole[rule.low].missing[row]]
        closed = "neither" if any(rule.strict for rule in orders) else "both"
        low = max((whole[other].values[row] for other in below), default=None)
        return low, min((whole[other].values[row] for other in above), default=None), closed

    def _inside(self, column: Column, low: Any, high: Any, closed: Any, row: int) -> Any:
        """The typical value of a cell within a range; an end of the range if there is none."""
        nearest = low if low is not None else high
        if low is not None and high is not None and low > high:
            return nearest
        boxes = column.value_boxes(column.codec.read(Interval(low, high, closed)))
        if len(column.variables) != 1 or column.source or len(boxes) != 1 or not boxes[0]:
            return nearest
        value = self._engine.rows.inside(column, self._rows.take(torch.tensor([row])), boxes[0]).typical()[0]
        is_inside = (low is None or low <= value) and (high is None or value <= high)
        return value if is_inside else nearest

    # ---- draws

    def broken(self, filled: Filled) -> Array:
        """The rows that break a rule, or a bound, and would not if their missing cells were others."""
        whole = self._whole(filled)
        wrong = np.zeros(len(next(iter(self._cells.values())).missing), dtype=bool)
        for rule in self._rules.rules:
            if all(name in whole for name in rule.columns):
                is_open = np.logical_or.reduce([self._open[name] for name in rule.columns])
                wrong |= rule.broken(self._engine.schema, whole) & is_open
        for (name, _), rows in self._to_compute:
            numbers = as_numbers(whole[name])
            wrong |= rows & ~is_in_range(self._engine.schema.columns[name], numbers)
        return np.flatnonzero(wrong)
