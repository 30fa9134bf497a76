"""Backends `reference` and `torch`: all scores at once, by differentiable operations."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.logspace import finite_max, safe_log
from kdmkit._core.precision import at_least_float32
from kdmkit.ops.reduction import Reduction, Result
from kdmkit.ops.terms import Term


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


def reduce_scores(
    scores: Float[Tensor, "*lead n m"],
    row: Float[Tensor, "*lead n"] | None,
    values: Tensor | None,
    dtype: torch.dtype,
) -> Result:
    """Averages and logsumexps of a matrix of scores; `row` is added to the logsumexps."""
    top = finite_max(scores)
    weights = (scores - top).to(dtype).exp()
    total = weights.sum(-1)
    lse = add_row(safe_log(total).to(scores.dtype) + top.squeeze(-1), row)
    if values is None:
        return None, lse.to(dtype)
    safe_total = torch.where(total > 0, total, torch.ones_like(total))
    averages = torch.matmul(weights, values.to(dtype)) / safe_total.unsqueeze(-1)
    return averages, lse.to(dtype)


def score_matrix(
    terms: Sequence[Term], log_weights: Float[Tensor, "*weights m"]
) -> Float[Tensor, "*lead n m"]:
    """log_weights_j + Σ_terms scores_ij in full, for callers that need every score.

    As accurate as the reductions. Memory is that of the matrix in float64: callers with many queries pass
    them block by block (`term.queries(rows)`).
    """
    dtype = Reduction(terms, log_weights).dtype
    terms = [term.prepared() for term in terms]
    scores, row = sum_scores(terms, log_weights), sum_rows(terms)
    scores = scores if row is None else scores + row.unsqueeze(-1)
    return scores.to(dtype)


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


def reduce_both(
    terms: Sequence[Term], more: Sequence[Term], log_weights: Float[Tensor, "*weights m"]
) -> tuple[Tensor, Tensor]:
    """The logsumexps of `terms`, and of `terms` and `more` together; scores of `terms` are computed once."""
    dtype = Reduction([*terms, *more], log_weights).dtype
    terms, more = [term.prepared() for term in terms], [term.prepared() for term in more]
    scores, row = sum_scores(terms, log_weights), sum_rows(terms)
    together, rows = scores, sum_rows([*terms, *more])
    for term in more:
        together = term.matrix() + together
    return reduce_scores(scores, row, None, dtype)[1], reduce_scores(together, rows, None, dtype)[1]
