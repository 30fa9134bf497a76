"""Missing cells of a frame, filled in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kdmkit.estimators.common.arrays import Array
from kdmkit.estimators.table.answers.inference import BLOCK, Inference
from kdmkit.estimators.table.frames.fill import fill_frame
from kdmkit.estimators.table.frames.read import RawFrame, read_frame
from kdmkit.estimators.table.schema import Column, Encoded


class Imputer:
    """The missing cells of a frame.

    Args:
        engine: the fitted table.
        X: the frame.
    """

    def __init__(self, engine: Inference, X: Any) -> None:
        self.engine = engine
        self.raw: RawFrame = read_frame("X", X)
        self.rows: Encoded = engine.schema.encode(self.raw)

    def _missing(self, column: Column) -> Array:
        """Numbers of the rows that lack a cell of the column; none where the frame lacks the column."""
        raw = self.raw.columns.get(column.name)
        return np.flatnonzero(raw.missing) if raw is not None else np.array([], dtype=np.int64)

    # ---- three ways to fill in

    def expected(self) -> Any:
        """Every cell by its own distribution given the observed cells of the row."""
        filled = {}
        for column in self.engine.columns.values():
            index = self._missing(column)
            if len(index):
                parts = self.rows.take(torch.from_numpy(index)).blocks(BLOCK)
                found = [self.engine.posterior(column, part).typical() for part in parts]
                filled[column.name] = np.concatenate(found)
        return self._frame(filled)

    def most_probable(self) -> Any:
        """All cells of a row together by the most probable values."""
        if not self.raw.n_rows:
            return self._frame({})
        found: dict[str, list[Tensor]] = {name: [] for name in self.rows.values}
        for block in self.rows.blocks(BLOCK):
            values = self.engine.joint.mode(observed=block.observed, **block.values).values
            for name in found:
                found[name].append(values[name].cpu())
        return self._frame(self._decoded({name: torch.cat(parts) for name, parts in found.items()}))

    def drawn(self, generator: torch.Generator) -> Any:
        """All cells of a row together, drawn from their distribution given the observed cells.

        By the chain rule: one column after the other, given the observed cells and those drawn before.
        """
        parts = [self._draw(rows, BLOCK * i, generator) for i, rows in enumerate(self.rows.blocks(BLOCK))]
        values = {name: torch.cat([part[name] for part in parts]) for name in self.rows.values}
        return self._frame(self._decoded(values))

    def _draw(self, rows: Encoded, start: int, generator: torch.Generator) -> dict[str, Tensor]:
        values = {name: value.clone() for name, value in rows.values.items()}
        observed = {name: mask.clone() for name, mask in rows.observed.items()}
        for column in self.engine.columns.values():
            missing = self._missing(column)
            index = torch.from_numpy(missing[(missing >= start) & (missing < start + BLOCK)] - start)
            if len(index):
                part = Encoded(values, observed, rows.log_offset).take(index)
                for name, drawn in self._draw_column(column, part, generator).items():
                    values[name][index] = drawn.cpu().to(values[name].dtype)
                    observed[name][index] = True
        return values

    def _draw_column(self, column: Column, rows: Encoded, generator: torch.Generator) -> dict[str, Tensor]:
        rho = self.engine.posterior(column, rows).rho
        drawn = rho.sample((), generator=generator)
        return drawn if isinstance(drawn, dict) else {column.variables[0]: drawn}

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
        return fill_frame(self.raw, cells, {name: schema.columns[name].storage for name in cells})
