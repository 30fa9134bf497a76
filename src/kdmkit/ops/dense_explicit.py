"""Backend `torch` for a squared distance and other terms: all scores at once, with explicit gradients.

Training steps consist of this reduction. `dense` computes the same by differentiable operations, for second
derivatives, forward mode, `torch.func` and the compiler. Here one matrix of exponentials serves the forward
and the backward pass, and products are in float64 only if the spread of the data requires it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.runtime import only_reverse_mode
from kdmkit._core.tensors import at_least_float32, full_precision
from kdmkit.ops.dense import add_row, log_ratio, reduce_scores, reduce_scores_given, sum_rows, sum_scores
from kdmkit.ops.labels import MAX_LABELS, MIN_LABEL_PROBABILITY, scatter_by_code
from kdmkit.ops.recomputed import differentiable_gradients
from kdmkit.ops.scaled_points import (
    ScaledPoints,
    divide_by_total,
    exponentials,
    narrow_product,
    narrow_product_transposed,
)
from kdmkit.ops.terms import Lookup, Reduction, Result, SquaredDistance, Term, result_dtype


def supports(reduction: Reduction) -> str | None:
    """Why this implementation cannot compute a reduction, or None."""
    first, *rest = reduction.terms
    if not isinstance(first, SquaredDistance) or not first.plain:
        return "expected a squared distance without batch or metric as the first term"
    batched = reduction.log_weights.ndim > 2 or any(term.shape[0] for term in rest)
    if batched or (reduction.values is not None and reduction.values.ndim != 2):
        return "expected terms, weights and values without a batch"
    return None if only_reverse_mode() else "expected eager code outside of torch.func and forward mode"


def reduce(reduction: Reduction) -> Result:
    """The reduction, as `dense.reduce`."""
    dtype, (first, *others) = reduction.dtype, reduction.terms
    rest = [term.prepared() for term in others]
    bias = sum_scores(rest, reduction.log_weights)
    averages, lse = _DenseSums.apply(dtype, *first.tensors, bias, reduction.values)
    return averages, add_row(lse, sum_rows(rest)).to(dtype)


def reduce_given(
    terms: Sequence[Term], more: Sequence[Term], log_weights: Float[Tensor, "*n m"]
) -> tuple[Tensor, Tensor]:
    """As `dense.reduce_given`."""
    dtype = result_dtype([*terms, *more], log_weights)
    first, rest = terms[0], [term.prepared() for term in terms[1:]]
    bias, row = sum_scores(rest, log_weights), sum_rows(rest)
    if len(more) == 1 and isinstance(more[0], Lookup) and more[0].table.shape[-1] <= MAX_LABELS:
        extra, codes, more_row = more[0].table, more[0].codes, None
    else:
        more = [term.prepared() for term in more]
        extra, codes, more_row = sum_scores(more[1:], more[0].matrix()), None, sum_rows(more)
    lse, conditional = _DenseRatio.apply(dtype, *first.tensors, bias, extra, codes)
    return add_row(lse, row).to(dtype), add_row(conditional, more_row).to(dtype)


class _DenseSums(torch.autograd.Function):
    """(dtype, query, components, scale, bias, values) → averages, or None without values, and logsumexp."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *inputs: Any) -> Result:
        query, components, scale, bias, values = inputs
        points = ScaledPoints.of(query, components, scale, dtype)
        weights, total, top = exponentials(points.scores(bias), dtype)
        lse = (total.log() + (top + points.row())).to(dtype)
        averages = (
            None
            if values is None
            else narrow_product(weights, values.to(dtype)).mul_(divide_by_total(1.0, total))
        )
        _save(ctx, dtype, inputs, points, averages, weights, total)
        return averages, lse

    @staticmethod
    def backward(ctx: Any, grad_averages: Tensor | None, grad_lse: Tensor | None) -> Any:
        inputs, points, (averages, weights, total) = _saved(ctx, 5)
        needs, values = ctx.needs_input_grad[1:], inputs[4]
        if torch.is_grad_enabled():
            outputs, upstream = _differentiable_reduce(ctx.dtype, *inputs), (grad_averages, grad_lse)
            return None, *differentiable_gradients(outputs, inputs, needs, upstream)
        with full_precision(weights.device.type):
            inverse_total, grad_values = divide_by_total(1.0, total), None
            slopes = None if grad_lse is None else grad_lse.unsqueeze(-1)
            if grad_averages is not None:
                if needs[4]:
                    grad_values = narrow_product_transposed(weights, grad_averages * inverse_total).to(
                        values.dtype
                    )
                dot = (grad_averages * averages).sum(-1, keepdim=True)
                start = -dot if slopes is None else slopes - dot
                slopes = torch.addmm(start, grad_averages, values.to(ctx.dtype).mT)
            if slopes is None:
                return (None,) * 6
            return (
                None,
                *_gradients(inputs[:4], points, weights * (slopes * inverse_total), needs),
                grad_values,
            )


