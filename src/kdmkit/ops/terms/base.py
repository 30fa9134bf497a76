"""Terms of a score: log-overlaps of queries with components, evaluated block by block; and their reduction.

A *term* holds queries `(*lead, n, k)` and components `(*lead, m, k)` and can compute any block of the
`(n, m)` matrix between them, so that the whole matrix need not be in memory. Scores of terms add: a joint
over several variables is a sequence of terms. A *reduction* is such a sequence with log-weights, and values
to average if wanted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import bad_argument, check_floating, check_instance
from kdmkit._core.tensors import at_least_float32, broadcast
from kdmkit.ops.blocks import Block

Role = Literal["query", "component", "shared"]
Roles = dict[str, Role]
#: The scores of a block of queries and components, from these and shared parameters.
BlockScore = Callable[[Tensor, Tensor, Sequence[Tensor]], Tensor]
#: Averages of the values (None without values) and logsumexps.
Result = tuple[Tensor | None, Tensor]


class Term(ABC):
    """One summand of the scores: `scores[i, j] = matrix()[i, j] + row()[i]`.

    >>> from kdmkit.ops import SquaredDistance
    >>> term = SquaredDistance(torch.zeros(1, 1), torch.tensor([[0.0], [2.0]]), torch.ones(1, 1))
    >>> isinstance(term, Term), term.matrix().shape
    (True, torch.Size([1, 2]))
    """

    #: The term's tensors by the names of their fields, and how blocks slice each of them: by query
    #: (dimension −2), by component (−2), or not at all.
    field_roles: ClassVar[Roles]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every tensor of the term, in the order that `with_tensors` takes."""
        return tuple([getattr(self, name) for name in self.field_roles])

    @property
    def roles(self) -> tuple[Role, ...]:
        """How blocks slice each of `tensors`."""
        return tuple(self.field_roles.values())

    def with_tensors(self, tensors: Sequence[Tensor]) -> Self:
        """The same term on other tensors."""
        term: Any = self  # a dataclass, as all terms are
        return replace(term, **dict(zip(self.field_roles, tensors, strict=True)))

    @property
    def shape(self) -> tuple[tuple[int, ...], int, int]:
        """The leading dimensions, the number of queries and the number of components."""
        tensors, roles = self.tensors, self.roles
        n, m = tensors[roles.index("query")].shape[-2], tensors[roles.index("component")].shape[-2]
        batched = [tensor.shape[:-2] for tensor in tensors if tensor.ndim > 2]
        return tuple(broadcast(*batched)) if batched else (), n, m

    @property
    def dtype(self) -> torch.dtype:
        """The common floating dtype of the points, float32 at least: that of the results."""
        return common_dtype(self.tensors)

    def queries(self, rows: slice) -> Self:
        """The term restricted to some queries."""
        return self._sliced("query", rows)

    def columns(self, columns: slice) -> Self:
        """The term restricted to some components."""
        return self._sliced("component", columns)

    def _sliced(self, role: Role, part: slice) -> Self:
        pairs = zip(self.tensors, self.roles, strict=True)
        return self.with_tensors([t[..., part, :] if r == role else t for t, r in pairs])

    @abstractmethod
    def exact(self) -> Float[Tensor, "*lead n m"]:
        """The scores by their definition, in the precision of the inputs, at least float32.

        Slow, and of size n × m × d in memory: the oracle of tests and of `backend="reference"`. The library
        calls it nowhere else; `score_matrix` gives callers a matrix of scores.
        """

    @abstractmethod
    def matrix(self) -> Float[Tensor, "*lead n m"]:
        """The scores up to a constant per query, fast; float32 inputs may give float64 scores."""

    def row(self) -> Float[Tensor, "*lead n"] | None:
        """The constant per query that `matrix` leaves out."""
        return None

    def summands(self) -> tuple[Term, ...]:
        """Terms whose scores add up to this one's: reductions are faster for sums of simple terms."""
        return (self,)

    def component_factor(self) -> Float[Tensor, "*lead m p"] | None:
        """Matrices in float64 whose products with `query_factor` are all scores: `matrix()` plus `row()`.

        None if a term has none, and if the product would lose digits.
        """
        return None

    def query_factor(self) -> Float[Tensor, "*lead n p"]:
        """The queries' part of the product, of a prepared term that has a `component_factor`."""
        raise NotImplementedError

    def prepared(self) -> Term:
        """The term with everything that its blocks share computed once."""
        return self


