"""All scores at once, by differentiable operations: the backends `reference` and `torch`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.logspace import finite_max, log_normalize, safe_log
from kdmkit._core.runtime import only_reverse_mode
from kdmkit._core.tensors import at_least_float32, broadcast
from kdmkit.ops.terms import Reduction, Result, Term, result_dtype

# Beyond this many pairs the matrix of scores costs more in memory traffic than recomputing it does.
LARGEST_ON_CPU, LARGEST_ELSEWHERE = 1 << 22, 1 << 24
# Matrices of a batch with at least this many numbers are computed one by one: they take longer than calls.
_LARGE = 1 << 12


def sum_scores(terms: Sequence[Term], log_weights: Tensor) -> Tensor:
    """log_weights_j + Σ_terms matrix_ij: the scores without the terms' constants per query."""
    scores = at_least_float32(log_weights)
    for term in terms:
        scores = term.matrix() + scores
    return scores


def sum_rows(terms: Sequence[Term]) -> Tensor | None:
    """The sum of the terms' constants per query, None if no term has one."""
    rows = [row for row in (term.row() for term in terms) if row is not None]
    return sum(rows[1:], rows[0]) if rows else None


def add_row(lse: Tensor, row: Tensor | None) -> Tensor:
    """logsumexps plus the constants per query; where a logsumexp is −∞ its constant gets no gradient."""
    return lse if row is None else lse + torch.where(torch.isneginf(lse), 0.0, row)


def sum_exponentials(
    scores: Float[Tensor, "*lead n m"], dtype: torch.dtype
) -> tuple[Float[Tensor, "*lead n m"], Float[Tensor, "*lead n"], Float[Tensor, "*lead n"]]:
    """exp(scores − top), their sums, and top, the largest score of a query."""
    top = finite_max(scores)
    weights = (scores - top).to(dtype).exp()
    return weights, weights.sum(-1), top.squeeze(-1)


def reduce_scores(
    scores: Float[Tensor, "*lead n m"],
    row: Float[Tensor, "*lead n"] | None,
    values: Tensor | None,
    dtype: torch.dtype,
) -> Result:
    """Averages and logsumexps of a matrix of scores; `row` is added to the logsumexps."""
    weights, total, top = sum_exponentials(scores, dtype)
    lse = add_row(safe_log(total).to(scores.dtype) + top, row)
    if values is None:
        return None, lse.to(dtype)
    return average(weights, total, values.to(dtype)), lse.to(dtype)


def average(weights: Tensor, total: Tensor, values: Tensor) -> Tensor:
    """Σ_j weights_j values_j / total, 0 where a total is 0."""
    return torch.matmul(weights, values) / _positive(total).unsqueeze(-1)


def reduce_scores_given(
    scores: Float[Tensor, "*#lead n m"], together: Float[Tensor, "*#lead n m"]
) -> tuple[Float[Tensor, "*#lead n"], Float[Tensor, "*#lead n"]]:
    """The logsumexp of `scores`, and that of `together` less it: −∞ where either is.

    Exponentials are as precise as the scores: gradients of the two sums nearly cancel.
    """
    _, total, top = sum_exponentials(scores, scores.dtype)
    _, other_total, other_top = sum_exponentials(together, together.dtype)
    return safe_log(total) + top, log_ratio(total, top, other_total, other_top)


def log_ratio(total: Tensor, top: Tensor, other_total: Tensor, other_top: Tensor) -> Tensor:
    """log(other_total·e^other_top) − log(total·e^top), −∞ where other_total is 0.

    Both logarithms may be large. Their difference is taken part by part, so that it is not rounded to their
    size.
    """
    ratio = safe_log(other_total) - _positive(total).log()
    return ratio + torch.where(other_total > 0, other_top - top, 0.0)


def _positive(total: Tensor) -> Tensor:
    return torch.where(total > 0, total, torch.ones_like(total))


def reduce_exact(reduction: Reduction) -> Result:
    """Scores by their definition, the differences of all pairs: the oracle of tests."""
    scores = at_least_float32(reduction.log_weights)
    for term in reduction.terms:
        scores = term.exact() + scores
    return reduce_scores(scores, None, reduction.values, reduction.dtype)


