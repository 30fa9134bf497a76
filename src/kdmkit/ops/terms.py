"""What the reductions reduce: log-overlaps of queries with components, evaluated block by block.

A *term* holds queries `(*lead, n, k)` and components `(*lead, m, k)` and can compute any block of the
`(n, m)` matrix between them, so that the whole matrix need never exist. Terms add: a joint over several
variables is a sequence of terms.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from kdmkit._core.precision import wide, widened
from kdmkit._core.shapes import broadcast

_CENTRE_SAMPLE = 32


Role = Literal["query", "component", "shared"]


class Term(ABC):
    """One summand of the scores: `scores[i, j] = matrix()[i, j] + row()[i]`."""

    @property
    @abstractmethod
    def shape(self) -> tuple[tuple[int, ...], int, int]:
        """The leading dimensions, the number of queries and the number of components."""

    @property
    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """Every tensor of the term, in the order that `with_tensors` takes."""

    @property
    @abstractmethod
    def roles(self) -> tuple[Role, ...]:
        """How blocks slice each of `tensors`: by query (dimension −2), by component (−2), or not at all."""

    @abstractmethod
    def with_tensors(self, tensors: Sequence[Tensor]) -> Self:
        """The same term on other tensors."""

    @abstractmethod
    def queries(self, rows: slice) -> Self:
        """The term restricted to some queries."""

    @abstractmethod
    def columns(self, columns: slice) -> Self:
        """The term restricted to some components."""

    @abstractmethod
    def exact(self) -> Float[Tensor, "*lead n m"]:
        """The scores by their definition, in the given precision (float32 at least): slow, the oracle."""

    @abstractmethod
    def matrix(self) -> Float[Tensor, "*lead n m"]:
        """The scores up to a constant per query, fast; possibly in a wider dtype than the inputs'."""

    def row(self) -> Float[Tensor, "*lead n"] | None:
        """The constant per query that `matrix` leaves out."""
        return None

    def prepared(self) -> Self:
        """The term with whatever its blocks share computed once."""
        return self


