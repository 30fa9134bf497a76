"""Gradients of the Triton backend's reduction, on plain tensors.

With y and z the whitened points and components and g_ij the derivative by score ij, the kernels give
Σ_j g_ij (z_j − y_i) and Σ_i g_ij (y_i − z_j), up to a term that is cheap to add here. Everything linear in
the number of points or of components is plain torch: gradients by points and components are twice those sums,
unwhitened; the gradient by the scale is twice their products with the centred points and components.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit.ops.triton.backward_kernels import components_kernel, points_kernel
from kdmkit.ops.triton.direct_kernels import components_direct, points_direct
from kdmkit.ops.triton.forward import Operands, Outputs, Problem
from kdmkit.ops.triton.staging import Config, Staged, choose_splits, launch, on_device, slices

# The kernels' weights are at most 2^14, and the values they see less than 2^15.
_LIFT = 14
_LARGEST_VALUE = 2.0**15

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]
Upstreams = tuple[Float[Tensor, "n v"] | None, Float[Tensor, "n"]]


def backward(operands: Operands, outputs: Outputs, upstream: Upstreams, needs: Sequence[bool]) -> Gradients:
    """Gradients by query, components, log-weights, values and scale, in float32; None where not needed."""
    with on_device(operands.query.device):
        total = _Backward(operands, needs)
        n = operands.query.shape[0]
        for rows in slices(n, total.problem.plan.point_rows):
            averages, lse, maxima, shares = (output[rows] for output in outputs)
            by_averages = None if upstream[0] is None else upstream[0][rows]
            total.add_points(rows, (averages, lse, maxima, shares), (by_averages, upstream[1][rows]))
        return total.gradients


@dataclass(frozen=True)
class _Upstream:
    """The derivatives by the outputs, brought into the range of half precision.

    g_ij = w_ij·(upstream_i · v_j + slope_i) with slope = by lse − upstream · averages. `bound` is at least
    every |g_ij| of a point (the weights w_ij are at most its share), `largest` is the largest bound.
    """

    staged: Staged
    coefficients: Float[Tensor, "3 rows"]
    pairs: Float[Tensor, "rows 4"]
    bound: Float[Tensor, "n"]
    largest: Float[Tensor, ""]
    by_lse: Float[Tensor, "n"]


def _prepare(problem: Problem, points: Staged, outputs: Outputs, upstream: Upstreams) -> _Upstream:
    averages, _, maxima, shares = outputs
    alive = shares > 0
    by_lse = torch.where(alive, upstream[1].float(), 0.0)
    slope, size, by_averages = by_lse, by_lse.abs(), upstream[0]
    if by_averages is not None:
        by_averages = torch.where(alive.unsqueeze(-1), by_averages.float(), 0.0)
        slope = slope - (by_averages * averages).sum(-1)
        size = slope.abs() + _largest_products(problem, by_averages)
    bound = size * shares
    largest = bound.amax()
    largest = torch.where(largest > 0, largest, 1.0)
    # A point whose gradient is nothing beside another's gets none, rather than an overflow.
    ratio = torch.where(bound > 1e-30 * largest, largest / bound, 0.0)
    share = shares / largest
    n = shares.shape[0]
    coefficients = shares.new_zeros(3, points.rows)
    coefficients[0] = math.inf
    coefficients[0, :n] = maxima - _LIFT
    coefficients[1, :n] = ratio
    coefficients[2, :n] = slope * share * ratio
    pairs = shares.new_zeros(points.rows, 4)
    pairs[:, 0] = coefficients[0]
    pairs[:n, 1] = slope * share
    staged = points
    if by_averages is not None:
        unit = problem.unit.reciprocal()
        staged = problem.stage_values(by_averages * share.unsqueeze(-1), unit, lift=True)
    return _Upstream(staged, coefficients, pairs, bound, largest, by_lse)


def _largest_products(problem: Problem, by_averages: Float[Tensor, "n v"]) -> Float[Tensor, "n"]:
    """Bounds of |upstream_i · v_j|."""
    k = by_averages.shape[1]
    if problem.plan.direct:
        # Nothing has to fit into half precision: any scale will do.
        return torch.linalg.vector_norm(by_averages, dim=-1)
    lengths = torch.linalg.vector_norm(by_averages / problem.unit[:k], dim=-1)
    return lengths * (_LARGEST_VALUE * math.sqrt(k))


def _merged(splits: Float[Tensor, "splits *rest"]) -> Float[Tensor, "*rest"]:
    return splits[0] if splits.shape[0] == 1 else splits.sum(0)


class _Backward:
    """Gradients that grow block of points by block of points; most problems have one block."""

    def __init__(self, operands: Operands, needs: Sequence[bool]) -> None:
        self.problem, self.operands = Problem(operands), operands
        query, components, log_weights, values, scale = needs
        self.need_points = query or scale
        self.need_components = components or scale
        self.need_values = values and operands.values is not None
        self.need_columns = self.need_components or self.need_values or log_weights
        m = operands.components.shape[0]
        new = self.problem.unit.new_zeros
        self.by_query = new(operands.query.shape) if query else None
        self.by_components = new(operands.components.shape) if components else None
        self.by_weights = new(m) if log_weights else None
        self.by_values = new(m, self.problem.plan.n_values) if self.need_values else None
        self.by_scale = new(operands.scale.shape) if scale else None

    @property
    def gradients(self) -> Gradients:
        return self.by_query, self.by_components, self.by_weights, self.by_values, self.by_scale

    def add_points(self, rows: slice, outputs: Outputs, grads: Upstreams) -> None:
        problem, operands = self.problem, self.operands
        points = problem.whitening.stage(operands.query[rows], problem.plan)
        upstream = _prepare(problem, points, outputs, grads)
        sums: list[Tensor] = []
        for columns in slices(operands.components.shape[0], problem.plan.segment):
            segment = problem.stage_segment(columns)
            if self.need_points:
                launch("points", problem.plan, self._points, points, segment, upstream, sums)
            if self.need_columns:
                launch("components", problem.plan, self._columns, columns, points, segment, upstream)
            del segment  # before the next one is made: two would take twice the memory
        if sums:
            self._finish_points(rows, _merged(sums[0]), upstream)

    def _points(
        self,
        config: Config,
        points: Staged,
        segment: tuple[Staged, Staged],
        upstream: _Upstream,
        sums: list[Tensor],
    ) -> None:
        """Adds the segment's Σ_j g_ij z_j (direct: Σ_j g_ij (z_j − y_i)) to `sums`, splits apart."""
        plan, (staged, values) = self.problem.plan, segment
        chunks = plan.width // plan.block_out
        programs, n_blocks = points.rows // config.block_m, staged.rows // config.block_n
        if sums:
            splits = sums[0].shape[0]
        else:
            splits = choose_splits(programs * chunks, n_blocks, self.problem.slots)
            sums.append(self.problem.unit.new_zeros(splits, points.rows, plan.width))
        sizes = points.rows, n_blocks, math.ceil(n_blocks / splits)
        if plan.direct:
            points_direct[(programs, splits)](
                points.high, staged.high, staged.bias, values.high, upstream.staged.high,
                upstream.coefficients, sums[0], *sizes,
                **plan.constants, WIDTH=plan.width, **config.constants(plan),
            )  # fmt: skip
        else:
            points_kernel[(programs, splits, chunks)](
                *_halves(points, segment, upstream), upstream.coefficients, sums[0], *sizes,
                **plan.constants, BLOCK_O=plan.block_out, **config.constants(plan),
            )  # fmt: skip

    def _finish_points(self, rows: slice, out: Tensor, upstream: _Upstream) -> None:
        whitening = self.problem.whitening
        centred = whitening.centred(self.operands.query[rows])
        n, d = centred.shape
        raw = out[:n, :d] * (upstream.bound * 2.0**-_LIFT).unsqueeze(-1)
        if not self.problem.plan.direct:
            # Σ_j g_ij is the derivative by the logsumexp: the averages' part sums to nothing.
            raw -= upstream.by_lse.unsqueeze(-1) * whitening.apply(centred)
        if self.by_scale is not None:
            self.by_scale += 2 * whitening.scale_gradient(raw, centred)
        if self.by_query is not None:
            self.by_query[rows] = 2 * whitening.transposed(raw)

    def _columns(
        self,
        config: Config,
        columns: slice,
        points: Staged,
        segment: tuple[Staged, Staged],
        upstream: _Upstream,
    ) -> None:
        """Gradients by the components of a segment, their weights and values."""
        plan, (staged, values) = self.problem.plan, segment
        m, new = staged.rows, self.problem.unit.new_empty
        chunks = plan.width // plan.block_out if self.need_components else 1
        programs, n_blocks = m // config.block_n, points.rows // config.block_m
        splits = choose_splits(programs * chunks, n_blocks, self.problem.slots)
        weights = new(splits, m)
        out = new(splits, m, plan.width) if self.need_components else weights
        by_values = new(splits, m, plan.v) if self.need_values else weights
        results = out, weights, by_values
        sizes = m, n_blocks, math.ceil(n_blocks / splits)
        flags = {"WITH_OUT": self.need_components, "WITH_VALUES": self.need_values}
        if plan.direct:
            components_direct[(programs, splits)](
                points.high, staged.high, staged.bias, values.high, upstream.staged.high,
                upstream.pairs, *results, *sizes,
                **plan.constants, **flags, V=plan.v, WIDTH=plan.width, **config.constants(plan),
            )  # fmt: skip
        else:
            components_kernel[(programs, splits, chunks)](
                *_halves(points, segment, upstream), upstream.pairs, *results, *sizes,
                **plan.constants, **flags, BLOCK_O=plan.block_out, **config.constants(plan),
            )  # fmt: skip
        self._finish_columns(columns, _merged(out), _merged(weights), _merged(by_values), upstream)

    def _finish_columns(
        self, columns: slice, out: Tensor, weights: Tensor, by_values: Tensor, upstream: _Upstream
    ) -> None:
        plan, whitening = self.problem.plan, self.problem.whitening
        size = columns.stop - columns.start
        undo = upstream.largest * 2.0**-_LIFT
        weights = weights[:size] * undo
        if self.by_weights is not None:
            self.by_weights[columns] += weights
        if self.by_values is not None:
            unit = self.problem.unit[: plan.n_values] * undo
            self.by_values[columns] += by_values[:size, : plan.n_values] * unit
        if not self.need_components:
            return
        centred = whitening.centred(self.operands.components[columns])
        raw = out[:size, : plan.d] * undo
        if not plan.direct:
            raw -= weights.unsqueeze(-1) * whitening.apply(centred)
        if self.by_scale is not None:
            self.by_scale += 2 * whitening.scale_gradient(raw, centred)
        if self.by_components is not None:
            self.by_components[columns] += 2 * whitening.transposed(raw)


def _halves(points: Staged, segment: tuple[Staged, Staged], upstream: _Upstream) -> tuple[Tensor, ...]:
    """The operands in half precision, in the order of the kernels' arguments."""
    (staged, values), other = segment, upstream.staged
    return (
        *(points.high, points.low, points.exponents),
        *(staged.high, staged.low, staged.exponents, staged.bias),
        *(values.high, values.low),
        *(other.high, other.low, other.exponents),
    )
