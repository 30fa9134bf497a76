"""Backends `reference` and `torch`: all scores at once, by differentiable operations."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.logspace import finite_max, log_normalize, safe_log
from kdmkit._core.tensors import at_least_float32
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


def score_matrix(
    terms: Sequence[Term], log_weights: Float[Tensor, "*weights m"]
) -> Float[Tensor, "*lead n m"]:
    """log_weights_j + Σ_terms scores_ij in full, for callers that need every score.

    As accurate as the reductions. Memory is that of the matrix in float64: callers with many queries pass
    them block by block (`term.queries(rows)`).

    Args:
        terms: whose scores add, all for the same queries and components.
        log_weights: ℓ, of shape `(m,)` or `(*lead, m)`.

    Returns:
        Of shape `(*lead, n, m)`.

    >>> from kdmkit.ops import SquaredDistance
    >>> term = SquaredDistance(torch.zeros(1, 1), torch.tensor([[0.0], [1.0]]), torch.ones(1, 1))
    >>> score_matrix([term], torch.zeros(2))
    tensor([[ 0., -1.]])
    """
    dtype = Reduction(terms, log_weights).dtype
    terms = [term.prepared() for term in terms]
    scores, row = sum_scores(terms, log_weights), sum_rows(terms)
    scores = scores if row is None else scores + row.unsqueeze(-1)
    return scores.to(dtype)


def log_posterior(
    terms: Sequence[Term], log_weights: Float[Tensor, "*weights m"]
) -> Float[Tensor, "*lead n m"]:
    """log softmax_j(log_weights_j + Σ_terms scores_ij), a row of −∞ where all scores of a query are −∞.

    Scores are normalised before they are rounded. Memory is as in `score_matrix`.

    Args:
        terms: whose scores add, all for the same queries and components.
        log_weights: ℓ, of shape `(m,)` or `(*lead, m)`.

    Returns:
        Of shape `(*lead, n, m)`; the exponentials of a row sum to 1.

    >>> from kdmkit.ops import SquaredDistance
    >>> term = SquaredDistance(torch.zeros(1, 1), torch.tensor([[0.0], [1.0]]), torch.ones(1, 1))
    >>> log_posterior([term], torch.tensor([0.5, 0.5]).log()).exp()
    tensor([[0.7311, 0.2689]])
    """
    dtype = Reduction(terms, log_weights).dtype
    return log_normalize(sum_scores([term.prepared() for term in terms], log_weights)).to(dtype)


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
    dtype = Reduction([*terms, *more], log_weights).dtype
    terms, more = [term.prepared() for term in terms], [term.prepared() for term in more]
    scores = together = sum_scores(terms, log_weights)
    for term in more:
        together = term.matrix() + together
    lse, conditional = reduce_scores_given(scores, together)
    return add_row(lse, sum_rows(terms)).to(dtype), add_row(conditional, sum_rows(more)).to(dtype)
