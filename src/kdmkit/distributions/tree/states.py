"""The tree of component indices: p(z_root) and p(z_v | z_parent)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.logspace import log_normalize, safe_logsumexp
from kdmkit._core.tensors import broadcast
from kdmkit.distributions.tree.topology import Topology
from kdmkit.distributions.weights import PartMap
from kdmkit.ops.messages import Indexed, NodeScores, Tables, collect, collect_all, collect_everywhere

#: Scores by node, `(*lead, k)`, or None where nothing is known of it.
Scores = Sequence[Float[Tensor, "..."] | None]
#: The same; where few rows of a node differ, their scores and which of them every row has.
AnyScores = Sequence[NodeScores | None]


@dataclass(frozen=True)
class States:
    """A distribution over the states of all nodes.

    Args:
        topology: the nodes and their links.
        log_root: log p(z_root), `(*batch, k_root)`.
        tables: log p(z_v | z_parent) of the other nodes, in their order.
    """

    topology: Topology
    log_root: Float[Tensor, "*batch k_root"]
    tables: Tables

    @property
    def batch_shape(self) -> torch.Size:
        return broadcast(self.log_root.shape[:-1], self.tables.batch_shape)

    @property
    def sizes(self) -> tuple[int, ...]:
        """By node, its number of states."""
        rest = range(1, len(self.topology.nodes))
        return (self.log_root.shape[-1], *(self.tables.size(node) for node in rest))

    def with_root(self, scores: AnyScores) -> list[Any]:
        """The scores with log p(z_root) among those of the root."""
        first = scores[0]
        if first is None:
            return [self.log_root, *scores[1:]]
        first = first.to(self.log_root)
        together = first.plus(self.log_root) if isinstance(first, Indexed) else self.log_root + first
        return [together, *scores[1:]]

    def collect(self, scores: AnyScores, to: int = 0) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
        """log p(z_to, evidence) in two parts that have to be added, where scores are log p(evidence | z)."""
        return collect(self.topology.parents, self.with_root(scores), self.tables, to)

    def collect_everywhere(
        self, scores: AnyScores
    ) -> tuple[list[Float[Tensor, "..."]], Float[Tensor, "..."]]:
        """By node, log p(z, evidence) up to a constant per row, and what the root's lacks; no gradients."""
        return collect_everywhere(self.topology.parents, self.with_root(scores), self.tables)

    def messages(self, scores: Scores) -> list[Float[Tensor, "..."] | None]:
        """By node, log p(evidence at and below it | z) up to a constant per row; no gradients."""
        return collect_all(self.topology.parents, scores, self.tables)

    def log_total(self, scores: AnyScores) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
        """log p(evidence) in two parts that have to be added."""
        beta, shift = self.collect(scores)
        return safe_logsumexp(beta), shift

    def log_prior(self, node: int) -> Float[Tensor, "*batch k"]:
        """log p(z_node)."""
        nothing: list[Tensor | None] = [None] * len(self.topology.nodes)
        return log_normalize(self.collect(nothing, node)[0])

    def subtree(self, kept: Collection[int], variables: Collection[str]) -> tuple[States, list[int]]:
        """The tree without leaves that hold nothing, and the positions of its nodes in this tree."""
        topology, order = self.topology.pruned(kept, variables)
        return States(topology, self.log_root, self.tables.restricted(order)), order

    def pruned(self, kept: Collection[int], variables: Collection[str]) -> States:
        """The tree without leaves that hold nothing: the marginal distribution of the others."""
        return self.subtree(kept, variables)[0]

    def mapped(self, function: PartMap) -> States:
        return States(self.topology, function(self.log_root), self.tables.mapped(function))
