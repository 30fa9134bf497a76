"""Backend `chunked` for squared distances on a CPU: blocks in buffers that stay in its caches.

Large mixtures consist of these reductions, which compute what `chunked` does without allocating memory for
every block. One bandwidth for all components comes with explicit gradients; bandwidths per component are for
densities, without gradients.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kdmkit._core.logspace import LOG2_E
from kdmkit._core.runtime import only_reverse_mode
from kdmkit.ops import dense_explicit
from kdmkit.ops.blocks import Block, slices
from kdmkit.ops.recomputed import Gradients, Needs, Recomputed, Tensors
from kdmkit.ops.scaled_points import (
    ScaledPoints,
    ScoreBlocks,
    finite_top,
    narrow_product,
    narrow_product_transposed,
)
from kdmkit.ops.terms import ComponentDistance, Reduction, Result, robust_centre
from kdmkit.ops.terms.distance import loses_digits, scores_by_differences

# Queries and pairs per block: few enough for the caches of a CPU, enough to hide the interpreter.
_ROWS, _PAIRS = 128, 1 << 19
_BLOCK_PER_COMPONENT = 128, 1 << 11


def supports(reduction: Reduction) -> str | None:
    """Why this implementation cannot compute a reduction, or None."""
    if len(reduction.terms) > 1 or reduction.log_weights.ndim != 1 or reduction.device_type != "cpu":
        return "expected one term and weights of shape (m,) on a CPU"
    return dense_explicit.supports(reduction)


def reduce(reduction: Reduction) -> Result:
    """The reduction, as `chunked.reduce`."""
    _, n, m = reduction.shape
    rows = max(1, min(n, _ROWS))
    block = reduction.block or (rows, min(m, _PAIRS // rows))
    function, tensors = _BufferedSums(block, reduction.dtype), reduction.terms[0].tensors
    *averages, lse, _ = function(reduction.log_weights, reduction.values, *tensors)
    return (averages[0] if averages else None), lse


@dataclass(frozen=True)
class _BufferedSums(Recomputed):
    """(log_weights, values, query, components, scale) → averages (none without values), logsumexps, and
    logsumexps without the constants per query.
    """

    block: Block
    dtype: torch.dtype

    def blocks(
        self, log_weights: Tensor, query: Tensor, components: Tensor, scale: Tensor
    ) -> tuple[ScaledPoints, ScoreBlocks]:
        points = ScaledPoints.of(query, components, scale, self.dtype)
        column, factor = points.column(log_weights).mul_(LOG2_E), 2 * LOG2_E * points.factor
        return points, ScoreBlocks(
            points.x, points.c, self.block, column=column, factor=factor, dtype=self.dtype
        )

    def forward(self, log_weights: Tensor, values: Tensor | None, *tensors: Tensor) -> tuple[Tensor, ...]:
        (points, blocks), n = self.blocks(log_weights, *tensors), len(tensors[0])
        lse = torch.empty(n, dtype=torch.float64)
        averages = [] if values is None else [torch.empty(n, values.shape[1], dtype=self.dtype)]
        used = None if values is None else values.to(self.dtype)
        for rows in blocks.rows():
            lse[rows], average = _sum_rows(blocks, rows, used)
            if average is not None:
                averages[0][rows] = average
        return *averages, (lse + points.row()).to(self.dtype), lse

    def backward(self, needs: Needs, inputs: Tensors, outputs: Tensors, upstream: Tensors) -> Gradients:
        """Gradients; every block of scores is computed again."""
        (log_weights, values, *tensors), (*averages, _, lse) = inputs, outputs
        by_averages, by_lse = upstream[0] if averages else None, upstream[-2]
        points, blocks = self.blocks(log_weights, *tensors)
        offset = torch.where(torch.isneginf(lse), 0.0, lse).unsqueeze(-1) * LOG2_E
        slope = torch.zeros(len(lse), 1, dtype=self.dtype) if by_lse is None else by_lse.unsqueeze(-1)
        if by_averages is not None:
            slope, values = slope - (by_averages * averages[0]).sum(-1, keepdim=True), values.to(self.dtype)
        # Sums over many blocks have the dtype of the points; the last line restores those of the inputs.
        dtype, pairs = points.x.dtype, list(zip(inputs, needs, strict=True))
        grads = [torch.zeros_like(x, dtype=dtype) if need else None for x, need in pairs]
        for rows, columns in itertools.product(blocks.rows(), blocks.columns()):
            weights = blocks.exponentials(blocks.scores(rows, columns), offset[rows])
            slopes, by_values = slope[rows], None
            if by_averages is not None:
                by_values = narrow_product_transposed(weights, by_averages[rows]) if needs[1] else None
                slopes = torch.addmm(slopes, by_averages[rows], values[columns].mT)
            slopes = weights.mul_(slopes)
            by_weights = slopes.sum(0) if needs[0] else None
            gained = by_weights, by_values, *points.block(rows, columns).gradients(slopes, needs[2:])
            places = columns, columns, rows, columns, slice(None)
            for target, place, gradient in zip(grads, places, gained, strict=True):
                if target is not None and gradient is not None:
                    target[place] += gradient
        return [None if g is None else g.to(x.dtype) for g, x in zip(grads, inputs, strict=True)]


def _sum_rows(blocks: ScoreBlocks, rows: slice, values: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Logsumexps without the queries' constants, and averages, of some queries against all components."""
    n = rows.stop - rows.start
    top = torch.full((n, 1), -math.inf, dtype=torch.float64)
    total = torch.zeros(n, 1, dtype=torch.float64)
    summed = None if values is None else torch.zeros(n, values.shape[1], dtype=torch.float64)
    for columns in blocks.columns():
        scores = blocks.scores(rows, columns)
        block_top = finite_top(scores)
        weights = blocks.exponentials(scores, block_top)
        higher = torch.maximum(top, block_top)
        before, now = (top - higher).exp2(), (block_top - higher).exp2()
        total = total.mul_(before).addcmul_(weights.sum(-1, keepdim=True), now)
        if summed is not None and values is not None:
            summed = summed.mul_(before).addcmul_(narrow_product(weights, values[columns]), now)
        top = higher
    lse = (total.log2() + top).squeeze(-1) / LOG2_E
    return lse, None if summed is None else torch.where(total > 0, summed / total, 0.0)