class _DenseRatio(torch.autograd.Function):
    """(dtype, query, components, scale, bias, extra, codes) → the logsumexp of `scores`, and that of
    `scores + extra` less it.

    `extra` is a matrix, or with `codes` a table with a row per component and a column per code. Unless a code
    is very unlikely, both sums use the same exponentials.
    """

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *inputs: Any) -> tuple[Tensor, Tensor]:
        query, components, scale, bias, extra, codes = inputs
        points = ScaledPoints.of(query, components, scale, dtype)
        scores = points.scores(bias)
        # Whether a code is too unlikely depends on the exponentials; on a GPU reading them stops the queue.
        if codes is None or codes.device.type != "cpu":
            second = exponentials(scores + _select_by_code(extra, codes), dtype)
            weights, total, top = exponentials(scores, dtype)
        else:
            weights, total, top = exponentials(scores, dtype)
            likelihood = extra.to(dtype).exp()
            other_total = _sum_by_code(weights, likelihood, codes)
            ratio = other_total / total
            # A NaN is not above the limit either.
            if not len(ratio) or ratio.amin().item() > MIN_LABEL_PROBABILITY:
                _save(ctx, dtype, inputs, points, weights, total, likelihood, other_total)
                ctx.by_code = True
                return (total.log() + (top + points.row())).to(dtype), ratio.log_()
            second = exponentials(points.scores(bias) + _select_by_code(extra, codes), dtype)
        others, other_total, other_top = second
        _save(ctx, dtype, inputs, points, weights, total, others, other_total)
        ctx.by_code = False
        conditional = log_ratio(total, top, other_total, other_top)
        return (total.log() + (top + points.row())).to(dtype), conditional.to(dtype)

    @staticmethod
    def backward(ctx: Any, grad_lse: Tensor | None, grad_conditional: Tensor | None) -> Any:
        inputs, points, (weights, total, others, other_total) = _saved(ctx, 6)
        (extra, codes), needs = inputs[4:], ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():
            outputs, upstream = _differentiable_given(ctx.dtype, *inputs), (grad_lse, grad_conditional)
            return None, *differentiable_gradients(outputs, inputs, needs, upstream)
        with full_precision(weights.device.type):
            by_lse = 0.0 if grad_lse is None else grad_lse
            if ctx.by_code:
                # Both sums are positive.
                likelihood, by_conditional = others, 0.0 if grad_conditional is None else grad_conditional
                by_prior = by_conditional if grad_lse is None else by_conditional - by_lse
                chosen = scatter_by_code(codes, (by_conditional / other_total).unsqueeze(-1), extra)
                grad_extra = (
                    narrow_product_transposed(weights, chosen).mul_(likelihood).to(extra.dtype)
                    if needs[4]
                    else None
                )
                slopes = torch.addmm((by_prior / total).unsqueeze(-1), chosen, likelihood.mT, beta=-1)
                slopes.mul_(weights)
            else:
                by_conditional = 0.0 if grad_conditional is None else grad_conditional
                joint_slopes = others * divide_by_total(by_conditional, other_total)
                grad_extra = _select_by_code_gradient(joint_slopes, extra, codes) if needs[4] else None
                slopes = torch.addcmul(joint_slopes, weights, divide_by_total(by_lse - by_conditional, total))
            if points.x.dtype != slopes.dtype:
                # Far from the components, what rounding adds to the sum of a row counts 10⁴-fold.
                slopes = slopes.to(points.x.dtype)
                excess = slopes.sum(-1, keepdim=True) - (total > 0).unsqueeze(-1) * torch.as_tensor(by_lse)
                slopes.sub_(weights * divide_by_total(excess.squeeze(-1), total))
            return None, *_gradients(inputs[:4], points, slopes, needs), grad_extra, None


