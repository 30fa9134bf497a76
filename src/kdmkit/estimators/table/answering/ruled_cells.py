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
from kdmkit.estimators.table.frames.storage import RawColumn
from kdmkit.estimators.table.resolutions import is_in_range
from kdmkit.estimators.table.row_rules import Cells, RowRules, ways_to_compute
from kdmkit.estimators.table.rules import FormulaRule, OrderRule
from kdmkit.kernels import Interval
from kdmkit.training import Table

if TYPE_CHECKING:
    from kdmkit.estimators.table.answering.engine import TableEngine


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
