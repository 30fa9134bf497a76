"""Whole rows: new rows that are drawn, and frames whose missing cells are filled in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.logspace import log_normalize
from kdmkit.distributions import KDM
from kdmkit.estimators.common.arrays import Array
from kdmkit.estimators.table.answering.engine import BLOCK, TableEngine, boxes
from kdmkit.estimators.table.answering.variable_posterior import infer
from kdmkit.estimators.table.frames.read import RawFrame, read_frame
from kdmkit.estimators.table.frames.restore import fill_frame
from kdmkit.estimators.table.schema import Column
from kdmkit.kernels import Interval, OneOf, Region, can_cut, cut
from kdmkit.training import Table

# Rows that are drawn together, since evidence on a column needs a posterior for every row.
_BLOCK = 8192


def draw_rows(
    engine: TableEngine, n: int, given: Mapping[str, Any], generator: torch.Generator
) -> dict[str, Tensor]:
    """n independent rows of all variables, from the distribution given the evidence.

    Variables with a region as evidence are drawn by the chain rule: first all others given the regions, then
    one after the other from its distribution inside its region.
    """
    evidence = engine.evidence(given)
    if not evidence:
        drawn: dict[str, Tensor] = engine.joint.sample((n,), generator=generator)
        return drawn
    parts = list(boxes(evidence))
    # Raises if the evidence is impossible.
    share = engine.box_shares(given)
    index = torch.multinomial(share.exp(), n, replacement=True, generator=generator).sort().values
    counts = torch.bincount(index, minlength=len(parts)).tolist()
    drawn_boxes = [
        _draw_box(engine.joint, min(_BLOCK, count - start), box, generator)
        for box, count in zip(parts, counts, strict=True)
        for start in range(0, count, _BLOCK)
    ]
    order = torch.randperm(n, generator=generator, device=generator.device)
    return {name: torch.cat([part[name] for part in drawn_boxes])[order] for name in engine.joint.variables}


def _draw_box(joint: Any, n: int, box: Mapping[str, Any], generator: torch.Generator) -> dict[str, Tensor]:
    drawn: dict[str, Tensor] = {}
    regions = {name: value for name, value in box.items() if isinstance(value, Region)}
    for name, value in box.items():
        if name not in regions:
            drawn[name] = value.to(generator.device).expand(n, *value.shape)
    free = [name for name in joint.variables if name not in box]
    if free:
        rho, _ = infer(joint, free, box)
        sample = rho.sample((n,), generator=generator)
        drawn |= {free[0]: sample} if len(free) == 1 else sample
    for name in list(regions):
        region = regions.pop(name)
        rho, _ = infer(joint, [name], {**drawn, **regions})
        if not rho.batch_shape:
            rho = rho.expand((n,))
        drawn[name] = draw_inside(rho, region, generator)
    return {name: drawn[name] for name in joint.variables}


def draw_inside(rho: KDM, region: Region, generator: torch.Generator) -> Tensor:
    """One draw inside a region for every element of the batch `(n,)`."""
    if isinstance(region, OneOf):
        return _draw_among(rho, region, generator)
    assert isinstance(region, Interval)
    event, like = rho.event_shape, rho.components
    low, high = (end.to(like.device, torch.float64).expand(event) for end in (region.low, region.high))
    if bool((low == high).all()):
        return low.to(like.dtype).expand(*rho.batch_shape, *event)
    if can_cut(rho.kernel):
        return _draw_between(rho, Interval(low, high), generator)
    mass = rho.log_mass(region).double().exp()
    # F⁻¹(u) with u uniform between P(x < low) and P(x ≤ high).
    top = rho.cdf(high.to(like.dtype)).double() if bool(torch.isfinite(high).all()) else torch.ones_like(mass)
    uniform = torch.rand(mass.shape, dtype=torch.float64, generator=generator, device=generator.device)
    level = _inside(top - mass * uniform, like.dtype)
    drawn = rho.icdf(level).reshape(*mass.shape, *event).double()
    return drawn.clamp(low, high).to(like.dtype)


def _draw_between(rho: KDM, region: Interval, generator: torch.Generator) -> Tensor:
    """From the components, cut off outside of the interval."""
    masses = rho.kernel.log_mass(region, rho.components).reshape(-1)
    kernel, components = cut(rho.kernel, region, rho.components)
    log_weights = log_normalize(rho.log_weights.double() + masses.double()).to(rho.log_weights.dtype)
    inside = KDM(components, None, kernel, log_weights=log_weights, validate_args=False)
    return inside.sample((), generator=generator)


def _inside(level: Float[Tensor, " n"], dtype: torch.dtype) -> Float[Tensor, " n"]:
    """Levels strictly between 0 and 1, as `icdf` takes them."""
    limits = torch.finfo(dtype)
    return level.clamp(limits.tiny, 1 - limits.eps).to(dtype)


def _draw_among(rho: KDM, region: OneOf, generator: torch.Generator) -> Tensor:
    """One of the values, by their probabilities."""
    values = region.values.unique().to(rho.components.device)
    log_mass = torch.stack([rho.log_mass(OneOf(value.reshape(1))) for value in values], -1).double()
    weights = torch.softmax(log_mass, -1)
    index = torch.multinomial(weights, 1, generator=generator).squeeze(-1)
    return values[index].reshape(*index.shape, *rho.event_shape)


class Imputer:
    """The missing cells of a frame.

    Args:
        engine: the fitted table.
        X: the frame.
    """

    def __init__(self, engine: TableEngine, X: Any) -> None:
        self.engine = engine
        self.raw: RawFrame = read_frame("X", X)
        self.rows: Table = engine.schema.encode(self.raw)

    def _missing(self, column: Column) -> Array:
        """Numbers of the rows that lack a cell of the column; none if the frame lacks the column."""
        raw = self.raw.columns.get(column.name)
        return np.flatnonzero(raw.missing) if raw is not None else np.array([], dtype=np.int64)

    # ---- three ways to fill in

    def expected(self) -> Any:
        """Every cell by its expectation given the observed cells of the row."""
        filled = {}
        for column in self.engine.columns.values():
            index = self._missing(column)
            if len(index):
                parts = self.rows.take(torch.from_numpy(index)).blocks(BLOCK)
                cells = [self.engine.posterior(column, part).typical() for part in parts]
                filled[column.name] = np.concatenate(cells)
        return self._frame(filled)

    def most_probable(self) -> Any:
        """All cells of a row together by the most probable values."""
        if not self.raw.n_rows:
            return self._frame({})
        joint, blocks = self.engine.joint, self.rows.blocks(BLOCK)
        modes = [joint.mode(observed=block.observed, **block.columns).values for block in blocks]
        values = {name: torch.cat([mode[name].cpu() for mode in modes]) for name in self.rows.columns}
        return self._frame(self._decoded(values))

    def drawn(self, generator: torch.Generator) -> Any:
        """All cells of a row together, drawn from their distribution given the observed cells.

        By the chain rule: one column after the other, given the observed cells and those drawn before.
        """
        parts = [self._draw(rows, BLOCK * i, generator) for i, rows in enumerate(self.rows.blocks(BLOCK))]
        values = {name: torch.cat([part[name] for part in parts]) for name in self.rows.columns}
        return self._frame(self._decoded(values))

    def _draw(self, rows: Table, start: int, generator: torch.Generator) -> dict[str, Tensor]:
        values = {name: value.clone() for name, value in rows.columns.items()}
        observed = {name: mask.clone() for name, mask in rows.observed.items()}
        for column in self.engine.columns.values():
            missing = self._missing(column)
            index = torch.from_numpy(missing[(missing >= start) & (missing < start + BLOCK)] - start)
            if len(index):
                part = Table(values, observed).take(index)
                for name, drawn in self._draw_column(column, part, generator).items():
                    values[name][index] = drawn.cpu().to(values[name].dtype)
                    observed[name][index] = True
        return values

    def _draw_column(self, column: Column, rows: Table, generator: torch.Generator) -> dict[str, Tensor]:
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
