"""Backends `reference` and `torch`: all scores at once, by plain differentiable operations."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.logspace import finite_max, safe_log
from kdmkit.ops.terms import Term


def result_dtype(terms: Sequence[Term], *others: Tensor) -> torch.dtype:
    """The inputs' common floating dtype, at least float32."""
    dtype = torch.float32
    for tensor in (*others, *(t for term in terms for t in term.tensors)):
        if tensor.is_floating_point():
            dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def row_constant(terms: Sequence[Term]) -> Tensor | None:
    """The sum of the terms' constants per query."""
    rows = [row for row in (term.row() for term in terms) if row is not None]
    return sum(rows[1:], rows[0]) if rows else None


def _matrix(terms: Sequence[Term], log_weights: Tensor) -> Tensor:
    matrix = terms[0].matrix()
    for term in terms[1:]:
        matrix = matrix + term.matrix()
    return matrix + log_weights


def _exact(terms: Sequence[Term], log_weights: Tensor) -> Tensor:
    matrix = terms[0].exact()
    for term in terms[1:]:
        matrix = matrix + term.exact()
    return matrix + log_weights


def _reduce(
    scores: Tensor, row: Tensor | None, values: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor | None, Tensor]:
    top = finite_max(scores)
    weights = (scores - top).to(dtype).exp()
    total = weights.sum(-1)
    lse = safe_log(total).to(scores.dtype) + top.squeeze(-1)
    if row is not None:
        lse = lse + row
    if values is None:
        return None, lse.to(dtype)
    safe_total = torch.where(total > 0, total, torch.ones_like(total))
    averages = torch.matmul(weights, values.to(dtype)) / safe_total.unsqueeze(-1)
    return averages, lse.to(dtype)


def score_matrix(terms: Sequence[Term], log_weights: Float[Tensor, "*lead m"]) -> Float[Tensor, "*lead n m"]:
    """log_weights_j + Σ_terms scores_ij in full, for those who need every weight."""
    terms = [term.prepared() for term in terms]
    matrix, row = _matrix(terms, log_weights), row_constant(terms)
    matrix = matrix if row is None else matrix + row.unsqueeze(-1)
    return matrix.to(result_dtype(terms, log_weights))


def reference(
    terms: Sequence[Term], log_weights: Float[Tensor, "*lead m"], values: Tensor | None
) -> tuple[Tensor | None, Tensor]:
    """Scores by their definition (differences of all pairs), then the reduction."""
    others = (log_weights,) if values is None else (log_weights, values)
    return _reduce(_exact(terms, log_weights), None, values, result_dtype(terms, *others))


def dense(
    terms: Sequence[Term], log_weights: Float[Tensor, "*lead m"], values: Tensor | None
) -> tuple[Tensor | None, Tensor]:
    """Scores by one matrix product about a common centre, then the reduction."""
    others = (log_weights,) if values is None else (log_weights, values)
    terms = [term.prepared() for term in terms]
    return _reduce(_matrix(terms, log_weights), row_constant(terms), values, result_dtype(terms, *others))
