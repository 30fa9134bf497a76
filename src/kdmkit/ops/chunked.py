"""Backend `chunked`: online softmax over blocks of components; the backward pass computes blocks again.

Memory is bounded by one block of scores.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kdmkit._core.logspace import exp_, safe_log
from kdmkit.ops.block_gradients import (
    TermGradients,
    accumulate,
    accumulator,
    pairs_of_blocks,
    rebuild,
    summed,
    weights_block,
)
from kdmkit.ops.blocks import Block, run_in_memory, slices
from kdmkit.ops.combine import combine
from kdmkit.ops.dense import add_row, average, sum_rows, sum_scores
from kdmkit.ops.recomputed import Gradients, Needs, Recomputed, Tensors
from kdmkit.ops.reduction import Reduction, Result
from kdmkit.ops.scaled_points import exponentials
from kdmkit.ops.terms import Term, total_shape

# Pairs per block: small enough for the caches of a CPU, large enough that the interpreter does not matter.
_PAIRS = {"cpu": 1 << 20}
_PAIRS_DEFAULT = 1 << 25
_COLUMNS = {"cpu": 2048}
_COLUMNS_DEFAULT = 8192


@dataclass(frozen=True)
class InBlocks(Recomputed):
    """A reduction in blocks: the parts that are not tensors. The terms' tensors are its last inputs."""

    terms: tuple[Term, ...]
    block: Block
    dtype: torch.dtype

    def backward(self, *arguments: Any) -> Gradients:
        """In smaller blocks where memory runs out."""
        return run_in_memory(self.block, lambda block: replace(self, block=block).gradients(*arguments))[0]

    @abstractmethod
    def gradients(self, needs: Needs, inputs: Tensors, outputs: Tensors, upstream: Tensors) -> Gradients:
        """As `backward`: every block of scores is computed again."""


def default_block(lead: tuple[int, ...], n: int, m: int, device: torch.device) -> Block:
    """Queries and components per block."""
    pairs = max(1, _PAIRS.get(device.type, _PAIRS_DEFAULT) // max(1, math.prod(lead)))
    columns = min(m, _COLUMNS.get(device.type, _COLUMNS_DEFAULT))
    return max(1, min(n, pairs // columns)), columns


def _rows_forward(
    terms: Sequence[Term],
    log_weights: Tensor,
    values: Tensor | None,
    rows: slice,
    step: int,
    dtype: torch.dtype,
) -> tuple[Tensor | None, Tensor]:
    """One block of queries against all components; results of blocks of components are merged."""
    averages: Tensor | None = None
    lse: Tensor | None = None
    for columns in slices(terms[0].shape[2], step):
        blocks = [term.queries(rows).columns(columns) for term in terms]
        scores = sum_scores(blocks, weights_block(log_weights, rows, columns))
        weights, total, top = exponentials(scores, dtype)
        block_lse = safe_log(total).to(top.dtype) + top
        block_averages = None if values is None else average(weights, total, values[..., columns, :])
        if lse is None:
            averages, lse = block_averages, block_lse
        elif averages is None or block_averages is None:
            lse = torch.logaddexp(lse, block_lse)
        else:
            averages, lse = combine((averages, lse), (block_averages, block_lse))
    assert lse is not None  # a reduction has at least one component
    return averages, lse


class _Chunked(InBlocks):
    """(log_weights, values, *tensors) → (averages, logsumexp), or (logsumexp,) without values."""

    def forward(self, log_weights: Tensor, values: Tensor | None, *tensors: Tensor) -> tuple[Tensor, ...]:
        terms = rebuild(self.terms, tensors)
        _, n, _ = total_shape(terms)
        used = None if values is None else values.to(self.dtype)
        parts: list[tuple[Tensor | None, Tensor]] = []
        start, block = 0, self.block
        # One block at least, so that no queries give results of the right shape too.
        while start < n or not parts:

            def attempt(block: Block, start: int = start) -> tuple[int, tuple[Tensor | None, Tensor]]:
                rows = slice(start, min(start + block[0], n))
                return rows.stop, _rows_forward(terms, log_weights, used, rows, block[1], self.dtype)

            (start, part), block = run_in_memory(block, attempt)
            parts.append(part)
        lse = torch.cat([part[1] for part in parts], -1)
        if used is None:
            return (lse,)
        return torch.cat([part[0] for part in parts if part[0] is not None], -2), lse

    def gradients(self, needs: Needs, inputs: Tensors, outputs: Tensors, upstream: Tensors) -> Gradients:
        (log_weights, values, *tensors), (*averages, lse) = inputs, outputs
        by_averages = upstream[0] if averages else None
        by_lse = torch.zeros_like(lse) if upstream[-1] is None else upstream[-1]
        dot = None if by_averages is None else (by_averages * averages[0]).sum(-1, keepdim=True)
        lse = torch.where(torch.isneginf(lse), torch.zeros_like(lse), lse)
        terms = rebuild(self.terms, tensors)
        by_terms = TermGradients(terms, tensors, needs[2:])
        grad_weights, grad_values = (
            accumulator(x) if need else None for x, need in zip(inputs[:2], needs[:2], strict=True)
        )
        for rows, columns in pairs_of_blocks(terms, self.block):
            blocks, leaves = by_terms.leaves(rows, columns)
            scores = summed(blocks)
            log_probability = scores.detach() + weights_block(log_weights, rows, columns)
            probability = exp_((log_probability - lse[..., rows].unsqueeze(-1)).to(by_lse.dtype))
            slope = by_lse[..., rows].unsqueeze(-1)
            if by_averages is not None and dot is not None:
                by_rows = by_averages[..., rows, :]
                if grad_values is not None:
                    gained = torch.matmul(probability.mT.to(by_rows.dtype), by_rows)
                    accumulate(grad_values[..., columns, :], gained)
                block_values = values[..., columns, :].to(by_rows.dtype)
                gain = torch.matmul(by_rows, block_values.mT) - dot[..., rows, :]
                slope = gain.sum_to_size(probability.shape) + slope
            grad_scores = probability * slope
            if grad_weights is not None:
                accumulate(weights_block(grad_weights, rows, columns), grad_scores)
            by_terms.add([(scores, grad_scores)], leaves, rows, columns)
        return grad_weights, grad_values, *by_terms.gradients


def reduce(reduction: Reduction) -> Result:
    """The reduction by blocks of queries and components."""
    log_weights, dtype = reduction.log_weights, reduction.dtype
    block = reduction.block or default_block(*reduction.shape, log_weights.device)
    terms = tuple(term.prepared() for term in reduction.terms)
    tensors = (tensor for term in terms for tensor in term.tensors)
    *averages, lse = _Chunked(terms, block, dtype)(log_weights, reduction.values, *tensors)
    return (averages[0] if averages else None), add_row(lse, sum_rows(terms)).to(dtype)
