"""Backend `chunked` for one squared distance on a CPU: blocks in buffers that stay in its caches.

Large mixtures consist of this reduction. It computes what `chunked` does, with explicit gradients and
without allocating memory for every block. Memory is bounded by one block.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.logspace import LOG2_E
from kdmkit.ops import dense_explicit
from kdmkit.ops.blocks import Block, slices
from kdmkit.ops.products import narrow_product, narrow_product_transposed
from kdmkit.ops.recomputed import Gradients, Needs, Recomputed, Tensors
from kdmkit.ops.reduction import Reduction, Result
from kdmkit.ops.scaled_points import ScaledPoints, finite_top

# Pairs per block: small enough for the caches of a CPU, large enough that the interpreter does not matter.
_PAIRS = 1 << 19
_ROWS = 128


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
    function, tensors = _Chunked(block, reduction.dtype), reduction.terms[0].tensors
    *averages, lse, _ = function(reduction.log_weights, reduction.values, *tensors)
    return (averages[0] if averages else None), lse


class _Blocks:
    """The blocks of a matrix of scores, each written over the last.

    Scores are in units of log 2: their exponentials are powers of two, which a CPU computes faster.
    """

    def __init__(self, points: ScaledPoints, bias: Tensor, block: Block, dtype: torch.dtype) -> None:
        self.points = points
        self.column, self._twice = points.column(bias).mul_(LOG2_E), 2 * LOG2_E * points.units
        self.block = block
        size = min(block[0], len(points.x)) * min(block[1], len(points.c))
        self._scores = points.x.new_empty(size)
        self._weights = self._scores if dtype == points.x.dtype else points.x.new_empty(size, dtype=dtype)

    def rows(self) -> Iterator[slice]:
        return slices(len(self.points.x), self.block[0])

    def columns(self) -> Iterator[slice]:
        return slices(len(self.points.c), self.block[1])

    def scores(self, rows: slice, columns: slice) -> Float[Tensor, "n m"]:
        x, c = self.points.x[rows], self.points.c[columns]
        out = self._scores[: len(x) * len(c)].view(len(x), len(c))
        return torch.addmm(self.column[columns], x, c.mT, alpha=self._twice, out=out)

    def exponentials(self, scores: Float[Tensor, "n m"], offset: Float[Tensor, "n 1"]) -> Tensor:
        """2^(scores − offset), written over the scores where the dtype allows."""
        scores = scores.sub_(offset)
        if self._weights is not self._scores:
            # Two passes: subtracting and rounding at once is slower.
            scores = self._weights[: scores.numel()].view(scores.shape).copy_(scores)
        return scores.exp2_()


@dataclass(frozen=True)
class _Chunked(Recomputed):
    """(log_weights, values, query, components, scale) → averages (none without values), logsumexps, and
    logsumexps without the constants per query.
    """

    block: Block
    dtype: torch.dtype

    def blocks(self, log_weights: Tensor, query: Tensor, components: Tensor, scale: Tensor) -> _Blocks:
        points = ScaledPoints.of(query, components, scale, self.dtype)
        return _Blocks(points, log_weights, self.block, self.dtype)

    def forward(self, log_weights: Tensor, values: Tensor | None, *tensors: Tensor) -> tuple[Tensor, ...]:
        blocks, n = self.blocks(log_weights, *tensors), len(tensors[0])
        lse = torch.empty(n, dtype=torch.float64)
        averages = [] if values is None else [torch.empty(n, values.shape[1], dtype=self.dtype)]
        used = None if values is None else values.to(self.dtype)
        for rows in blocks.rows():
            lse[rows], average = _rows(blocks, rows, used)
            if average is not None:
                averages[0][rows] = average
        return *averages, (lse + blocks.points.row()).to(self.dtype), lse

    def backward(self, needs: Needs, inputs: Tensors, outputs: Tensors, upstream: Tensors) -> Gradients:
        """Gradients; every block of scores is computed again."""
        (log_weights, values, *tensors), (*averages, _, lse) = inputs, outputs
        by_averages, by_lse = upstream[0] if averages else None, upstream[-2]
        blocks = self.blocks(log_weights, *tensors)
        offset = torch.where(torch.isneginf(lse), 0.0, lse).unsqueeze(-1) * LOG2_E
        slope = torch.zeros(len(lse), 1, dtype=self.dtype) if by_lse is None else by_lse.unsqueeze(-1)
        if by_averages is not None:
            slope, values = slope - (by_averages * averages[0]).sum(-1, keepdim=True), values.to(self.dtype)
        # Sums over many blocks have the dtype of the points; the last line restores those of the inputs.
        dtype, pairs = blocks.points.x.dtype, list(zip(inputs, needs, strict=True))
        grads = [torch.zeros_like(x, dtype=dtype) if need else None for x, need in pairs]
        for rows, columns in itertools.product(blocks.rows(), blocks.columns()):
            weights = blocks.exponentials(blocks.scores(rows, columns), offset[rows])
            slopes, by_values = slope[rows], None
            if by_averages is not None:
                by_values = narrow_product_transposed(weights, by_averages[rows]) if needs[1] else None
                slopes = torch.addmm(slopes, by_averages[rows], values[columns].mT)
            slopes = weights.mul_(slopes)
            by_weights = slopes.sum(0) if needs[0] else None
            found = by_weights, by_values, *blocks.points.block(rows, columns).gradients(slopes, needs[2:])
            places = columns, columns, rows, columns, slice(None)
            for target, place, gradient in zip(grads, places, found, strict=True):
                if target is not None and gradient is not None:
                    target[place] += gradient
        return [None if g is None else g.to(x.dtype) for g, x in zip(grads, inputs, strict=True)]


def _rows(blocks: _Blocks, rows: slice, values: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Averages, and logsumexps without the row's constant, of some queries against all components."""
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
