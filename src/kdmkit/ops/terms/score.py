"""Scores by any function of a block of queries and components."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor

from kdmkit._core.tensors import at_least_float32
from kdmkit.ops.terms.base import Role, Term

BlockScore = Callable[[Tensor, Tensor, Sequence[Tensor]], Tensor]


@dataclass(frozen=True)
class Score(Term):
    """scores = function(query, components, parameters) for a function that works on any block.

    Args:
        function: maps `(*lead, n, k)`, `(*lead, m, k)` and the parameters to `(*lead, n, m)`.
        query: of shape `(*lead, n, k)`.
        components: of shape `(*lead, m, k)`.
        parameters: tensors that every block shares.

    >>> import torch
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
        query, components, *parameters = (at_least_float32(tensor) for tensor in self.tensors)
        return self.function(query, components, parameters)
