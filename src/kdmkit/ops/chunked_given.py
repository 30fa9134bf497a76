"""Backend `chunked` for conditional log-probabilities: two online softmaxes over the same blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.logspace import exp_
from kdmkit._core.tensors import at_least_float32
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
from kdmkit.ops.chunked import InBlocks, default_block
from kdmkit.ops.dense import add_row, log_ratio, sum_rows
from kdmkit.ops.recomputed import Gradients, Needs, Tensors
from kdmkit.ops.reduction import Reduction
from kdmkit.ops.scaled_points import finite_top
from kdmkit.ops.terms import Term, total_shape

#: Largest scores and sums of exponentials relative to them.
_Sums = tuple[Tensor, Tensor]


def reduce(
    terms: Sequence[Term], more: Sequence[Term], log_weights: Float[Tensor, "*weights m"]
) -> tuple[Tensor, Tensor]:
    """The logsumexp of `terms`, and that of `terms` and `more` less it, by blocks."""
    together = Reduction([*terms, *more], log_weights)
    block = default_block(*together.shape, log_weights.device)
    prepared = tuple(term.prepared() for term in together.terms)
    tensors = (tensor for term in prepared for tensor in term.tensors)
    lse, conditional, *_ = _Given(prepared, block, together.dtype, len(terms))(log_weights, *tensors)
    row, more_row = sum_rows(prepared[: len(terms)]), sum_rows(prepared[len(terms) :])
    return add_row(lse, row).to(together.dtype), add_row(conditional, more_row).to(together.dtype)


def _rows_forward(
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
class _Given(InBlocks):
    """(log_weights, *tensors) → logsumexp of the condition, the conditional, and both sums.

    The first `n_given` terms are the condition.
    """

    n_given: int

    def forward(self, log_weights: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        terms = rebuild(self.terms, tensors)
        _, n, _ = total_shape(terms)

        def attempt(block: Block) -> list[Tensor]:
            blocks = slices(n, block[0]) if n else [slice(0, 0)]
            parts = [_rows_forward(terms, self.n_given, log_weights, rows, block[1]) for rows in blocks]
            return [torch.cat([part[i][j] for part in parts], -1) for i in range(2) for j in range(2)]

        (top, total, other_top, other_total), _ = run_in_memory(self.block, attempt)
        conditional = log_ratio(total, top, other_total, other_top)
        return total.log() + top, conditional, top, total, other_top, other_total

    def gradients(self, needs: Needs, inputs: Tensors, outputs: Tensors, upstream: Tensors) -> Gradients:
        (log_weights, *tensors), (_, _, *sums) = inputs, outputs
        terms = rebuild(self.terms, tensors)
        by_terms = TermGradients(terms, tensors, needs[1:])
        grad_weights = accumulator(log_weights) if needs[0] else None
        # Losses are of the conditional alone, as a rule.
        by_lse, by_conditional = (None if by is None else by.unsqueeze(-1) for by in upstream[:2])
        offsets = sums[0].unsqueeze(-1), sums[2].unsqueeze(-1)
        totals = [torch.where(total > 0, total, 1.0).unsqueeze(-1) for total in sums[1::2]]
        for rows, columns in pairs_of_blocks(terms, self.block):
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
