"""Terms made of other terms: sums, sums of exponentials, and scores of some queries only."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kdmkit._core.logspace import log_add
from kdmkit._core.runtime import only_reverse_mode
from kdmkit.ops.terms.base import Role, Roles, Term


@dataclass(frozen=True)
class _Combined(Term, ABC):
    """Terms of the same queries and components.

    Args:
        parts: one or more terms.
    """

    parts: tuple[Term, ...]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(tensor for part in self.parts for tensor in part.tensors)

    @property
    def roles(self) -> tuple[Role, ...]:
        return tuple(role for part in self.parts for role in part.roles)

    @property
    def dtype(self) -> torch.dtype:
        dtype = self.parts[0].dtype
        for part in self.parts[1:]:
            dtype = torch.promote_types(dtype, part.dtype)
        return dtype

    def with_tensors(self, tensors: Sequence[Tensor]) -> Self:
        parts, start = [], 0
        for part in self.parts:
            stop = start + len(part.tensors)
            parts.append(part.with_tensors(tensors[start:stop]))
            start = stop
        return replace(self, parts=tuple(parts))

    def prepared(self) -> Self:
        return replace(self, parts=tuple(part.prepared() for part in self.parts))


class Sum(_Combined):
    """scores[i, j] = Σ_parts scores[i, j].

    Args:
        parts: of the same queries and components.

    >>> from kdmkit.ops import SquaredDistance
    >>> term = SquaredDistance(torch.zeros(1, 1), torch.tensor([[0.0], [2.0]]), torch.ones(1, 1))
    >>> Sum((term, term)).exact()
    tensor([[-0., -8.]])
    """

    def exact(self) -> Float[Tensor, "*lead n m"]:
        return _sum([part.exact() for part in self.parts])

    def matrix(self) -> Float[Tensor, "*lead n m"]:
        return _sum([part.matrix() for part in self.parts])

    def row(self) -> Float[Tensor, "*lead n"] | None:
        rows = [row for row in (part.row() for part in self.parts) if row is not None]
        return _sum(rows) if rows else None


class LogSum(_Combined):
    """scores[i, j] = log Σ_parts exp(scores[i, j]), −∞ with no gradient where all parts are −∞.

    Args:
        parts: of the same queries and components.

    >>> from kdmkit.ops import SquaredDistance
    >>> term = SquaredDistance(torch.zeros(1, 1), torch.tensor([[0.0], [2.0]]), torch.ones(1, 1))
    >>> LogSum((term, term)).exact().exp()
    tensor([[2.0000, 0.0366]])
    """

    def exact(self) -> Float[Tensor, "*lead n m"]:
        return log_add([part.exact() for part in self.parts])

    def matrix(self) -> Float[Tensor, "*lead n m"]:
        return log_add([whole(part) for part in self.parts])


@dataclass(frozen=True)
class Restricted(Term):
    """scores[i, j] = term[i, j] for queries with `keep[i]`, and −∞ for all others.

    Args:
        term: the term to restrict; its scores of the other queries must not be NaN.
        keep: of shape `(*lead, n, 1)`.

    >>> from kdmkit.ops import SquaredDistance
    >>> term = SquaredDistance(torch.zeros(1, 1), torch.tensor([[0.0], [2.0]]), torch.ones(1, 1))
    >>> Restricted(term, torch.tensor([[False]])).exact()
    tensor([[-inf, -inf]])
    """

    term: Term
    keep: Bool[Tensor, "*#lead n 1"]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.keep, *self.term.tensors

    @property
    def roles(self) -> tuple[Role, ...]:
        return "query", *self.term.roles

    @property
    def dtype(self) -> torch.dtype:
        return self.term.dtype

    def with_tensors(self, tensors: Sequence[Tensor]) -> Restricted:
        keep, *inner = tensors
        return replace(self, keep=keep, term=self.term.with_tensors(inner))

    def prepared(self) -> Restricted:
        return replace(self, term=self.term.prepared())

    def exact(self) -> Float[Tensor, "*lead n m"]:
        return self._restrict(self.term.exact())

    def matrix(self) -> Float[Tensor, "*lead n m"]:
        return self._restrict(self.term.matrix())

    def row(self) -> Float[Tensor, "*lead n"] | None:
        row = self.term.row()
        return None if row is None else torch.where(self.keep.squeeze(-1), row, torch.zeros_like(row))

    def summands(self) -> tuple[Term, ...]:
        none = torch.zeros(1, 1, device=self.keep.device).expand(self.shape[2], 1)
        return *self.term.summands(), Kept(self.keep, none)

    def component_factor(self) -> Float[Tensor, "*lead m p"] | None:
        factor = self.term.component_factor()
        if factor is None or self.keep.ndim > factor.ndim:
            return None
        return torch.cat([factor, torch.ones_like(factor[..., :1])], -1)

    def query_factor(self) -> Float[Tensor, "*lead n p"]:
        factor = self.term.query_factor()
        keep = self.keep.expand(*factor.shape[:-1], 1)
        return torch.cat([torch.where(keep, factor, 0.0), _log(keep).to(factor.dtype)], -1)

    def _restrict(self, scores: Tensor) -> Tensor:
        return torch.where(self.keep, scores, torch.full_like(scores, -math.inf))


def restricted(term: Term, keep: Bool[Tensor, "*#lead n 1"]) -> Term:
    """The term, `Restricted` unless it is known that every query is kept.

    Args:
        term: the term to restrict.
        keep: of shape `(*lead, n, 1)`: the queries that may have a finite score.

    Returns:
        The term itself, or a `Restricted` one.

    >>> from kdmkit.ops import SquaredDistance
    >>> term = SquaredDistance(torch.zeros(1, 1), torch.tensor([[0.0], [2.0]]), torch.ones(1, 1))
    >>> restricted(term, torch.tensor([[True]])) is term
    True
    """
    is_known = keep.device.type == "cpu" and only_reverse_mode()
    return term if is_known and bool(keep.all()) else Restricted(term, keep)


@dataclass(frozen=True)
class Kept(Term):
    """scores[i, j] = 0 for queries with `keep[i]`, and −∞ for all others.

    Args:
        keep: of shape `(*lead, n, 1)`.
        none: zeros of shape `(m, 1)`, which count the components.
    """

    field_roles: ClassVar[Roles] = {"keep": "query", "none": "component"}
    keep: Bool[Tensor, "*#lead n 1"]
    none: Float[Tensor, "m 1"]

    def exact(self) -> Float[Tensor, "*lead n m"]:
        return _log(self.keep) + self.none.mT

    def matrix(self) -> Float[Tensor, "*lead n m"]:
        return _log(self.keep).expand(*self.keep.shape[:-1], self.none.shape[-2])


def _log(keep: Bool[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """0 where True, −∞ where False."""
    return torch.zeros(keep.shape, device=keep.device).masked_fill_(~keep, -math.inf)


@dataclass(frozen=True)
class InDtype(Term):
    """The scores of a term whose tensors are more precise than its results need to be.

    Args:
        term: whose scores are computed in the precision of its own tensors.
        result: the dtype of the results.

    >>> from kdmkit.ops import SquaredDistance
    >>> term = SquaredDistance(torch.zeros(1, 1), torch.tensor([[0.0], [2.0]]), torch.ones(1, 1))
    >>> InDtype(term, torch.float64).dtype
    torch.float64
    """

    term: Term
    result: torch.dtype

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.term.tensors

    @property
    def roles(self) -> tuple[Role, ...]:
        return self.term.roles

    @property
    def dtype(self) -> torch.dtype:
        return self.result

    def with_tensors(self, tensors: Sequence[Tensor]) -> InDtype:
        return replace(self, term=self.term.with_tensors(tensors))

    def prepared(self) -> InDtype:
        return replace(self, term=self.term.prepared())

    def exact(self) -> Float[Tensor, "*lead n m"]:
        return self.term.exact()

    def matrix(self) -> Float[Tensor, "*lead n m"]:
        return self.term.matrix()

    def row(self) -> Float[Tensor, "*lead n"] | None:
        return self.term.row()

    def component_factor(self) -> Float[Tensor, "*lead m p"] | None:
        return self.term.component_factor()

    def query_factor(self) -> Float[Tensor, "*lead n p"]:
        return self.term.query_factor()


def whole(term: Term) -> Float[Tensor, "*lead n m"]:
    """The scores of a term, its constants per query included.

    Args:
        term: any term.

    Returns:
        The matrix of all pairs.

    >>> from kdmkit.ops import SquaredDistance
    >>> term = SquaredDistance(torch.zeros(1, 1), torch.tensor([[0.0], [2.0]]), torch.ones(1, 1))
    >>> whole(term)
    tensor([[ 0., -4.]], dtype=torch.float64)
    """
    matrix, row = term.matrix(), term.row()
    return matrix if row is None else matrix + row.unsqueeze(-1)


def _sum(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
