"""Scores relative to the largest one of their query, rounded only after it has been taken out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.logspace import finite_max
from kdmkit._core.modes import only_reverse_mode
from kdmkit.ops.dense import sum_rows, sum_scores
from kdmkit.ops.reduction import Reduction
from kdmkit.ops.terms import Term


def relative_scores(
    terms: Sequence[Term], log_weights: Float[Tensor, "*weights m"]
) -> tuple[Float[Tensor, "*lead n m"], Float[Tensor, "*lead n"]]:
    """`score_matrix` in two parts that have to be added: relative scores, and the largest of every query.

    Far from all components the largest score is much larger than the differences between scores, which
    rounding would lose.
    """
    dtype = Reduction(terms, log_weights).dtype
    factors = (
        terms[0].factors() if len(terms) == 1 and log_weights.ndim == 1 and only_reverse_mode() else None
    )
    if factors is not None:
        left, right = factors
        left = torch.cat([left, torch.ones_like(left[:, :1])], -1)
        right = torch.cat([right, log_weights.to(right.dtype).unsqueeze(-1)], -1)
        relative, top = _RelativeProduct.apply(dtype, left, right)
        return relative, top.to(dtype)
    terms = [term.prepared() for term in terms]
    scores, row = sum_scores(terms, log_weights), sum_rows(terms)
    top = finite_max(scores)
    tops = top.squeeze(-1) if row is None else row + top.squeeze(-1)
    return (scores - top).to(dtype), tops.to(dtype)


class _RelativeProduct(torch.autograd.Function):
    """(dtype, a, b) → a bᵀ less the largest entry of each row, rounded; and that entry, a constant."""

    @staticmethod
    def forward(
        ctx: Any, dtype: torch.dtype, a: Float[Tensor, "n p"], b: Float[Tensor, "m p"]
    ) -> tuple[Float[Tensor, "n m"], Float[Tensor, " n"]]:
        product = torch.mm(a, b.mT)
        top = finite_max(product)
        relative = torch.empty(product.shape, dtype=dtype, device=product.device)
        torch.sub(product, top, out=relative)
        ctx.save_for_backward(a, b)
        top = top.squeeze(-1)
        ctx.mark_non_differentiable(top)
        return relative, top

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors
        slopes = upstream.to(a.dtype)
        by_a = torch.mm(slopes, b) if ctx.needs_input_grad[1] else None
        # In this order: the other product of the same numbers is several times slower.
        by_b = torch.mm(a.mT, slopes).mT if ctx.needs_input_grad[2] else None
        return None, by_a, by_b
