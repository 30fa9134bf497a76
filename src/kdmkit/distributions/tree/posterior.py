"""The weights of one node's components: those before evidence, or the posterior ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit.distributions._lazy import cached_per_grad_mode
from kdmkit.distributions.features import Values
from kdmkit.distributions.mixing import Entry
from kdmkit.distributions.tree.condition import Condition
from kdmkit.distributions.tree.states import States
from kdmkit.distributions.weights import Given, PartMap, Weights


class NodeWeights(Weights):
    """p(z_node | evidence), computed when it is first read.

    Args:
        tree: the states of the tree, or a condition on them.
        node: whose weights these are.
        shape: the batch, where it is larger than the tree's.
    """

    def __init__(self, tree: States | Condition, node: int, shape: torch.Size | None = None) -> None:
        self._tree, self._node = tree, node
        self._shape = tree.batch_shape if shape is None else shape

    @property
    def batch_shape(self) -> torch.Size:
        return self._shape

    @property
    def log_weights(self) -> Float[Tensor, "*batch k"]:
        found = self._posterior[0] if isinstance(self._tree, Condition) else self._log_prior
        return found.expand(*self._shape, found.shape[-1])

    @cached_per_grad_mode
    def _log_prior(self) -> Float[Tensor, "*batch k"]:
        assert isinstance(self._tree, States)
        return self._tree.log_prior(self._node)

    @cached_per_grad_mode
    def _posterior(self) -> tuple[Float[Tensor, "*batch k"], Float[Tensor, "*batch"]]:
        """log p(z_node | evidence) and log p(evidence)."""
        assert isinstance(self._tree, Condition)
        return self._tree.at(self._node)

    @property
    def log_evidence(self) -> Float[Tensor, "*batch"]:
        if not isinstance(self._tree, Condition):
            return super().log_evidence
        return self._posterior[1].expand(self._shape)

    def average(self, values: Values) -> Float[Tensor, "*batch v"]:
        return Given(self.log_weights).average(values)

    def log_mix(self, entries: Sequence[Entry]) -> Float[Tensor, "*lead"]:
        return Given(self.log_weights).log_mix(entries)

    def mapped(self, function: PartMap) -> NodeWeights:
        return NodeWeights(self._tree.mapped(function), self._node, self._shape)

    def expand(self, batch_shape: torch.Size) -> NodeWeights:
        return NodeWeights(self._tree, self._node, batch_shape)

    def __reduce__(self) -> tuple[type[NodeWeights], tuple[object, ...]]:
        """For pickle: cached values are left out, their gradients would lead nowhere."""
        return NodeWeights, (self._tree, self._node, self._shape)