def robust_centre(components: Float[Tensor, "*lead m d"]) -> Float[Tensor, "*lead 1 d"]:
    """The coordinate-wise median of a few components: a point amid the data, whatever its outliers."""
    step = max(1, components.shape[-2] // _CENTRE_SAMPLE)
    return components.detach()[..., ::step, :].median(-2, keepdim=True).values


def _differences(
    x: Float[Tensor, "*#lead n d"], components: Float[Tensor, "*#lead m d"]
) -> Float[Tensor, "*#lead n m d"]:
    return widened(x).unsqueeze(-2) - widened(components).unsqueeze(-3)


def score_dtype(x: Tensor, components: Tensor) -> torch.dtype:
    """The precision in which squared distances are expanded into products.

    The expansion ‖x‖² − 2x·c + ‖c‖² cancels when points lie many bandwidths from the centre but near each
    other: in few dimensions always, in many where the data form clusters (128 dimensions, clusters 30σ apart:
    float32 moves probabilities by .03). A CPU's float64 costs little beside the exponentials that follow, at
    most a factor of 2 in hundreds of dimensions. Half precision is never used for scores.
    """
    dtype = wide(torch.promote_types(x.dtype, components.dtype))
    if dtype == torch.float32 and x.device.type == "cpu":
        return torch.float64
    return dtype


@dataclass(frozen=True)
class SquaredDistance(Term):
    """scores[i, j] = −‖s ∘ (x_i − c_j)‖² with a scale s, or −‖L(x_i − c_j)‖² with a metric's factor L.

    The components enter the product as they are: scale and metric are applied to the queries.

    Args:
        query: x, of shape `(*lead, n, d)`.
        components: c, of shape `(*lead, m, d)`.
        scale: s = 1/σ, of shape `(*lead, 1, d)`, or `(*lead, 1, 1)` for all dimensions; with `metric`, L, of
            shape `(*lead, d, d)`.
        metric: whether `scale` is a matrix.
    """

    query: Float[Tensor, "*#lead n d"]
    components: Float[Tensor, "*#lead m d"]
    scale: Float[Tensor, "*#lead s t"]
    metric: bool = False
    centre: Float[Tensor, "*#lead 1 d"] | None = None

    @property
    def shape(self) -> tuple[tuple[int, ...], int, int]:
        lead = broadcast(self.query.shape[:-2], self.components.shape[:-2], self.scale.shape[:-2])
        return tuple(lead), self.query.shape[-2], self.components.shape[-2]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.query, self.components, self.scale

    @property
    def roles(self) -> tuple[Role, ...]:
        return "query", "component", "shared"

    def with_tensors(self, tensors: Sequence[Tensor]) -> SquaredDistance:
        query, components, scale = tensors
        return replace(self, query=query, components=components, scale=scale)

    def queries(self, rows: slice) -> SquaredDistance:
        return replace(self, query=self.query[..., rows, :])

    def columns(self, columns: slice) -> SquaredDistance:
        return replace(self, components=self.components[..., columns, :])

    def prepared(self) -> SquaredDistance:
        # Gradients through `matrix` and through `row` nearly cancel: they must meet before they are rounded.
        dtype = score_dtype(self.query, self.components)
        centre = robust_centre(self.components)
        return replace(self, query=self.query.to(dtype), scale=self.scale.to(dtype), centre=centre)

    def exact(self) -> Float[Tensor, "*lead n m"]:
        difference = _differences(self.query, self.components)
        dtype = torch.promote_types(difference.dtype, self.scale.dtype)
        scaled = self._apply(self.scale.to(dtype).unsqueeze(-3), difference.to(dtype))
        return scaled.square().sum(-1).neg()

    def _apply(self, scale: Tensor, vectors: Tensor) -> Tensor:
        return torch.matmul(vectors, scale.mT) if self.metric else scale * vectors

    def _centred_query(self) -> Tensor:
        dtype = score_dtype(self.query, self.components)
        return self.query.to(dtype) - self._centre().to(dtype)

    def _centre(self) -> Tensor:
        return robust_centre(self.components) if self.centre is None else self.centre

    def matrix(self) -> Float[Tensor, "*lead n m"]:
        dtype = score_dtype(self.query, self.components)
        c = self.components.to(dtype) - self._centre().to(dtype)
        scale = self.scale.to(dtype)
        x = 2 * self._apply(scale.mT if self.metric else scale, self._apply(scale, self._centred_query()))
        bias = self._apply(scale, c).square().sum(-1).neg()
        if x.ndim == c.ndim == 2:
            product = torch.addmm(bias, x, c.mT)
        else:
            product = torch.matmul(x, c.mT) + bias.unsqueeze(-2)
        return product if self._splits_row else product.add_(self._row().unsqueeze(-1))

    def row(self) -> Float[Tensor, "*lead n"] | None:
        return self._row() if self._splits_row else None

    @property
    def _splits_row(self) -> bool:
        """Whether `matrix` leaves out −‖s(x_i − centre)‖².

        Far from all components that number dwarfs the differences between them, which float32 would lose. In
        float64 it belongs in: the scale's gradients through both parts nearly cancel, and do so exactly only
        if both are multiplied by the same rounded probabilities.
        """
        return score_dtype(self.query, self.components) != torch.float64

    def _row(self) -> Float[Tensor, "*lead n"]:
        query = self._centred_query()
        return self._apply(self.scale.to(query.dtype), query).square().sum(-1).neg()


@dataclass(frozen=True)
class ComponentDistance(Term):
    """scores[i, j] = −‖s_j ∘ (x_i − c_j)‖²: every component has a scale of its own.

    Args:
        query: x, of shape `(*lead, n, d)`.
        components: c, of shape `(*lead, m, d)`.
        scales: s_j = 1/σ_j, of shape `(*lead, m, d)` or `(*lead, m, 1)`.
    """

    query: Float[Tensor, "*#lead n d"]
    components: Float[Tensor, "*#lead m d"]
    scales: Float[Tensor, "*#lead m s"]
    centre: Float[Tensor, "*#lead 1 d"] | None = None

    @property
    def shape(self) -> tuple[tuple[int, ...], int, int]:
        lead = broadcast(self.query.shape[:-2], self.components.shape[:-2], self.scales.shape[:-2])
        return tuple(lead), self.query.shape[-2], self.components.shape[-2]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.query, self.components, self.scales

    @property
    def roles(self) -> tuple[Role, ...]:
        return "query", "component", "component"

    def with_tensors(self, tensors: Sequence[Tensor]) -> ComponentDistance:
        query, components, scales = tensors
        return replace(self, query=query, components=components, scales=scales)

    def queries(self, rows: slice) -> ComponentDistance:
        return replace(self, query=self.query[..., rows, :])

    def columns(self, columns: slice) -> ComponentDistance:
        return replace(self, components=self.components[..., columns, :], scales=self.scales[..., columns, :])

    def prepared(self) -> ComponentDistance:
        return replace(self, centre=robust_centre(self.components))

    def exact(self) -> Float[Tensor, "*lead n m"]:
        difference = _differences(self.query, self.components)
        return -(widened(self.scales).unsqueeze(-3) * difference).square().sum(-1)

    def matrix(self) -> Float[Tensor, "*lead n m"]:
        # −s²x² + 2s²cx − s²c²: one product over the features (x², x).
        dtype = score_dtype(self.query, self.components)
        centre = (robust_centre(self.components) if self.centre is None else self.centre).to(dtype)
        x = self.query.to(dtype) - centre
        c = self.components.to(dtype) - centre
        precision, c = torch.broadcast_tensors(self.scales.to(dtype).square(), c)
        features = torch.cat([x.square(), x], -1)
        against = torch.cat([-precision, 2 * precision * c], -1)
        return torch.matmul(features, against.mT) - (precision * c.square()).sum(-1).unsqueeze(-2)


@dataclass(frozen=True)
class Lookup(Term):
    """scores[i, j] = table[j, code_i]: discrete queries read a column of a table.

    Args:
        codes: of shape `(*lead, n, 1)`, integers in 0 … k−1.
        table: of shape `(*lead, m, k)`.
    """

    codes: Integer[Tensor, "*#lead n 1"]
    table: Float[Tensor, "*#lead m k"]

    @property
    def shape(self) -> tuple[tuple[int, ...], int, int]:
        lead = broadcast(self.codes.shape[:-2], self.table.shape[:-2])
        return tuple(lead), self.codes.shape[-2], self.table.shape[-2]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.codes, self.table

    @property
    def roles(self) -> tuple[Role, ...]:
        return "query", "component"

    def with_tensors(self, tensors: Sequence[Tensor]) -> Lookup:
        codes, table = tensors
        return replace(self, codes=codes, table=table)

    def queries(self, rows: slice) -> Lookup:
        return replace(self, codes=self.codes[..., rows, :])

    def columns(self, columns: slice) -> Lookup:
        return replace(self, table=self.table[..., columns, :])

    def exact(self) -> Float[Tensor, "*lead n m"]:
        return self.matrix()

    def matrix(self) -> Float[Tensor, "*lead n m"]:
        columns = widened(self.table).mT
        # Compiled for a CPU (torch 2.13), the gradient of index_select writes past its buffer.
        if self.codes.ndim == 2 and self.table.ndim == 2 and not torch.compiler.is_compiling():
            return columns.index_select(0, self.codes.squeeze(-1).long())
        (lead, n, m), k = self.shape, self.table.shape[-1]
        index = self.codes.long().expand(*lead, n, m)
        return columns.expand(*lead, k, m).gather(-2, index)


BlockScore = Callable[[Tensor, Tensor, Sequence[Tensor]], Tensor]


@dataclass(frozen=True)
class Score(Term):
    """scores = function(query, components, parameters) for a function that works on any block.

    Args:
        function: maps `(*lead, n, k)`, `(*lead, m, k)` and the parameters to `(*lead, n, m)`.
        query: of shape `(*lead, n, k)`.
        components: of shape `(*lead, m, k)`.
        parameters: tensors that every block shares.
    """

    function: BlockScore
    query: Tensor
    components: Tensor
    parameters: tuple[Tensor, ...] = ()

    @property
    def shape(self) -> tuple[tuple[int, ...], int, int]:
        lead = broadcast(self.query.shape[:-2], self.components.shape[:-2])
        return tuple(lead), self.query.shape[-2], self.components.shape[-2]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.query, self.components, *self.parameters

    @property
    def roles(self) -> tuple[Role, ...]:
        shared: list[Role] = ["shared" for _ in self.parameters]
        return "query", "component", *shared

    def with_tensors(self, tensors: Sequence[Tensor]) -> Score:
        query, components, *parameters = tensors
        return replace(self, query=query, components=components, parameters=tuple(parameters))

    def queries(self, rows: slice) -> Score:
        return replace(self, query=self.query[..., rows, :])

    def columns(self, columns: slice) -> Score:
        return replace(self, components=self.components[..., columns, :])

    def exact(self) -> Float[Tensor, "*lead n m"]:
        return self.matrix()

    def matrix(self) -> Float[Tensor, "*lead n m"]:
        query, components, *parameters = (widened(tensor) for tensor in self.tensors)
        return self.function(query, components, parameters)


@dataclass(frozen=True)
class Masked(Term):
    """Another term where `keep` holds, and 0 for the queries where it does not.

    Args:
        term: the term to mask.
        offset: of shape `(m, 1)`: added to the term's scores where it is kept.
        keep: of shape `(*lead, n, 1)`.
    """

    term: Term
    offset: Float[Tensor, "m 1"]
    keep: Bool[Tensor, "*#lead n 1"]

    @property
    def shape(self) -> tuple[tuple[int, ...], int, int]:
        lead, n, m = self.term.shape
        return tuple(broadcast(lead, self.keep.shape[:-2])), n, m

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.offset, self.keep, *self.term.tensors

    @property
    def roles(self) -> tuple[Role, ...]:
        return "component", "query", *self.term.roles

    def with_tensors(self, tensors: Sequence[Tensor]) -> Masked:
        offset, keep, *inner = tensors
        return replace(self, offset=offset, keep=keep, term=self.term.with_tensors(inner))

    def queries(self, rows: slice) -> Masked:
        return replace(self, term=self.term.queries(rows), keep=self.keep[..., rows, :])

    def columns(self, columns: slice) -> Masked:
        return replace(self, term=self.term.columns(columns), offset=self.offset[..., columns, :])

    def prepared(self) -> Masked:
        return replace(self, term=self.term.prepared())

    def exact(self) -> Float[Tensor, "*lead n m"]:
        return self._mask(self.term.exact() + self.offset.mT)

    def matrix(self) -> Float[Tensor, "*lead n m"]:
        return self._mask(self.term.matrix() + self.offset.mT)

    def row(self) -> Float[Tensor, "*lead n"] | None:
        row = self.term.row()
        return None if row is None else torch.where(self.keep.squeeze(-1), row, torch.zeros_like(row))

    def _mask(self, scores: Tensor) -> Tensor:
        return torch.where(self.keep, scores, torch.zeros_like(scores))


def total_shape(terms: Sequence[Term]) -> tuple[tuple[int, ...], int, int]:
    """The shape of a sum of terms."""
    leads, ns, ms = zip(*(term.shape for term in terms), strict=True)
    if len(set(ns)) > 1 or len(set(ms)) > 1:
        raise ValueError(
            f"terms: expected the same numbers of queries and components, got queries {ns}, components {ms}"
        )
    return tuple(broadcast(*leads)), ns[0], ms[0]
