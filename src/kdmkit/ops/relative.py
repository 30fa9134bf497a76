"""Scores relative to the largest one of their query, rounded only after it has been taken out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.logspace import finite_max
from kdmkit._core.runtime import only_reverse_mode
from kdmkit._core.tensors import broadcast
from kdmkit.ops.dense import sum_rows, sum_scores
from kdmkit.ops.reduction import Reduction
from kdmkit.ops.terms import Term

# Numbers of a matrix that take longer than a call.
_LARGE = 1 << 12


@dataclass(frozen=True)
class RelativeScores:
    """`score_matrix` in two parts that have to be added: relative scores, and the largest of every query.

    Far from all components the largest score is much larger than the differences between scores, which
    rounding would lose.

    Args:
        terms: whose scores add.
        log_weights: added to them, `(m,)`, or per query.
        factor: the components' part of products that give all scores, where there are such.
        dtype: of the results.

    >>> from kdmkit.ops import SquaredDistance
    >>> term = SquaredDistance(torch.tensor([[9.0]]), torch.tensor([[0.0], [1.0]]), torch.ones(1, 1))
    >>> relative, largest = RelativeScores.of([term], torch.zeros(2)).compute()
    >>> relative, largest
    (tensor([[-17.,   0.]]), tensor([-64.]))
    """

    terms: tuple[Term, ...]
    log_weights: Float[Tensor, "*weights m"]
    factor: Float[Tensor, "*lead m p"] | None
    dtype: torch.dtype

    @classmethod
    def of(cls, terms: Sequence[Term], log_weights: Float[Tensor, "*weights m"]) -> RelativeScores:
        """With everything computed that the queries share."""
        dtype = Reduction(terms, log_weights).dtype
        terms = tuple(term.prepared() for term in terms)
        # Queries share the weights: `(m,)`, or `(*lead, 1, m)`.
        alone = len(terms) == 1 and log_weights.shape[-2:-1] in ((), (1,)) and only_reverse_mode()
        factor = terms[0].component_factor() if alone and _has_large_matrices(terms[0]) else None
        if factor is not None:
            weights = log_weights.to(factor.dtype)
            weights = weights.mT if weights.ndim > 1 else weights.unsqueeze(-1)
            factor = torch.cat([factor, weights.expand(*factor.shape[:-1], 1)], -1)
        return cls(terms, log_weights, factor, dtype)

    def queries(self, rows: slice) -> RelativeScores:
        """Those of some queries; log-weights are shared by all."""
        return replace(self, terms=tuple(term.queries(rows) for term in self.terms))

    def compute(self) -> tuple[Float[Tensor, "*lead n m"], Float[Tensor, "*lead n"]]:
        """Scores less the largest of their query, and these largest scores."""
        if self.factor is not None:
            matrices, tops = self._products(self.factor)
            shape = (*tops.shape, self.factor.shape[-2])
            return matrices[0] if tops.ndim == 1 else torch.stack(matrices).reshape(shape), tops
        scores, row = sum_scores(self.terms, self.log_weights), sum_rows(self.terms)
        top = finite_max(scores)
        tops = top.squeeze(-1) if row is None else row + top.squeeze(-1)
        return (scores - top).to(self.dtype), tops.to(self.dtype)

    def matrices(self) -> tuple[Sequence[Float[Tensor, "n m"]], Float[Tensor, "b n"]]:
        """As `compute`, of a batch of one dimension: a matrix for each of its elements."""
        if self.factor is not None:
            return self._products(self.factor)
        scores, tops = self.compute()
        return scores.unbind(0), tops

    def _products(self, factor: Float[Tensor, "*lead m p"]) -> tuple[list[Tensor], Float[Tensor, "*lead n"]]:
        left = self.terms[0].query_factor()
        left = torch.cat([left, torch.ones_like(left[..., :1])], -1)
        lead = broadcast(left.shape[:-2], factor.shape[:-2])
        flat = math.prod(lead)
        a, b = (
            part.expand(*lead, *part.shape[-2:]).reshape(flat, *part.shape[-2:]) for part in (left, factor)
        )
        tops, *found = _RelativeProducts.apply(self.dtype, a, b)
        return found, tops.reshape(*lead, left.shape[-2])


def _has_large_matrices(term: Term) -> bool:
    """Whether one matrix of a batch after the other takes no longer than all at once: on a CPU, if large."""
    lead, n, m = term.shape
    return math.prod(lead) == 1 or (n * m >= _LARGE and term.tensors[0].device.type == "cpu")


class _RelativeProducts(torch.autograd.Function):
    """(dtype, a, b) → the largest entry of each row of a bᵀ, a constant; and a bᵀ less it, rounded.

    Matrix by matrix: a product in float64 is rounded while it is in the caches.
    """

    @staticmethod
    def forward(
        ctx: Any, dtype: torch.dtype, a: Float[Tensor, "b n p"], b: Float[Tensor, "b m p"]
    ) -> tuple[Tensor, ...]:
        tops = torch.empty(a.shape[:-1], dtype=dtype, device=a.device)
        found = []
        for one, other, top in zip(a, b, tops, strict=True):
            product = torch.mm(one, other.mT)
            largest = finite_max(product)
            relative = torch.empty(product.shape, dtype=dtype, device=a.device)
            found.append(torch.sub(product, largest, out=relative))
            top.copy_(largest.squeeze(-1))
        ctx.save_for_backward(a, b)
        ctx.mark_non_differentiable(tops)
        return tops, *found

    @staticmethod
    def backward(ctx: Any, _: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors
        _, needs_a, needs_b = ctx.needs_input_grad
        by_a, by_b = [], []
        for one, other, slope in zip(a, b, upstream, strict=True):
            slope = slope.to(a.dtype)
            if needs_a:
                by_a.append(torch.mm(slope, other))
            if needs_b:
                # In this order: the other product of the same numbers is several times slower.
                by_b.append(torch.mm(one.mT, slope))
        return None, torch.stack(by_a) if needs_a else None, torch.stack(by_b).mT if needs_b else None