def reduce(reduction: Reduction) -> Result:
    """Squared distances by one matrix product about a common centre."""
    terms = [term.prepared() for term in reduction.terms]
    scores = sum_scores(terms, reduction.log_weights)
    return reduce_scores(scores, sum_rows(terms), reduction.values, reduction.dtype)


def reduce_given(
    terms: Sequence[Term], more: Sequence[Term], log_weights: Float[Tensor, "*weights m"]
) -> tuple[Tensor, Tensor]:
    """The logsumexp of `terms`, and that of `terms` and `more` less it."""
    dtype = result_dtype([*terms, *more], log_weights)
    terms, more = [term.prepared() for term in terms], [term.prepared() for term in more]
    scores = together = sum_scores(terms, log_weights)
    for term in more:
        together = term.matrix() + together
    lse, conditional = reduce_scores_given(scores, together)
    return add_row(lse, sum_rows(terms)).to(dtype), add_row(conditional, sum_rows(more)).to(dtype)


def score_matrix(
    terms: Sequence[Term], log_weights: Float[Tensor, "*weights m"]
) -> Float[Tensor, "*lead n m"]:
    """log_weights_j + Σ_terms scores_ij in full, for callers that need every score.

    As accurate as the reductions. Memory is that of the matrix in float64: callers with many queries pass
    them block by block (`term.queries(rows)`).

    Args:
        terms: terms of the same queries and components, whose scores add.
        log_weights: ℓ, of shape `(m,)` or `(*lead, m)`.

    Returns:
        Of shape `(*lead, n, m)`.

    >>> from kdmkit.ops import SquaredDistance
    >>> term = SquaredDistance(torch.zeros(1, 1), torch.tensor([[0.0], [1.0]]), torch.ones(1, 1))
    >>> score_matrix([term], torch.zeros(2))
    tensor([[ 0., -1.]])
    """
    dtype = result_dtype(terms, log_weights)
    terms = [term.prepared() for term in terms]
    scores, row = sum_scores(terms, log_weights), sum_rows(terms)
    scores = scores if row is None else scores + row.unsqueeze(-1)
    return scores.to(dtype)


def log_posterior(
    terms: Sequence[Term], log_weights: Float[Tensor, "*weights m"]
) -> Float[Tensor, "*lead n m"]:
    """log softmax_j(log_weights_j + Σ_terms scores_ij), a row of −∞ where all scores of a query are −∞.

    Scores are normalised before they are rounded. Memory is as in `score_matrix`.
    """
    dtype = result_dtype(terms, log_weights)
    return log_normalize(sum_scores([term.prepared() for term in terms], log_weights)).to(dtype)


@dataclass(frozen=True)
class RelativeScores:
    """`score_matrix` in two parts that add up to it: the largest score of every query, and relative scores.

    Far from all components the largest score is much larger than the differences between scores, which
    rounding would lose.

    Args:
        terms: terms whose scores add.
        log_weights: added to them, `(m,)`, or per query.
        factor: the components' part of products that give all scores, if there are such products.
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
        """Prepared: everything that queries share is computed here."""
        dtype = result_dtype(terms, log_weights)
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
        """The scores of some queries; log-weights are shared by all."""
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
        a, b = [
            part.expand(*lead, *part.shape[-2:]).reshape(flat, *part.shape[-2:]) for part in (left, factor)
        ]
        tops, *matrices = _RelativeProducts.apply(self.dtype, a, b)
        return matrices, tops.reshape(*lead, left.shape[-2])


def _has_large_matrices(term: Term) -> bool:
    """Whether a batch of matrices is as fast one by one as all at once: on a CPU, if they are large."""
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
        matrices = []
        for one, other, top in zip(a, b, tops, strict=True):
            product = torch.mm(one, other.mT)
            largest = finite_max(product)
            relative = torch.empty(product.shape, dtype=dtype, device=a.device)
            matrices.append(torch.sub(product, largest, out=relative))
            top.copy_(largest.squeeze(-1))
        ctx.save_for_backward(a, b)
        ctx.mark_non_differentiable(tops)
        return tops, *matrices

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
