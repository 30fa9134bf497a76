"""Backends `reference` and `torch`: all scores at once, by plain differentiable operations."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.logspace import finite_max, safe_log
from kdmkit._core.precision import at_least_float32
from kdmkit.ops.terms import Term


def result_dtype(terms: Sequence[Term], *others: Tensor) -> torch.dtype:
    """The inputs' common floating dtype, at least float32."""
    dtype = torch.float32
    for tensor in (*others, *(t for term in terms for t in term.tensors)):
        if tensor.dtype != dtype and tensor.is_floating_point():
            dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def row_constant(terms: Sequence[Term]) -> Tensor | None:
    """The sum of the terms' constants per query."""
    rows = [row for row in (term.row() for term in terms) if row is not None]
    return sum(rows[1:], rows[0]) if rows else None


def add_row(lse: Tensor, row: Tensor | None) -> Tensor:
    """logsumexps with the constant per query; where a query meets nothing it gets no gradient either."""
    return lse if row is None else lse + torch.where(torch.isneginf(lse), 0.0, row)


def sum_matrix(terms: Sequence[Term], log_weights: Tensor) -> Tensor:
    scores = at_least_float32(log_weights)
    for term in terms:
        scores = term.matrix() + scores
    return scores


def _exact(terms: Sequence[Term], log_weights: Tensor) -> Tensor:
    scores = at_least_float32(log_weights)
    for term in terms:
        scores = term.exact() + scores
    return scores


def reduce_scores(
    scores: Tensor, row: Tensor | None, values: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor | None, Tensor]:
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
    """log_weights_j + Σ_terms scores_ij in full, for those who need every weight."""
    dtype = result_dtype(terms, log_weights)
    terms = [term.prepared() for term in terms]
    matrix, row = sum_matrix(terms, log_weights), row_constant(terms)
    matrix = matrix if row is None else matrix + row.unsqueeze(-1)
    return matrix.to(dtype)


def reference(
    terms: Sequence[Term], log_weights: Float[Tensor, "*weights m"], values: Tensor | None
) -> tuple[Tensor | None, Tensor]:
    """Scores by their definition (differences of all pairs), then the reduction."""
    others = (log_weights,) if values is None else (log_weights, values)
    return reduce_scores(_exact(terms, log_weights), None, values, result_dtype(terms, *others))


def dense(
    terms: Sequence[Term], log_weights: Float[Tensor, "*weights m"], values: Tensor | None
) -> tuple[Tensor | None, Tensor]:
    """Scores by one matrix product about a common centre, then the reduction."""
    others = (log_weights,) if values is None else (log_weights, values)
    dtype = result_dtype(terms, *others)
    terms = [term.prepared() for term in terms]
    return reduce_scores(sum_matrix(terms, log_weights), row_constant(terms), values, dtype)


def dense_both(
    terms: Sequence[Term], more: Sequence[Term], log_weights: Float[Tensor, "*weights m"]
) -> tuple[Tensor, Tensor]:
    """The logsumexps of `terms`, and of `terms` and `more` together, from one matrix of the former."""
    dtype = result_dtype([*terms, *more], log_weights)
    terms, more = [term.prepared() for term in terms], [term.prepared() for term in more]
    scores, row = sum_matrix(terms, log_weights), row_constant(terms)
    together, rows = scores, row_constant([*terms, *more])
    for term in more:
        together = term.matrix() + together
    return reduce_scores(scores, row, None, dtype)[1], reduce_scores(together, rows, None, dtype)[1]
