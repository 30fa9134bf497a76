"""Backend `chunked` for one squared distance on a CPU: blocks in buffers that stay in its caches.

Large mixtures consist of this reduction. It computes what `chunked` does, with explicit gradients and
without allocating memory for every block. Memory is bounded by one block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.precision import full_precision
from kdmkit.ops import dense_explicit
from kdmkit.ops.blocks import Block, slices
from kdmkit.ops.reduction import Reduction, Result
from kdmkit.ops.scaled_points import ScaledPoints, finite_top

# Pairs per block: small enough for the caches of a CPU, large enough that the interpreter does not matter.
_PAIRS = 1 << 19
_ROWS = 128
_LOG2_E = math.log2(math.e)


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
    tensors = reduction.terms[0].tensors
    averages, lse = _Chunked.apply(block, reduction.dtype, reduction.log_weights, reduction.values, *tensors)
    return averages, lse


class _Blocks:
    """The blocks of a matrix of scores, each written over the last.

    Scores are in units of log 2: their exponentials are powers of two, which a CPU computes faster.
    """

    def __init__(self, points: ScaledPoints, bias: Tensor, block: Block, dtype: torch.dtype) -> None:
        self.points = points
        self.column = (points.column + bias.to(points.column.dtype)).mul_(_LOG2_E)
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
        return torch.addmm(self.column[columns], x, c.mT, alpha=2 * _LOG2_E, out=out)

    def exponentials(self, scores: Float[Tensor, "n m"], offset: Float[Tensor, "n 1"]) -> Tensor:
        """2^(scores − offset), written over the scores where the dtype allows."""
        scores = scores.sub_(offset)
        if self._weights is not self._scores:
            # Two passes: subtracting and rounding at once is slower.
            scores = self._weights[: scores.numel()].view(scores.shape).copy_(scores)
        return scores.exp2_()


class _Chunked(torch.autograd.Function):
    """(block, dtype, log_weights, values, query, components, scale) → averages (or None) and logsumexps."""

    @staticmethod
    def forward(
        ctx: Any,
        block: Block,
        dtype: torch.dtype,
        log_weights: Tensor,
        values: Tensor | None,
        query: Tensor,
        components: Tensor,
        scale: Tensor,
    ) -> tuple[Tensor | None, Tensor]:
        blocks = _Blocks(ScaledPoints.of(query, components, scale, dtype), log_weights, block, dtype)
        lse = torch.empty(len(query), dtype=torch.float64)
        averages = None if values is None else torch.empty(len(query), values.shape[1], dtype=dtype)
        used = None if values is None else values.to(dtype)
        for rows in blocks.rows():
            lse[rows], average = _rows(blocks, rows, used)
            if averages is not None and average is not None:
                averages[rows] = average
        ctx.block, ctx.dtype = block, dtype
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(log_weights, values, query, components, scale, averages, lse)
        return averages, (lse + blocks.points.row).to(dtype)

    @staticmethod
    def backward(ctx: Any, grad_averages: Tensor | None, grad_lse: Tensor | None) -> Any:
        if grad_averages is None and grad_lse is None:
            return (None,) * 7
        needs = ctx.needs_input_grad[2:]
        found = iter(
            _Gradients.apply(ctx.block, ctx.dtype, needs, *ctx.saved_tensors, grad_averages, grad_lse)
        )
        return None, None, *(next(found) if need else None for need in needs)


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
            summed = summed.mul_(before).addcmul_(weights @ values[columns], now)
        top = higher
    lse = (total.log2() + top).squeeze(-1) / _LOG2_E
    return lse, None if summed is None else torch.where(total > 0, summed / total, 0.0)


class _Gradients(torch.autograd.Function):
    """(block, dtype, needs, inputs, averages, logsumexp, upstream) → the gradients that are needed."""

    @staticmethod
    def forward(ctx: Any, block: Block, dtype: torch.dtype, needs: Sequence[bool], *saved: Any) -> Any:
        inputs, (averages, lse, grad_averages, grad_lse) = saved[:5], saved[5:]
        with full_precision("cpu"):
            backward = _Backward(block, dtype, needs, inputs, averages, lse, grad_averages, grad_lse)
            return tuple(backward.run())

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> NoReturn:
        raise NotImplementedError('backend: expected "torch" for second derivatives, got "chunked"')


class _Backward:
    """Gradients of one reduction; every block of scores is computed again."""

    def __init__(
        self,
        block: Block,
        dtype: torch.dtype,
        needs: Sequence[bool],
        inputs: Sequence[Any],
        averages: Tensor | None,
        lse: Tensor,
        grad_averages: Tensor | None,
        grad_lse: Tensor | None,
    ) -> None:
        log_weights, values, query, components, scale = inputs
        self.inputs, self.needs = inputs, needs
        self.blocks = _Blocks(ScaledPoints.of(query, components, scale, dtype), log_weights, block, dtype)
        self.offset = torch.where(torch.isneginf(lse), 0.0, lse).unsqueeze(-1) * _LOG2_E
        self.values = None if values is None else values.to(dtype)
        self.grad_averages = grad_averages
        slope = torch.zeros(len(query), 1, dtype=dtype) if grad_lse is None else grad_lse.unsqueeze(-1)
        if grad_averages is not None and averages is not None:
            slope = slope - (grad_averages * averages).sum(-1, keepdim=True)
        self.slope = slope
        # Sums over many blocks have the dtype of the points; `run` restores those of the inputs.
        dtype = self.blocks.points.x.dtype
        self.grads = [
            torch.zeros_like(t, dtype=dtype) if need else None for t, need in zip(inputs, needs, strict=True)
        ]

    def run(self) -> list[Tensor]:
        for rows in self.blocks.rows():
            for columns in self.blocks.columns():
                self._block(rows, columns)
        pairs = zip(self.grads, self.inputs, strict=True)
        return [gradient.to(tensor.dtype) for gradient, tensor in pairs if gradient is not None]

    def _block(self, rows: slice, columns: slice) -> None:
        blocks = self.blocks
        weights = blocks.exponentials(blocks.scores(rows, columns), self.offset[rows])
        grad_weights, grad_values, grad_query, grad_components, grad_scale = self.grads
        slope = self.slope[rows]
        if self.grad_averages is not None and self.values is not None:
            upstream = self.grad_averages[rows]
            if grad_values is not None:
                grad_values[columns] += weights.mT @ upstream
            slope = torch.addmm(slope, upstream, self.values[columns].mT)
        slopes = weights.mul_(slope)
        if grad_weights is not None:
            grad_weights[columns] += slopes.sum(0)
        found = blocks.points.block(rows, columns).gradients(slopes, self.needs[2:])
        targets = (grad_query, rows), (grad_components, columns), (grad_scale, slice(None))
        for gradient, (target, place) in zip(found, targets, strict=True):
            if gradient is not None and target is not None:
                target[place] += gradient
