"""Variables that are missing from some queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kdmkit.ops.terms.base import Role, Term, common_dtype


@dataclass(frozen=True)
class Masked(Term):
    """scores[i, j] = term[i, j] + offset[j] for queries with `keep[i]`, and 0 for all others.

    Args:
        term: the term to mask.
        offset: of shape `(m, 1)` or `(*lead, m, 1)`, added to the scores of the term.
        keep: of shape `(*lead, n, 1)`: the queries that have the variable.

    >>> from kdmkit.ops import SquaredDistance
    >>> term = SquaredDistance(torch.zeros(2, 1), torch.tensor([[0.0], [2.0]]), torch.ones(1, 1))
    >>> Masked(term, torch.zeros(2, 1), torch.tensor([[True], [False]])).exact()
    tensor([[ 0., -4.],
            [ 0.,  0.]])
    """

    term: Term
    offset: Float[Tensor, "*#lead m 1"]
    keep: Bool[Tensor, "*#lead n 1"]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.offset, self.keep, *self.term.tensors

    @property
    def roles(self) -> tuple[Role, ...]:
        return "component", "query", *self.term.roles

    @property
    def dtype(self) -> torch.dtype:
        return torch.promote_types(common_dtype([self.offset]), self.term.dtype)

    def with_tensors(self, tensors: Sequence[Tensor]) -> Masked:
        offset, keep, *inner = tensors
        return replace(self, offset=offset, keep=keep, term=self.term.with_tensors(inner))

    def prepared(self) -> Masked:
        return replace(self, term=self.term.prepared())

    def exact(self) -> Float[Tensor, "*lead n m"]:
        return self._mask(self.term.exact() + self.offset.mT)

    def matrix(self) -> Float[Tensor, "*lead n m"]:
        return self._mask(self.term.matrix() + self.offset.mT)

    def row(self) -> Float[Tensor, "*lead n"] | None:
        row = self.term.row()
        return None if row is None else torch.where(self.keep.squeeze(-1), row, torch.zeros_like(row))

    def component_factor(self) -> Float[Tensor, "*lead m p"] | None:
        factor = self.term.component_factor()
        if factor is None or max(self.offset.ndim, self.keep.ndim) > factor.ndim:
            return None
        return torch.cat([factor, self.offset.to(factor.dtype).expand(*factor.shape[:-1], 1)], -1)

    def query_factor(self) -> Float[Tensor, "*lead n p"]:
        # Rows of zeros have scores of 0.
        factor = self.term.query_factor()
        keep = self.keep.expand(*factor.shape[:-1], 1)
        return torch.cat([torch.where(keep, factor, 0.0), keep.to(factor.dtype)], -1)

    def _mask(self, scores: Tensor) -> Tensor:
        return torch.where(self.keep, scores, torch.zeros_like(scores))
