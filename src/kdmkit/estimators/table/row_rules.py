"""Rules in whole rows: what formulas compute, which rows keep all rules, and what follows for scores."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from kdmkit.estimators.table.codecs.numbers import NumberCodec, as_numbers
from kdmkit.estimators.table.expressions import Expression, Reference, as_cells, is_in_range, is_linear
from kdmkit.estimators.table.frames.storage import RawColumn
from kdmkit.estimators.table.rules import FormulaRule, OrderRule, Rule
from kdmkit.training import Table

Cells = Mapping[str, RawColumn]


def ways_to_compute(schema: Any, rule: FormulaRule, *, rounded: bool = False) -> dict[str, Expression]:
    """The columns that a formula can compute from its others: its left side first.

    A sum can be solved for all of its columns.

    Args:
        rounded: whether products are solved for their factors, too, which rounding may make wrong.
    """
    ways = {rule.target: rule.expression}
    if rounded or is_linear(rule.expression):
        for name in rule.expression.names:
            solved = rule.expression.solved(name, Reference(rule.target))
            if solved is not None:
                ways[name] = solved
    return {name: way for name, way in ways.items() if _is_computable(schema.columns[name])}


def _is_computable(column: Any) -> bool:
    return bool(column.variables) and not column.source and isinstance(column.codec, NumberCodec)


def plan(
    schema: Any, rules: Iterable[Rule], avoided: Collection[str] = ()
) -> tuple[dict[str, Expression], list[FormulaRule]]:
    """What is computed, in this order, and the formulas that compute nothing: these follow from others.

    Args:
        avoided: columns that are computed only if a formula has no other one.
    """
    chosen: dict[str, Expression] = {}
    idle = []
    for rule in rules:
        if not isinstance(rule, FormulaRule) or not rule.expression.names:
            continue
        ways = ways_to_compute(schema, rule)
        names = sorted(ways, key=lambda name: name in avoided)
        name = next((n for n in names if not _is_circular(n, ways[n], chosen)), None)
        if name is None:
            idle.append(rule)
        else:
            chosen[name] = ways[name]
    ordered: dict[str, Expression] = {}
    while len(ordered) < len(chosen):
        waiting = chosen.keys() - ordered.keys()
        ordered |= {n: e for n, e in chosen.items() if n in waiting and not waiting & set(e.names)}
    return ordered, idle


def _is_circular(name: str, expression: Expression, chosen: Mapping[str, Expression]) -> bool:
    """Whether a column is computed already, or from itself."""
    if name in chosen:
        return True
    seen, ahead = set(), list(expression.names)
    while ahead:
        other = ahead.pop()
        if other == name:
            return True
        if other in chosen and other not in seen:
            seen.add(other)
            ahead += chosen[other].names
    return False


class RowRules:
    """The rules of a table that its tree does not keep by itself: orders and formulas.

    Args:
        schema: of the table.
        avoided: columns with conditions: other ones are computed where a formula allows it.
    """

    def __init__(self, schema: Any, avoided: Collection[str] = ()) -> None:
        self.schema = schema
        self.rules = [rule for rule in schema.rules if isinstance(rule, OrderRule | FormulaRule)]
        self.plan, _ = plan(schema, self.rules, avoided)

    def __bool__(self) -> bool:
        return bool(self.rules)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The columns that rules are about, and those that are functions of computed ones."""
        about = [name for rule in self.rules for name in rule.columns]
        return tuple(dict.fromkeys([*about, *(c.name for c in self._coarser(self.plan))]))

    def _coarser(self, names: Collection[str]) -> list[Any]:
        return [column for column in self.schema.derived.values() if column.source in names]

    # ---- new rows

    def computed(self, cells: Cells) -> dict[str, RawColumn]:
        """The cells of columns that formulas compute; missing ones stay missing.

        Args:
            cells: at least those of `names`.
        """
        made: dict[str, RawColumn] = {}
        for name, expression in self.plan.items():
            if name in cells:
                made[name] = self.filled(name, expression, {**cells, **made}, ~cells[name].missing)
        return {**made, **self.coarser_cells(made)}

    def filled(self, name: str, expression: Expression, cells: Cells, rows: np.ndarray) -> RawColumn:
        """The cells of a column with some rows computed, where the other cells are there."""
        value = expression.value({other: as_numbers(cells[other]) for other in expression.names})
        rows = rows & np.isfinite(value)
        values = cells[name].values.copy()
        values[rows] = as_cells(self.schema.columns[name], np.broadcast_to(value, rows.shape)[rows])
        return replace(cells[name], values=values)

    def coarser_cells(self, cells: Cells) -> dict[str, RawColumn]:
        """The cells of columns that are functions of some."""
        made = {}
        for column in self._coarser(cells):
            source = cells[column.source]
            codes = column.codec.steps(column.codec.source.outcomes_of(source.values))
            values, missing = column.codec.cells(np.where(source.missing, column.codec.steps.missing, codes))
            made[column.name] = RawColumn(column.name, values, missing, column.storage)
        return made

    def kept(self, cells: Cells) -> np.ndarray:
        """The rows that keep all rules, with computed cells that their columns can have."""
        holds = ~self.broken(cells)
        for name in self.plan:
            cell = cells[name]
            holds &= cell.missing | is_in_range(self.schema.columns[name], as_numbers(cell))
        return holds

    def broken(self, cells: Cells) -> np.ndarray:
        """The rows that break a rule of which all cells are there."""
        n_rows = len(next(iter(cells.values())).missing)
        wrong = np.zeros(n_rows, dtype=bool)
        for rule in self.rules:
            if all(name in cells for name in rule.columns):
                wrong |= rule.broken(self.schema, cells)
        return wrong

    # ---- rows that are scored

    def scored(self, rows: Table, cells: Cells) -> Table:
        """Rows for log p: cells that formulas compute from others have probability 1, and rows that break a
        rule have −∞ or the logarithm of the share of such rows.

        Args:
            rows: as the schema encodes them.
            cells: of the same rows.
        """
        observed, offset = dict(rows.observed), rows.log_offset.double().clone()
        offset += torch.from_numpy(self._penalty(cells, len(rows)))
        for name, certain in self._determined(cells).items():
            column, mask = self.schema.columns[name], torch.from_numpy(certain)
            events = column.codec.encode(cells[name])
            adds = events.log_offset + column.codec.log_share(events, cells[name].missing)
            offset -= torch.where(mask, torch.as_tensor(adds), 0.0)
            for variable in (*column.variables, *(c.code for c in self._coarser([name]))):
                observed[variable] = observed[variable] & ~mask
        return replace(rows, observed=observed, log_offset=offset)

    def _penalty(self, cells: Cells, n_rows: int) -> np.ndarray:
        penalty = np.zeros(n_rows)
        for rule in self.rules:
            if all(name in cells for name in rule.columns):
                share = (rule.exceptions + 0.5) / (rule.n_rows + 1)
                rare = math.log(share) if self.schema.broken_rules == "rare" else -math.inf
                penalty[rule.broken(self.schema, cells)] += rare
        return penalty

    def _determined(self, cells: Cells) -> dict[str, np.ndarray]:
        """For each computed column, the rows whose other cells determine it."""
        certain: dict[str, np.ndarray] = {}
        for name, expression in self.plan.items():
            if all(member in cells for member in (name, *expression.names)):
                there = np.logical_and.reduce([~cells[n].missing for n in (name, *expression.names)])
                value = expression.value({other: as_numbers(cells[other]) for other in expression.names})
                rule = FormulaRule(0, 0, False, name, expression)
                certain[name] = there & np.isfinite(value) & ~rule.broken(self.schema, cells)
        return certain


def scored_rows(schema: Any, frame: Any, missing: str) -> Table:
    """The rows of a frame for log p, with the orders and formulas of the table.

    Args:
        missing: as in `Schema.encode`.
    """
    raw = schema.marked(frame)
    rows: Table = schema.encode(raw, missing=missing)
    rules = RowRules(schema)
    return rules.scored(rows, schema.read(raw).columns) if rules else rows
