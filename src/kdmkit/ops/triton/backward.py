"""The backward pass of the Triton backend.

With y and z the whitened points and components and g_ij the derivative by score ij, the kernels give
Σ_j g_ij (z_j − y_i) and Σ_i g_ij (y_i − z_j), up to a term that is cheap to add here. Torch computes what is
linear in the number of points or of components: gradients by points and components are twice those sums,
times the transposed whitening; the gradient by the scale is twice their products with the centred points and
components.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit.ops.blocks import slices
from kdmkit.ops.triton.backend import Outputs
from kdmkit.ops.triton.forward import ComponentSource, stage_in_segments, stage_values
from kdmkit.ops.triton.local_kernels import components_direct, points_direct
from kdmkit.ops.triton.product_kernels import components_kernel, points_kernel
from kdmkit.ops.triton.staging import (
    Config,
    Segment,
    Staged,
    choose_splits,
    halves,
    launch,
    on_device,
    slots_of,
)

# The kernels' weights are at most 2^14, and the values they see less than 2^15.
_LIFT = 14
_LARGEST_VALUE = 2.0**15

Upstreams = tuple[Float[Tensor, "n v"] | None, Float[Tensor, "n"]]


def backward(
    operands: Sequence[Any], outputs: Outputs, upstream: Upstreams, needs: Sequence[bool]
) -> list[Tensor | None]:
    """Gradients by query, components, log-weights, values and scale, in float32; None if not needed.

    Args:
        operands: metric, query, components, log-weights, values and scale.
    """
    query = operands[1]
    with on_device(query.device):
        total = _Backward(operands, needs)
        for rows in slices(len(query), total.source.plan.point_rows):
            averages, lse, maxima, top_weights = (output[rows] for output in outputs)
            by_averages = None if upstream[0] is None else upstream[0][rows]
            total.add_points(rows, (averages, lse, maxima, top_weights), (by_averages, upstream[1][rows]))
        return total.gradients


@dataclass(frozen=True)
class _Upstream:
    """The derivatives by the outputs, scaled to the range of half precision.

    g_ij = w_ij·(upstream_i · v_j + slope_i) with slope = by_lse − upstream · averages. `bound` is at least
    every |g_ij| of a point: its weights w_ij are at most its top weight. `largest` is the largest bound.
    """

    staged: Staged
    coefficients: Float[Tensor, "3 rows"]
    pairs: Float[Tensor, "rows 4"]
    bound: Float[Tensor, "n"]
    largest: Float[Tensor, ""]
    by_lse: Float[Tensor, "n"]

    @property
    def halves(self) -> tuple[Tensor, ...]:
        return self.staged.high, self.staged.low, self.staged.exponents


def _scaled(source: ComponentSource, points: Staged, outputs: Outputs, upstream: Upstreams) -> _Upstream:
    averages, _, maxima, top_weights = outputs
    alive = top_weights > 0
    by_lse = torch.where(alive, upstream[1].float(), 0.0)
    slope, size, by_averages = by_lse, by_lse.abs(), upstream[0]
    if by_averages is not None:
        by_averages = torch.where(alive.unsqueeze(-1), by_averages.float(), 0.0)
        slope = slope - (by_averages * averages).sum(-1)
        size = slope.abs() + _largest_products(source, by_averages)
    bound = size * top_weights
    largest = bound.amax()
    largest = torch.where(largest > 0, largest, 1.0)
    # A gradient that is negligible beside that of another point becomes 0; its ratio would overflow.
    ratio = torch.where(bound > 1e-30 * largest, largest / bound, 0.0)
    scaled_weights = top_weights / largest
    n = top_weights.shape[0]
    coefficients = top_weights.new_zeros(3, points.rows)
    coefficients[0] = math.inf
    coefficients[0, :n] = maxima - _LIFT
    coefficients[1, :n] = ratio
    coefficients[2, :n] = slope * scaled_weights * ratio
    pairs = top_weights.new_zeros(points.rows, 4)
    pairs[:, 0] = coefficients[0]
    pairs[:n, 1] = slope * scaled_weights
    staged = points
    if by_averages is not None:
        unit = source.unit.reciprocal()
        values = by_averages * scaled_weights.unsqueeze(-1)
        staged = stage_values(values, unit, source.plan, lift=True)
    return _Upstream(staged, coefficients, pairs, bound, largest, by_lse)


def _largest_products(source: ComponentSource, by_averages: Float[Tensor, "n v"]) -> Float[Tensor, "n"]:
    """Bounds of |upstream_i · v_j|."""
    k = by_averages.shape[1]
    if source.plan.direct:
        # Nothing is in half precision: any scale will do.
        return torch.linalg.vector_norm(by_averages, dim=-1)
    lengths = torch.linalg.vector_norm(by_averages / source.unit[:k], dim=-1)
    return lengths * (_LARGEST_VALUE * math.sqrt(k))


def _merged(splits: Float[Tensor, "splits *rest"]) -> Float[Tensor, "*rest"]:
    return splits[0] if splits.shape[0] == 1 else splits.sum(0)


class _Backward:
    """Gradients, summed over blocks of points; there is mostly one block."""

    def __init__(self, operands: Sequence[Any], needs: Sequence[bool]) -> None:
        _, self.query, self.components, *_ = operands
        self.source, self.slots = stage_in_segments(*operands), slots_of(self.query.device)
        query, components, log_weights, values, scale = needs
        self.need_points = query or scale
        self.need_components = components or scale
        self.need_values = values and operands[4] is not None
        self.need_columns = self.need_components or self.need_values or log_weights
        new, pairs = self.source.unit.new_zeros, zip(operands[1:], needs, strict=True)
        #: Gradients of queries, components, log-weights, values and scale in float32; None if not needed.
        self.gradients = [new(x.shape) if need and x is not None else None for x, need in pairs]
        self.by_query, self.by_components, self.by_weights, self.by_values, self.by_scale = self.gradients

    def add_points(self, rows: slice, outputs: Outputs, grads: Upstreams) -> None:
        plan = self.source.plan
        points = self.source.whitening.stage(self.query[rows], plan)
        upstream = _scaled(self.source, points, outputs, grads)
        sums: list[Tensor] = []
        for part, values in self.source.parts(points.rows):
            segment = part.components, values
            if self.need_points:
                launch("points", plan, self._points, points, segment, upstream, sums)
            if self.need_columns:
                launch("components", plan, self._columns, part.numbers, points, segment, upstream)
            # Before the next part is staged: two of them take twice the memory.
            del part, values, segment
        if sums:
            self._finish_points(rows, _merged(sums[0]), upstream)

    def _points(
        self, config: Config, points: Staged, segment: Segment, upstream: _Upstream, sums: list[Tensor]
    ) -> None:
        """Adds the segment's Σ_j g_ij z_j (direct: Σ_j g_ij (z_j − y_i)) to `sums`, splits apart."""
        plan, (staged, values) = self.source.plan, segment
        chunks = plan.width // plan.block_out
        programs, n_blocks = points.rows // config.block_m, staged.rows // config.block_n
        if sums:
            splits = sums[0].shape[0]
        else:
            splits = choose_splits(programs * chunks, n_blocks, self.slots)
            sums.append(self.source.unit.new_zeros(splits, points.rows, plan.width))
        sizes = points.rows, n_blocks, math.ceil(n_blocks / splits)
        if plan.direct:
            points_direct[(programs, splits)](
                points.high, staged.high, staged.bias, values.high, upstream.staged.high,
                self.source.whitening.direct_factor, upstream.coefficients, sums[0], *sizes,
                **plan.constants, WIDTH=plan.width, **config.constants(plan),
            )  # fmt: skip
        else:
            points_kernel[(programs, splits, chunks)](
                *halves(points, segment), *upstream.halves, upstream.coefficients, sums[0], *sizes,
                **plan.constants, BLOCK_O=plan.block_out, **config.constants(plan),
            )  # fmt: skip

    def _finish_points(self, rows: slice, out: Tensor, upstream: _Upstream) -> None:
        query = self.query[rows]
        raw = out[: query.shape[0], : query.shape[1]] * (upstream.bound * 2.0**-_LIFT).unsqueeze(-1)
        # Σ_j g_ij is the derivative by the logsumexp: the averages' part sums to nothing.
        self._add(self.by_query, rows, query, raw, upstream.by_lse)

    def _add(self, target: Tensor | None, place: slice, x: Tensor, raw: Tensor, sums: Tensor) -> None:
        """Adds the gradients by points or components x, and by the scale.

        Args:
            target, place: the gradient by x, and the rows to add to.
            raw: Σ g·(the other end of each pair), or with direct kernels the sums of differences.
            sums: Σ g.
        """
        whitening = self.source.whitening
        centred = whitening.centred(x)
        if self.source.plan.direct:
            raw *= whitening.direct_unit
        else:
            raw -= sums.unsqueeze(-1) * whitening.apply(centred)
        if self.by_scale is not None:
            self.by_scale += 2 * whitening.scale_gradient(raw, centred)
        if target is not None:
            target[place] += 2 * whitening.transposed(raw)

    def _columns(
        self, config: Config, columns: slice, points: Staged, segment: Segment, upstream: _Upstream
    ) -> None:
        """Gradients by the components of a segment, their weights and values."""
        plan, (staged, values) = self.source.plan, segment
        m, new = staged.rows, self.source.unit.new_empty
        chunks = plan.width // plan.block_out if self.need_components else 1
        programs, n_blocks = m // config.block_n, points.rows // config.block_m
        splits = choose_splits(programs * chunks, n_blocks, self.slots)
        weights = new(splits, m)
        out = new(splits, m, plan.width) if self.need_components else weights
        by_values = new(splits, m, plan.v) if self.need_values else weights
        results = out, weights, by_values
        sizes = m, n_blocks, math.ceil(n_blocks / splits)
        flags = {"WITH_OUT": self.need_components, "WITH_VALUES": self.need_values}
        if plan.direct:
            components_direct[(programs, splits)](
                points.high, staged.high, staged.bias, values.high, upstream.staged.high,
                self.source.whitening.direct_factor, upstream.pairs, *results, *sizes,
                **plan.constants, **flags, V=plan.v, WIDTH=plan.width, **config.constants(plan),
            )  # fmt: skip
        else:
            components_kernel[(programs, splits, chunks)](
                *halves(points, segment), *upstream.halves, upstream.pairs, *results, *sizes,
                **plan.constants, **flags, BLOCK_O=plan.block_out, **config.constants(plan),
            )  # fmt: skip
        self._finish_columns(columns, _merged(out), _merged(weights), _merged(by_values), upstream)

    def _finish_columns(
        self, columns: slice, out: Tensor, weights: Tensor, by_values: Tensor, upstream: _Upstream
    ) -> None:
        plan = self.source.plan
        size = columns.stop - columns.start
        undo = upstream.largest * 2.0**-_LIFT
        weights = weights[:size] * undo
        if self.by_weights is not None:
            self.by_weights[columns] += weights
        if self.by_values is not None:
            unit = self.source.unit[: plan.n_values] * undo
            self.by_values[columns] += by_values[:size, : plan.n_values] * unit
        if self.need_components:
            raw = out[:size, : plan.d] * undo
            self._add(self.by_components, columns, self.components[columns], raw, weights)
