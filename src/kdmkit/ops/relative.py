"""Scores relative to the largest one of their query, rounded only after it has been taken out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.logspace import finite_max
from kdmkit._core.modes import only_reverse_mode
from kdmkit.ops.dense import sum_rows, sum_scores
from kdmkit.ops.reduction import Reduction
from kdmkit.ops.terms import Term


@dataclass(frozen=True)
class RelativeScores:
    """`score_matrix` in two parts that have to be added: relative scores, and the largest of every query.

    Far from all components the largest score is much larger than the differences between scores, which
    rounding would lose.

    Args:
        terms: whose scores add.
        log_weights: added to them, `(m,)`, or per query.
        factor: the components' part of a product that gives all scores, where there is one.
        dtype: of the results.
    """

    terms: tuple[Term, ...]
    log_weights: Float[Tensor, "*weights m"]
    factor: Float[Tensor, "m p"] | None
    dtype: torch.dtype

    @classmethod
    def of(cls, terms: Sequence[Term], log_weights: Float[Tensor, "*weights m"]) -> RelativeScores:
        """With everything computed that the queries share."""
        dtype = Reduction(terms, log_weights).dtype
        terms = tuple(term.prepared() for term in terms)
        alone = len(terms) == 1 and log_weights.ndim == 1 and only_reverse_mode()
        factor = terms[0].component_factor() if alone else None
        if factor is not None:
            factor = torch.cat([factor, log_weights.to(factor.dtype).unsqueeze(-1)], -1)
        return cls(terms, log_weights, factor, dtype)

    def queries(self, rows: slice) -> RelativeScores:
        """Those of some queries; log-weights are shared by all."""
        return replace(self, terms=tuple(term.queries(rows) for term in self.terms))

    def compute(self) -> tuple[Float[Tensor, "*lead n m"], Float[Tensor, "*lead n"]]:
        if self.factor is not None:
            left = self.terms[0].query_factor()
            left = torch.cat([left, torch.ones_like(left[:, :1])], -1)
            relative, top = _RelativeProduct.apply(self.dtype, left, self.factor)
            return relative, top
        scores, row = sum_scores(self.terms, self.log_weights), sum_rows(self.terms)
        top = finite_max(scores)
        tops = top.squeeze(-1) if row is None else row + top.squeeze(-1)
        return (scores - top).to(self.dtype), tops.to(self.dtype)


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
        top = top.squeeze(-1).to(dtype)
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