def _sum_by_code(
    weights: Float[Tensor, "n m"], likelihood: Float[Tensor, "m k"], codes: Tensor
) -> Float[Tensor, " n"]:
    """Σ_j weights_ij likelihood_j,code by one product."""
    return (likelihood.mT @ weights.mT).gather(0, codes.mT.long()).squeeze(0)


def _select_by_code(extra: Tensor, codes: Tensor | None) -> Float[Tensor, "n m"]:
    """extra[j, code_i]; without codes the matrix `extra` itself."""
    return extra if codes is None else extra.mT.index_select(0, codes.squeeze(-1).long())


def _select_by_code_gradient(slopes: Float[Tensor, "n m"], extra: Tensor, codes: Tensor | None) -> Tensor:
    """The gradient by `extra`. A product, since scattered sums differ from run to run on a GPU."""
    if codes is not None:
        chosen = scatter_by_code(codes, torch.ones_like(slopes[:, :1]), extra)
        slopes = narrow_product_transposed(slopes, chosen)
    return slopes.to(extra.dtype)


def _gradients(
    inputs: Sequence[Tensor], points: ScaledPoints, slopes: Float[Tensor, "n m"], needs: Sequence[bool]
) -> list[Tensor | None]:
    """Gradients by query, components, scale and bias, from those by the scores (`slopes`)."""
    by_bias = slopes.sum_to_size(inputs[3].shape) if needs[3] else None
    # Sums in float32 are not exact enough for points in float64.
    has_sums = by_bias is not None and by_bias.ndim == 1 and slopes.dtype == points.x.dtype
    gradients = [*points.gradients(slopes, needs[:3], by_bias if has_sums else None), by_bias]
    return [g if g is None else g.to(x.dtype) for g, x in zip(gradients, inputs, strict=True)]


def _save(
    ctx: Any,
    dtype: torch.dtype,
    inputs: tuple[Tensor | None, ...],
    points: ScaledPoints,
    *intermediate: Tensor | None,
) -> None:
    ctx.dtype = dtype
    ctx.set_materialize_grads(False)
    points.save(ctx, *inputs, *intermediate)


def _saved(ctx: Any, n_inputs: int) -> tuple[tuple[Any, ...], ScaledPoints, tuple[Any, ...]]:
    points, tensors = ScaledPoints.saved(ctx)
    return tensors[:n_inputs], points, tensors[n_inputs:]


# ---- second derivatives: the same by differentiable operations


def _differentiable_reduce(dtype: torch.dtype, *inputs: Any) -> Result:
    *tensors, bias, values = inputs
    term = SquaredDistance(*tensors).prepared()
    return reduce_scores(sum_scores([term], bias), term.row(), values, dtype)


def _differentiable_given(dtype: torch.dtype, *inputs: Any) -> Result:
    *tensors, bias, extra, codes = inputs
    term = SquaredDistance(*tensors).prepared()
    scores = sum_scores([term], bias)
    together = scores + _select_by_code(at_least_float32(extra), codes)
    lse, conditional = reduce_scores_given(scores, together)
    return add_row(lse, term.row()).to(dtype), conditional.to(dtype)