# ---- bandwidths per component


def supports_per_component(reduction: Reduction) -> str | None:
    """Why this implementation cannot compute a reduction, or None."""
    first, *rest = reduction.terms
    plain = isinstance(first, ComponentDistance) and all(tensor.ndim == 2 for tensor in first.tensors)
    if rest or not plain or reduction.values is not None or reduction.log_weights.ndim != 1:
        return "expected one distance with scales per component, without batch or values"
    tensors = (*first.tensors, reduction.log_weights)
    if reduction.device_type != "cpu" or (torch.is_grad_enabled() and any(t.requires_grad for t in tensors)):
        return "expected tensors on a CPU, without gradients"
    return None if only_reverse_mode() else "expected eager code outside of torch.func and forward mode"


def is_worthwhile_per_component(reduction: Reduction) -> bool:
    """Whether the reduction is large enough: for a few pairs whole matrices take fewer calls."""
    return reduction.shape[1] * reduction.shape[2] > math.prod(_BLOCK_PER_COMPONENT) // 4


def reduce_per_component(reduction: Reduction) -> Result:
    """The logsumexps, as `chunked.reduce`."""
    x, c, scales = (tensor.double() for tensor in reduction.terms[0].tensors)
    scales, log_weights, centre = scales.expand_as(c), reduction.log_weights.double(), robust_centre(c)
    rows, width = reduction.block or _BLOCK_PER_COMPONENT
    lossy = loses_digits(c - centre, scales)
    if not bool(lossy.any()):
        return None, _by_products(reduction, x - centre, c - centre, scales, log_weights)
    # Narrow components far from the centre.
    lse = _by_differences(x, c[lossy], scales[lossy], log_weights[lossy], rows, width)
    if not bool(lossy.all()):
        others = c[~lossy] - centre, scales[~lossy], log_weights[~lossy]
        lse = torch.logaddexp(lse, _by_products(reduction, x - centre, *others).double())
    return None, lse.to(reduction.dtype)


def _by_products(reduction: Reduction, x: Tensor, c: Tensor, scales: Tensor, log_weights: Tensor) -> Tensor:
    """The logsumexps; x and c are relative to a centre."""
    features, against, column = _product(x, c, scales)
    column, block = (log_weights + column).mul_(LOG2_E), reduction.block or _BLOCK_PER_COMPONENT
    blocks = ScoreBlocks(features, against.mul_(LOG2_E), block, column=column, dtype=reduction.dtype)
    return torch.cat([_sum_rows(blocks, rows, None)[0] for rows in blocks.rows()]).to(reduction.dtype)


def _by_differences(
    x: Tensor, c: Tensor, scales: Tensor, log_weights: Tensor, rows: int, width: int
) -> Tensor:
    """The logsumexps, from differences."""
    parts = []
    for part in slices(len(x), rows):
        blocks = [
            (scores_by_differences(x[part], c[block], scales[block]) + log_weights[block]).logsumexp(1)
            for block in slices(len(c), width)
        ]
        parts.append(torch.stack(blocks).logsumexp(0))
    return torch.cat(parts)


def _product(x: Tensor, c: Tensor, scales: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Features, weights and biases of the scores −Σ p(x − c)² = Σ −p·x² + 2pc·x − p·c² with p = scales²."""
    shape = scales[:1] / scales[:1, :1]
    if torch.allclose(scales, scales[:, :1] * shape, rtol=1e-13, atol=0.0):
        # One factor per component: Σ x² is one feature, in units of the common shape.
        x, c, precision = x * shape, c * shape, scales[:, :1].square()
        square = x.square().sum(1, keepdim=True)
    else:
        precision, square = scales.square(), x.square()
    column = (precision * c.square()).sum(1).neg()
    return torch.cat([square, x], 1), torch.cat([-precision, 2 * precision * c], 1), column