def common_dtype(tensors: Iterable[Tensor]) -> torch.dtype:
    """The dtype to which floating-point tensors promote, float32 at least; other tensors do not count.

    >>> common_dtype([torch.zeros(1, dtype=torch.float16), torch.zeros(1, dtype=torch.int64)])
    torch.float32
    """
    dtype = torch.float32
    for tensor in tensors:
        if tensor.dtype != dtype and tensor.is_floating_point():
            dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def total_shape(terms: Sequence[Term]) -> tuple[tuple[int, ...], int, int]:
    """The shape of a sum of terms."""
    shapes = [term.shape for term in terms]
    lead, n, m = shapes[0]
    for other_lead, *sizes in shapes[1:]:
        if sizes != [n, m]:
            _, ns, ms = zip(*shapes, strict=True)
            wanted = "the same numbers of queries and components"
            raise ValueError(bad_argument("terms", wanted, f"queries {ns}, components {ms}"))
        if other_lead != lead:
            lead = tuple(broadcast(lead, other_lead))
    return lead, n, m


@dataclass(frozen=True)
class Score(Term):
    """scores = function(query, components, parameters) for a function that works on any block.

    Args:
        function: maps `(*lead, n, k)`, `(*lead, m, k)` and the parameters to `(*lead, n, m)`.
        query: of shape `(*lead, n, k)`.
        components: of shape `(*lead, m, k)`.
        parameters: tensors that every block shares.

    >>> def laplace(query, components, parameters):
    ...     return -(query - components.mT).abs()
    >>> Score(laplace, torch.tensor([[1.0]]), torch.tensor([[0.0], [3.0]])).exact()
    tensor([[-1., -2.]])
    """

    function: BlockScore
    query: Tensor
    components: Tensor
    parameters: tuple[Tensor, ...] = ()

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

    def exact(self) -> Float[Tensor, "*lead n m"]:
        return self.matrix()

    def matrix(self) -> Float[Tensor, "*lead n m"]:
        query, components, *parameters = [at_least_float32(tensor) for tensor in self.tensors]
        return self.function(query, components, parameters)


@dataclass(frozen=True)
class Reduction:
    """logsumexp_j(s_ij) and Σ_j softmax_j(s_ij)·values_j with s_ij = log_weights_j + Σ_terms scores_ij.

    Args:
        terms: at least one; their scores add.
        log_weights: of shape `(m,)`, or `(*lead, 1, m)` per batch, or `(*lead, n, m)` per query.
        values: of shape `(*lead, m, v)`, or None if only the logsumexp is wanted.
        block: queries and components per block; None lets the implementation choose.

    Attributes:
        shape: the leading dimensions, the number of queries and the number of components.
        device_type: of the terms.
        dtype: of the results.

    Raises:
        TypeError, ValueError: if the kinds or the sizes of the arguments do not match.
    """

    terms: Sequence[Term]
    log_weights: Float[Tensor, "*weights m"]
    values: Float[Tensor, "*#lead m v"] | None = None
    block: Block | None = None
    shape: tuple[tuple[int, ...], int, int] = field(init=False)
    device_type: str = field(init=False)
    dtype: torch.dtype = field(init=False)

    def __post_init__(self) -> None:
        if not self.terms:
            raise ValueError(bad_argument("terms", "at least one", "none"))
        for term in self.terms:
            check_instance("terms", term, Term, "terms such as RBF(0.3).term(x, components)")
        check_instance("log_weights", self.log_weights, Tensor, "a tensor")
        check_floating("log_weights", self.log_weights)
        shape = total_shape(self.terms)
        self._check_sizes(*shape[1:])
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "device_type", self.terms[0].tensors[0].device.type)
        object.__setattr__(self, "dtype", result_dtype(self.terms, self.log_weights, self.values))

    def _check_sizes(self, n: int, m: int) -> None:
        weights, values = self.log_weights.shape, self.values
        if m == 0:
            raise ValueError(bad_argument("terms", "at least one component", 0))
        if weights[-1:] != (m,) or (len(weights) > 1 and weights[-2] not in (1, n)):
            wanted = f"shape ({m},) or (..., 1 or {n}, {m})"
            raise ValueError(bad_argument("log_weights", wanted, tuple(weights)))
        if values is not None and (values.ndim < 2 or values.shape[-2] != m):
            raise ValueError(bad_argument("values", f"shape (..., {m}, v)", tuple(values.shape)))
        if self.block is not None and min(self.block) < 1:
            raise ValueError(bad_argument("block", "two positive numbers", self.block))


def result_dtype(terms: Sequence[Term], log_weights: Tensor, values: Tensor | None = None) -> torch.dtype:
    """The dtype of the results: the inputs' common floating dtype, at least float32."""
    dtype = common_dtype([log_weights] if values is None else [log_weights, values])
    for term in terms:
        dtype = torch.promote_types(dtype, term.dtype)
    return dtype
