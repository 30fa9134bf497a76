"""Whole rows: new rows that are drawn, and frames whose missing cells are filled in."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kdmkit._core.checks import bad_argument, check_choice
from kdmkit.distributions.event_text import Pair
from kdmkit.distributions.events import Box, Condition, Event
from kdmkit.estimators.common.arrays import Array
from kdmkit.estimators.table.answering.engine import BLOCK, TableEngine, impossible
from kdmkit.estimators.table.codecs.numbers import as_numbers
from kdmkit.estimators.table.column import Column
from kdmkit.estimators.table.derived import row_groups
from kdmkit.estimators.table.frames.cells import joined
from kdmkit.estimators.table.frames.read import RawFrame
from kdmkit.estimators.table.frames.restore import fill_frame
from kdmkit.estimators.table.frames.storage import RawColumn
from kdmkit.estimators.table.outcomes import columns_of
from kdmkit.kernels import Missing
from kdmkit.training import Table

# A smaller share of draws that satisfied their conditions is a warning.
_FEW_ACCEPTED = 0.9
# Rounds of draws before a condition on several columns is given up, and the least share that may satisfy it.
_ROUNDS, _LEAST_SHARE = 200, 1e-4


class RowSampler:
    """Draws of whole rows that satisfy an event literally.

    Boxes are drawn exactly. Comparisons of two columns hold by rejection: `accepted` is the share of draws
    that satisfied them. A draw that rounding has put on the wrong side of an end is replaced, too.

    Args:
        engine: the fitted table.
        given: the event.
        complete: whether all cells are there.
    """

    def __init__(self, engine: TableEngine, given: Event, *, complete: bool = False) -> None:
        self._complete = complete
        for name in sorted(columns_of(given) & engine.schema.can_miss) if complete else ():
            given = given & ~Condition(name, Missing)
        self.engine, self.boxes = engine, engine.boxes(given)
        plain = [{key: part for key, part in box.items() if not isinstance(key, Pair)} for box in self.boxes]
        if not self.boxes:
            raise impossible(given)
        distinct = list({tuple(sorted(box.items(), key=str)): box for box in plain}.values())
        #: What is drawn from: without comparisons of columns, alternatives may overlap.
        self._drawn_from = [{}] if {} in distinct else distinct
        self._evidence = engine.evidence(self._drawn_from)
        #: Draws become cells by this schema: given single values are exact.
        self.schema = engine.schema.with_points(plain)
        self._given = given
        self.accepted = 1.0

    def frame(self, n: int, generator: torch.Generator, library: str | None, first_key: int = 0) -> Any:
        """n rows as a frame; rare levels stay in columns that the event is about.

        Args:
            library: pandas, polars or arrow; None: that of the fitted frame.
            first_key: the number of the first new key of identifiers.
        """
        check_choice("frame", library, (None, "pandas", "polars", "arrow"))
        values = {name: value.cpu() for name, value in self.draw(n, generator).items()}
        named = columns_of(self._given)
        return self.schema.decode(values, named=named, backend=library, first_key=first_key)

    def draw(self, n: int, generator: torch.Generator) -> dict[str, Tensor]:
        """n rows of all variables."""
        parts: list[dict[str, Tensor]] = []
        kept = drawn = 0
        for _ in range(_ROUNDS):
            wanted = n - kept
            size = wanted if not drawn else min(1 << 18, int(1.1 * wanted * drawn / max(kept, 1)) + 16)
            try:
                rows = self._evidence.sample(size, generator, self._variables)
            except ValueError as error:
                raise impossible(self._given) from error
            copies = torch.from_numpy(self._copies(rows)).to(generator.device)
            inside = copies.isfinite()
            if bool((copies[inside] > 1).any()):
                inside &= torch.rand(size, generator=generator, device=generator.device) * copies < 1
            parts.append({name: value[inside][:wanted] for name, value in rows.items()})
            kept, drawn = kept + len(next(iter(parts[-1].values()))), drawn + size
            self.accepted = int(inside.sum()) / size if drawn == size else kept / drawn
            if kept >= n or (drawn >= 1 / _LEAST_SHARE and not kept):
                break
        if kept < n:
            wanted_share = f"an event that at least {_LEAST_SHARE:.2%} of the draws satisfy"
            raise ValueError(bad_argument("given", wanted_share, f"{kept} of {drawn} draws"))
        if self.accepted < _FEW_ACCEPTED:
            warnings.warn(f"{self.accepted:.1%} of the draws satisfied the conditions", stacklevel=3)
        return {name: torch.cat([part[name] for part in parts]) for name in self._variables}

    @property
    def _variables(self) -> tuple[str, ...]:
        """The variables that are drawn: those of values, and of presence if cells may be missing."""
        presences = {v.name for p in self.engine.schema.presences.values() for v in p.variables}
        return tuple(n for n in self.engine.joint.variables if not (self._complete and n in presences))

    def _copies(self, rows: Mapping[str, Tensor]) -> np.ndarray:
        """How many of the alternatives drawn from hold each row; ∞ if it does not satisfy the event."""
        n = len(next(iter(rows.values())))
        if {} in self.boxes:
            return np.ones(n)
        keys = {key for box in self.boxes for key in box}
        names = {name for key in keys for name in (key if isinstance(key, Pair) else (key,))}
        cells = {name: self.schema.decode_column(name, rows, n) for name in names}
        outcomes = {
            name: self.engine.columns[name].codec.outcomes_of(column.values) for name, column in cells.items()
        }

        def inside(box: Box) -> np.ndarray:
            here = np.ones(n, dtype=bool)
            for key, region in box.items():
                pair = key if isinstance(key, Pair) else (key,)
                missing = np.logical_or.reduce([cells[name].missing for name in pair])
                numbers = self._signs(key, cells) if isinstance(key, Pair) else outcomes[key]
                here &= np.where(missing, region.has_missing, region.contains(numbers))
            return here

        holds = np.logical_or.reduce(list(map(inside, self.boxes)))
        return np.where(holds, np.sum(list(map(inside, self._drawn_from)), 0), np.inf)

    def _signs(self, pair: Pair, cells: Mapping[str, RawColumn]) -> np.ndarray:
        """The sign of left − right."""
        left, right = (self._comparable(name, cells[name]) for name in pair)
        return (left > right).astype(float) - (left < right)

    def _comparable(self, name: str, cells: RawColumn) -> np.ndarray:
        codec = self.engine.columns[name].codec
        if codec.numeric:
            return as_numbers(cells)
        return codec.outcomes_of(cells.values) if cells.values.dtype == object else cells.values


class Imputer:
    """The missing cells of a frame.

    Args:
        engine: the fitted table.
        X: the frame.
        missing: what an empty cell is, as in `Schema.encode`.
    """

    def __init__(self, engine: TableEngine, X: Any, missing: str = "outcome") -> None:
        self.engine = engine
        self.raw: RawFrame = engine.schema.marked(X)
        self.rows: Table = engine.schema.encode(self.raw, missing=missing)

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
        return self._frame(self._expected_cells())

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
        return self._frame(self._better(self._decoded(values), self._expected_cells()))

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
        """Of two ways to fill in a row the one with the higher log p."""
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

        By the chain rule: one column after the other, given the observed cells and those drawn before.
        """
        blocks = self._rows_with_cells().blocks(BLOCK)
        parts = [self._draw(rows, BLOCK * i, generator) for i, rows in enumerate(blocks)]
        values = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        return self._frame(self._decoded(values))

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
