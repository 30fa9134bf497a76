"""Backend `chunked`: online softmax over blocks of components; the backward pass computes blocks again.

Memory is bounded by one block of scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.logspace import exp_, safe_log
from kdmkit._core.tensors import at_least_float32
from kdmkit.ops.blocks import Block, run_in_memory, slices
from kdmkit.ops.dense import add_row, average, log_ratio, sum_rows, sum_scores
from kdmkit.ops.recomputed import (
    Gradients,
    Needs,
    Recomputed,
    Tensors,
    TermGradients,
    accumulate,
    accumulator,
    pairs_of_blocks,
    rebuild,
    summed,
    weights_block,
)
from kdmkit.ops.scaled_points import exponentials, finite_top
from kdmkit.ops.terms import Reduction, Result, Term, total_shape

# Pairs per block: few enough for the caches of a CPU, enough to hide the interpreter.
_PAIRS = {"cpu": 1 << 20}
_PAIRS_DEFAULT = 1 << 25
_COLUMNS = {"cpu": 2048}
_COLUMNS_DEFAULT = 8192

#: The result of `attend`.
Reduced = tuple[Float[Tensor, "*#batch v"], Float[Tensor, "*#batch"]]
#: Largest scores and sums of exponentials relative to them.
_Sums = tuple[Tensor, Tensor]


def default_block(lead: tuple[int, ...], n: int, m: int, device: torch.device) -> Block:
    """Queries and components per block."""
    pairs = max(1, _PAIRS.get(device.type, _PAIRS_DEFAULT) // max(1, math.prod(lead)))
    columns = min(m, _COLUMNS.get(device.type, _COLUMNS_DEFAULT))
    return max(1, min(n, pairs // columns)), columns


def _row_blocks(n: int, block: Block) -> Iterable[slice]:
    """Slices of the queries: at least one, so that no queries give results of the right shape too."""
    return slices(n, block[0]) if n else [slice(0, 0)]


def combine(first: Reduced, second: Reduced) -> Reduced:
    """The result of `attend` on the union of two shards of components.

    With averages a, b and logsumexps s, t: `t' = logaddexp(s, t)`, `a' = a·exp(s − t') + b·exp(t − t')`.
    Where both shards are −∞ the averages are 0.

    Args:
        first, second: what `attend` returned for each shard: averages `(*batch, v)`, logsumexps `(*batch,)`.

    Returns:
        The same two tensors, for all components together.

    >>> a = (torch.tensor([[0.0]]), torch.tensor([0.0]))
    >>> b = (torch.tensor([[3.0]]), torch.tensor([0.0]))
    >>> combine(a, b)
    (tensor([[1.5000]]), tensor([0.6931]))
    """
    (a, s), (b, t) = first, second
    top = torch.maximum(s, t).detach()
    top = torch.where(torch.isneginf(top), torch.zeros_like(top), top)
    left, right = (s - top).exp(), (t - top).exp()
    total = left + right
    alive = total > 0
    safe = torch.where(alive, total, torch.ones_like(total))
    left_weight = (left / safe).to(a.dtype).unsqueeze(-1)
    right_weight = (right / safe).to(a.dtype).unsqueeze(-1)
    lse = torch.where(alive, safe.log() + top, torch.full_like(top, -torch.inf))
    return a * left_weight + b * right_weight, lse


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


@dataclass(frozen=True)
class _BlockwiseSums(Recomputed):
    """(log_weights, values, *terms' tensors) → (averages, logsumexp), or (logsumexp,) without values."""

    terms: tuple[Term, ...]
    block: Block
    dtype: torch.dtype

    def forward(self, log_weights: Tensor, values: Tensor | None, *tensors: Tensor) -> tuple[Tensor, ...]:
        terms = rebuild(self.terms, tensors)
        _, n, _ = total_shape(terms)
        used = None if values is None else values.to(self.dtype)

        def attempt(block: Block) -> list[tuple[Tensor | None, Tensor]]:
            return [
                _rows_forward(terms, log_weights, used, rows, block[1], self.dtype)
                for rows in _row_blocks(n, block)
            ]

        parts, _ = run_in_memory(self.block, attempt)
        lse = torch.cat([part[1] for part in parts], -1)
        if used is None:
            return (lse,)
        return torch.cat([part[0] for part in parts if part[0] is not None], -2), lse

    def backward(self, *arguments: Any) -> Gradients:
        """Gradients, in smaller blocks if memory runs out."""
        return run_in_memory(self.block, lambda block: self._gradients(block, *arguments))[0]

    def _gradients(
        self, block: Block, needs: Needs, inputs: Tensors, outputs: Tensors, upstream: Tensors
    ) -> Gradients:
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
        for rows, columns in pairs_of_blocks(terms, block):
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
    *averages, lse = _BlockwiseSums(terms, block, dtype)(log_weights, reduction.values, *tensors)
    return (averages[0] if averages else None), add_row(lse, sum_rows(terms)).to(dtype)


# ---- conditional log-probabilities: two online softmaxes over the same blocks


def reduce_given(
    terms: Sequence[Term],
    more: Sequence[Term],
    log_weights: Float[Tensor, "*weights m"],
    block: Block | None = None,
) -> tuple[Tensor, Tensor]:
    """The logsumexp of `terms`, and that of `terms` and `more` less it, by blocks."""
    together = Reduction([*terms, *more], log_weights)
    block = block or default_block(*together.shape, log_weights.device)
    prepared = tuple(term.prepared() for term in together.terms)
    tensors = (tensor for term in prepared for tensor in term.tensors)
    lse, conditional, *_ = _BlockwiseRatio(prepared, block, len(terms))(log_weights, *tensors)
    row, more_row = sum_rows(prepared[: len(terms)]), sum_rows(prepared[len(terms) :])
    return add_row(lse, row).to(together.dtype), add_row(conditional, more_row).to(together.dtype)


def _rows_forward_given(
    terms: Sequence[Term], n_given: int, log_weights: Tensor, rows: slice, step: int
) -> tuple[_Sums, _Sums]:
    """One block of queries against all components: the sums of the condition, and those of all terms."""
    given: _Sums | None = None
    together: _Sums | None = None
    for columns in slices(terms[0].shape[2], step):
        scores = at_least_float32(weights_block(log_weights, rows, columns))
        for i, term in enumerate(terms):
            scores = term.queries(rows).columns(columns).matrix() + scores
            if i == n_given - 1:
                given = _merged(given, _sums(scores))
        together = _merged(together, _sums(scores))
    assert given is not None  # a reduction has at least one component
    assert together is not None
    return given, together


def _sums(scores: Tensor) -> _Sums:
    """As precise as the scores: gradients of the two sums nearly cancel."""
    top = finite_top(scores)
    return top.squeeze(-1), exp_(scores - top).sum(-1)


def _merged(one: _Sums | None, other: _Sums) -> _Sums:
    if one is None:
        return other
    (top, total), (other_top, other_total) = one, other
    higher = torch.maximum(top, other_top)
    first, second = ((part - higher).exp() for part in (top, other_top))
    return higher, total * first + other_total * second


@dataclass(frozen=True)
class _BlockwiseRatio(Recomputed):
    """(log_weights, *tensors of the terms) → logsumexp of the condition, the conditional, and both sums.

    The first `n_given` terms are the condition.
    """

    terms: tuple[Term, ...]
    block: Block
    n_given: int

    def forward(self, log_weights: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        terms = rebuild(self.terms, tensors)
        _, n, _ = total_shape(terms)

        def attempt(block: Block) -> list[Tensor]:
            parts = [
                _rows_forward_given(terms, self.n_given, log_weights, rows, block[1])
                for rows in _row_blocks(n, block)
            ]
            return [torch.cat([part[i][j] for part in parts], -1) for i in range(2) for j in range(2)]

        (top, total, other_top, other_total), _ = run_in_memory(self.block, attempt)
        conditional = log_ratio(total, top, other_total, other_top)
        return total.log() + top, conditional, top, total, other_top, other_total

    def backward(self, *arguments: Any) -> Gradients:
        """Gradients, in smaller blocks if memory runs out."""
        return run_in_memory(self.block, lambda block: self._gradients(block, *arguments))[0]

    def _gradients(
        self, block: Block, needs: Needs, inputs: Tensors, outputs: Tensors, upstream: Tensors
    ) -> Gradients:
        (log_weights, *tensors), (_, _, *sums) = inputs, outputs
        terms = rebuild(self.terms, tensors)
        by_terms = TermGradients(terms, tensors, needs[1:])
        grad_weights = accumulator(log_weights) if needs[0] else None
        # Most losses depend on the conditional alone.
        by_lse, by_conditional = (None if by is None else by.unsqueeze(-1) for by in upstream[:2])
        offsets = sums[0].unsqueeze(-1), sums[2].unsqueeze(-1)
        totals = [torch.where(total > 0, total, 1.0).unsqueeze(-1) for total in sums[1::2]]
        for rows, columns in pairs_of_blocks(terms, block):
            blocks, leaves = by_terms.leaves(rows, columns)
            given, rest = summed(blocks[: self.n_given]), summed(blocks[self.n_given :])
            scores = given.detach() + weights_block(log_weights, rows, columns)
            prior, posterior = (
                exp_(s - offset[..., rows, :]) / total[..., rows, :]
                for s, offset, total in zip((scores, scores + rest.detach()), offsets, totals, strict=True)
            )
            pairs, by_rest = [], []
            if by_conditional is not None:
                joint = posterior * by_conditional[..., rows, :]
                pairs.append((given, joint - prior * by_conditional[..., rows, :]))
                by_rest.append((rest, joint))
            if by_lse is not None:
                pairs.append((given, prior * by_lse[..., rows, :]))
            if grad_weights is not None:
                for _, slopes in pairs:
                    accumulate(weights_block(grad_weights, rows, columns), slopes)
            by_terms.add([*pairs, *by_rest], leaves, rows, columns)
        return grad_weights, *by_terms.gradients
