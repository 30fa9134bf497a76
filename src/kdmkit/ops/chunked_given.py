"""Backend `chunked` for conditional log-probabilities: two online softmaxes over the same blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.logspace import exp_
from kdmkit._core.precision import at_least_float32, full_precision
from kdmkit.ops.block_gradients import (
    TermGradients,
    accumulate,
    accumulator,
    rebuild,
    summed,
    weights_block,
)
from kdmkit.ops.blocks import Block, run_in_memory, slices, vmap_one_by_one
from kdmkit.ops.chunked import default_block
from kdmkit.ops.dense import add_row, log_ratio, sum_rows
from kdmkit.ops.reduction import Reduction
from kdmkit.ops.scaled_points import finite_top
from kdmkit.ops.terms import Term, total_shape

#: Largest scores and sums of exponentials relative to them.
_Sums = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class _Plan:
    """Everything about a reduction that is not a tensor; the first `n_given` terms are the condition."""

    terms: tuple[Term, ...]
    n_given: int
    block: Block
    dtype: torch.dtype


def reduce(
    terms: Sequence[Term], more: Sequence[Term], log_weights: Float[Tensor, "*weights m"]
) -> tuple[Tensor, Tensor]:
    """The logsumexp of `terms`, and that of `terms` and `more` less it, by blocks."""
    together = Reduction([*terms, *more], log_weights)
    block = default_block(*together.shape, log_weights.device)
    prepared = [term.prepared() for term in together.terms]
    plan = _Plan(tuple(prepared), len(terms), block, together.dtype)
    tensors = [tensor for term in prepared for tensor in term.tensors]
    lse, conditional, *_ = _Given.apply(plan, log_weights, *tensors)
    row, more_row = sum_rows(prepared[: len(terms)]), sum_rows(prepared[len(terms) :])
    return add_row(lse, row).to(plan.dtype), add_row(conditional, more_row).to(plan.dtype)


def _rows_forward(
    terms: Sequence[Term], log_weights: Tensor, plan: _Plan, rows: slice
) -> tuple[_Sums, _Sums]:
    """One block of queries against all components: the sums of the condition, and those of all terms."""
    given: _Sums | None = None
    together: _Sums | None = None
    for columns in slices(terms[0].shape[2], plan.block[1]):
        scores = at_least_float32(weights_block(log_weights, rows, columns))
        for i, term in enumerate(terms):
            scores = term.queries(rows).columns(columns).matrix() + scores
            if i == plan.n_given - 1:
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


class _Given(torch.autograd.Function):
    """(plan, log_weights, *tensors) → logsumexp of the condition, the conditional, and both sums."""

    @staticmethod
    def forward(plan: _Plan, log_weights: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        terms = rebuild(plan.terms, tensors)
        _, n, _ = total_shape(terms)

        def attempt(block: Block) -> list[Tensor]:
            smaller = replace(plan, block=block)
            blocks = slices(n, block[0]) if n else [slice(0, 0)]
            parts = [_rows_forward(terms, log_weights, smaller, rows) for rows in blocks]
            return [torch.cat([part[i][j] for part in parts], -1) for i in range(2) for j in range(2)]

        (top, total, other_top, other_total), _ = run_in_memory(plan.block, attempt)
        conditional = log_ratio(total, top, other_total, other_top)
        return total.log() + top, conditional, top, total, other_top, other_total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.plan = inputs[0]
        ctx.mark_non_differentiable(*output[2:])
        ctx.save_for_backward(*inputs[1:], *output[2:])

    @staticmethod
    def backward(ctx: Any, by_lse: Tensor, by_conditional: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        needs = ctx.needs_input_grad[1:]
        found = iter(_Gradients.apply(ctx.plan, needs, *ctx.saved_tensors, by_lse, by_conditional))
        return (None, *(next(found) if need else None for need in needs))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], plan: _Plan, *inputs: Tensor) -> tuple[Any, Any]:
        return vmap_one_by_one(lambda *x: _Given.apply(plan, *x), info.batch_size, in_dims[1:], inputs)


class _Gradients(torch.autograd.Function):
    """(plan, needs, inputs, sums, upstream) → the gradients that are needed."""

    @staticmethod
    def forward(plan: _Plan, needs: tuple[bool, ...], *inputs: Tensor) -> tuple[Tensor, ...]:
        (log_weights, *tensors), rest = inputs[: len(needs)], inputs[len(needs) :]
        with full_precision(log_weights.device.type):

            def attempt(block: Block) -> list[Tensor | None]:
                return _backward(replace(plan, block=block), log_weights, tensors, rest[:4], rest[4:], needs)

            gradients, _ = run_in_memory(plan.block, attempt)
        return tuple(gradient for gradient in gradients if gradient is not None)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> NoReturn:
        raise NotImplementedError('backend: expected "torch" for second derivatives, got "chunked"')

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], plan: _Plan, needs: Any, *inputs: Tensor
    ) -> tuple[Any, Any]:
        return vmap_one_by_one(
            lambda *x: _Gradients.apply(plan, needs, *x), info.batch_size, in_dims[2:], inputs
        )


def _backward(
    plan: _Plan,
    log_weights: Tensor,
    tensors: Sequence[Tensor],
    sums: Sequence[Tensor],
    upstream: Sequence[Tensor],
    needs: Sequence[bool],
) -> list[Tensor | None]:
    """Gradients by log-weights and tensors: every block of scores is computed again and thrown away."""
    terms = rebuild(plan.terms, tensors)
    _, n, m = total_shape(terms)
    by_terms = TermGradients(terms, tensors, needs[1:])
    grad_weights = accumulator(log_weights) if needs[0] else None
    by_lse, by_conditional = (gradient.unsqueeze(-1) for gradient in upstream)
    # Losses are of the conditional alone, as a rule.
    wants_lse = bool(by_lse.any())
    offsets = sums[0].unsqueeze(-1), sums[2].unsqueeze(-1)
    totals = [torch.where(total > 0, total, 1.0).unsqueeze(-1) for total in sums[1::2]]
    for rows in slices(n, plan.block[0]):
        for columns in slices(m, plan.block[1]):
            blocks, leaves = by_terms.leaves(rows, columns)
            given, rest = summed(blocks[: plan.n_given]), summed(blocks[plan.n_given :])
            scores = given.detach() + weights_block(log_weights, rows, columns)
            prior, posterior = (
                exp_(s - offset[..., rows, :]) / total[..., rows, :]
                for s, offset, total in zip((scores, scores + rest.detach()), offsets, totals, strict=True)
            )
            by_rest = posterior * by_conditional[..., rows, :]
            pairs = [(given, by_rest - prior * by_conditional[..., rows, :])]
            if wants_lse:
                pairs.append((given, prior * by_lse[..., rows, :]))
            if grad_weights is not None:
                for _, slopes in pairs:
                    accumulate(weights_block(grad_weights, rows, columns), slopes)
            by_terms.add([*pairs, (rest, by_rest)], leaves, rows, columns)
    return [grad_weights, *by_terms.gradients]
