"""Terms made of other terms: sums, sums of exponentials, and scores of some queries only."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kdmkit._core.logspace import log_add
from kdmkit._core.runtime import only_reverse_mode
from kdmkit.ops.terms.base import Role, Roles, Term, common_dtype
from kdmkit.ops.terms.discrete import Lookup


class _Nested(Term, ABC):
    """A term made of others that have the same queries and components.

    `field_roles` has the tensors beside the inner terms. Tensors of inner terms follow them in `tensors`.
    """

    field_roles: ClassVar[Roles] = {}
    #: The field that holds the inner term, or a tuple of them.
    _inner_field: ClassVar[str] = "term"

    @property
    def _inner(self) -> tuple[Term, ...]:
        terms = getattr(self, self._inner_field)
        return terms if isinstance(terms, tuple) else (terms,)

    def _replaced(self, inner: Sequence[Term], **tensors: Tensor) -> Self:
        term: Any = self  # a dataclass, as all terms are
        is_tuple = isinstance(getattr(self, self._inner_field), tuple)
        return replace(term, **{self._inner_field: tuple(inner) if is_tuple else inner[0]}, **tensors)

    @property
    def _field_tensors(self) -> tuple[Tensor, ...]:
        # Not super().tensors: torch.compile cannot trace a property of a superclass.
        return tuple([getattr(self, name) for name in self.field_roles])

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return *self._field_tensors, *[tensor for term in self._inner for tensor in term.tensors]

    @property
    def roles(self) -> tuple[Role, ...]:
        return *self.field_roles.values(), *[role for term in self._inner for role in term.roles]

    @property
    def dtype(self) -> torch.dtype:
        dtype = common_dtype(self._field_tensors)
        for term in self._inner:
            dtype = torch.promote_types(dtype, term.dtype)
        return dtype

    def with_tensors(self, tensors: Sequence[Tensor]) -> Self:
        start, inner = len(self.field_roles), []
        fields = dict(zip(self.field_roles, tensors[:start], strict=True))
        for term in self._inner:
            stop = start + len(term.tensors)
            inner.append(term.with_tensors(tensors[start:stop]))
            start = stop
        return self._replaced(inner, **fields)

    def prepared(self) -> Self:
        return self._replaced([term.prepared() for term in self._inner])


@dataclass(frozen=True)
class Sum(_Nested):
    """scores[i, j] = Σ_parts scores[i, j].

    Args:
        parts: of the same queries and components.

    >>> from kdmkit.ops import SquaredDistance
    >>> term = SquaredDistance(torch.zeros(1, 1), torch.tensor([[0.0], [2.0]]), torch.ones(1, 1))
    >>> Sum((term, term)).exact()
    tensor([[-0., -8.]])
    """

    _inner_field: ClassVar[str] = "parts"
    parts: tuple[Term, ...]

    def exact(self) -> Float[Tensor, "*lead n m"]:
        return _sum([part.exact() for part in self.parts])

    def matrix(self) -> Float[Tensor, "*lead n m"]:
        return _sum([part.matrix() for part in self.parts])

    def row(self) -> Float[Tensor, "*lead n"] | None:
        rows = [row for row in (part.row() for part in self.parts) if row is not None]
        return _sum(rows) if rows else None


@dataclass(frozen=True)
class LogSum(_Nested):
    """scores[i, j] = log Σ_parts exp(scores[i, j]), −∞ with no gradient where all parts are −∞.

    Args:
        parts: of the same queries and components.

    >>> from kdmkit.ops import SquaredDistance
    >>> term = SquaredDistance(torch.zeros(1, 1), torch.tensor([[0.0], [2.0]]), torch.ones(1, 1))
    >>> LogSum((term, term)).exact().exp()
    tensor([[2.0000, 0.0366]])
    """

    _inner_field: ClassVar[str] = "parts"
    parts: tuple[Term, ...]

    def exact(self) -> Float[Tensor, "*lead n m"]:
        return log_add([part.exact() for part in self.parts])

    def matrix(self) -> Float[Tensor, "*lead n m"]:
        return log_add([whole(part) for part in self.parts])


@dataclass(frozen=True)
class Masked(_Nested):
    """scores[i, j] = term[i, j] + offset[j] for queries with `keep[i]`, and 0 for all others.

    Args:
        term: the scores of a variable.
        offset: of shape `(m, 1)` or `(*lead, m, 1)`, added to the scores of the term.
        keep: of shape `(*lead, n, 1)`: the queries that have the variable.
    """

    field_roles: ClassVar[Roles] = {"offset": "component", "keep": "query"}
    term: Term
    offset: Float[Tensor, "*#lead m 1"]
    keep: Bool[Tensor, "*#lead n 1"]

    def exact(self) -> Float[Tensor, "*lead n m"]:
        return torch.where(self.keep, self.term.exact() + self.offset.mT, 0.0)

    def matrix(self) -> Float[Tensor, "*lead n m"]:
        return torch.where(self.keep, self.term.matrix() + self.offset.mT, 0.0)

    def row(self) -> Float[Tensor, "*lead n"] | None:
        return _kept_row(self.term, self.keep)

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


@dataclass(frozen=True)
class Restricted(_Nested):
    """scores[i, j] = term[i, j] for queries with `keep[i]`, and −∞ for all others.

    Args:
        term: the term to restrict; its scores of the other queries must not be NaN.
        keep: of shape `(*lead, n, 1)`.

    >>> from kdmkit.ops import SquaredDistance
    >>> term = SquaredDistance(torch.zeros(1, 1), torch.tensor([[0.0], [2.0]]), torch.ones(1, 1))
    >>> Restricted(term, torch.tensor([[False]])).exact()
    tensor([[-inf, -inf]])
    """

    field_roles: ClassVar[Roles] = {"keep": "query"}
    term: Term
    keep: Bool[Tensor, "*#lead n 1"]

    def exact(self) -> Float[Tensor, "*lead n m"]:
        return torch.where(self.keep, self.term.exact(), -math.inf)

    def matrix(self) -> Float[Tensor, "*lead n m"]:
        return torch.where(self.keep, self.term.matrix(), -math.inf)

    def row(self) -> Float[Tensor, "*lead n"] | None:
        return _kept_row(self.term, self.keep)

    def summands(self) -> tuple[Term, ...]:
        table = torch.tensor([[-math.inf, 0.0]], device=self.keep.device).expand(self.shape[2], 2)
        return *self.term.summands(), Lookup(self.keep.long(), table)

    def component_factor(self) -> Float[Tensor, "*lead m p"] | None:
        factor = self.term.component_factor()
        if factor is None or self.keep.ndim > factor.ndim:
            return None
        return torch.cat([factor, torch.ones_like(factor[..., :1])], -1)

    def query_factor(self) -> Float[Tensor, "*lead n p"]:
        factor = self.term.query_factor()
        keep = self.keep.expand(*factor.shape[:-1], 1)
        log_keep = torch.zeros_like(factor[..., :1]).masked_fill_(~keep, -math.inf)
        return torch.cat([torch.where(keep, factor, 0.0), log_keep], -1)


def restricted(term: Term, keep: Bool[Tensor, "*#lead n 1"]) -> Term:
    """The term, `Restricted` unless every query is kept and finding that out costs nothing."""
    is_readable = keep.device.type == "cpu" and only_reverse_mode()
    return term if is_readable and bool(keep.all()) else Restricted(term, keep)


def _kept_row(term: Term, keep: Bool[Tensor, "*#lead n 1"]) -> Float[Tensor, "*lead n"] | None:
    row = term.row()
    return None if row is None else torch.where(keep.squeeze(-1), row, 0.0)


@dataclass(frozen=True)
class InDtype(_Nested):
    """The scores of a term whose tensors are more precise than its results need to be.

    Args:
        term: its scores are computed in the precision of its tensors.
        result: the dtype of the results.
    """

    term: Term
    result: torch.dtype

    @classmethod
    def of(cls, term: Term, result: torch.dtype) -> InDtype:
        """The scores of a term in another dtype, which may be one of this kind."""
        return cls(term.term if isinstance(term, InDtype) else term, result)

    @property
    def dtype(self) -> torch.dtype:
        return self.result

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
    """The scores of a term, its constants per query included."""
    matrix, row = term.matrix(), term.row()
    return matrix if row is None else matrix + row.unsqueeze(-1)


def _sum(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
