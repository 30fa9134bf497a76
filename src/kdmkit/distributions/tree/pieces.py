"""Evidence on a tree as L weighted pieces, each a source of scores for some nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.tensors import broadcast
from kdmkit.distributions.known import Known
from kdmkit.distributions.tree.sources import Numbers, Source, by_node
from kdmkit.distributions.weights import PartMap


class Pieces(ABC):
    """What is known of some nodes, L times, for every element of a batch."""

    @property
    @abstractmethod
    def batch_shape(self) -> torch.Size: ...

    @property
    @abstractmethod
    def rank(self) -> int:
        """The number of batch dimensions of the sources."""

    @property
    @abstractmethod
    def nodes(self) -> set[int]:
        """The nodes of which something is known."""

    @property
    @abstractmethod
    def log_weights(self) -> Float[Tensor, "*batch l"] | None:
        """Of the L pieces; None for one piece."""

    @abstractmethod
    def sources(self, rank: int) -> list[Source]:
        """The sources, with `rank` dimensions after the one that counts pieces."""

    @abstractmethod
    def moved(self, position: Mapping[int, int]) -> Pieces:
        """The same for nodes that are counted otherwise."""

    @abstractmethod
    def mapped(self, function: PartMap) -> Pieces:
        """The same made of `function`'s values of all tensors and kernels."""

    @abstractmethod
    def expand(self, batch_shape: torch.Size) -> Pieces:
        """The same for more elements of a batch."""


@dataclass(frozen=True)
class KnownPieces(Pieces):
    """Evidence on variables: points of them, weighted ones, or regions.

    Args:
        known: the evidence, with kernels and components of its variables.
        places: by variable, the node that holds it.
    """

    known: Known
    places: Mapping[str, int]

    @property
    def batch_shape(self) -> torch.Size:
        return self.known.batch_shape

    @property
    def rank(self) -> int:
        return self.known.rank

    @property
    def nodes(self) -> set[int]:
        return {self.places[name] for name in self.known.kernels}

    @property
    def log_weights(self) -> Tensor | None:
        return self.known.log_weights

    def sources(self, rank: int) -> list[Source]:
        return by_node(self.places, self.known.entries("density", rank))

    def moved(self, position: Mapping[int, int]) -> KnownPieces:
        places = {name: position[self.places[name]] for name in self.known.kernels}
        return replace(self, places=places)

    def mapped(self, function: PartMap) -> KnownPieces:
        return replace(self, known=self.known.mapped(function))

    def expand(self, batch_shape: torch.Size) -> KnownPieces:
        return replace(self, known=self.known.expand(batch_shape))


@dataclass(frozen=True)
class NumberPieces(Pieces):
    """Evidence as scores of nodes.

    Args:
        scores: by node, `(L, *batch, k)`, or `(1, *batch, k)` where all pieces share them.
        weights: logarithms, `(*batch, L)`; None for one piece.
    """

    scores: Mapping[int, Float[Tensor, "..."]]
    weights: Float[Tensor, "*batch l"] | None

    @property
    def batch_shape(self) -> torch.Size:
        shapes = [score.shape[1:-1] for score in self.scores.values()]
        return broadcast(*shapes, *([] if self.weights is None else [self.weights.shape[:-1]]))

    @property
    def rank(self) -> int:
        return max((score.ndim - 2 for score in self.scores.values()), default=0)

    @property
    def nodes(self) -> set[int]:
        return set(self.scores)

    @property
    def log_weights(self) -> Tensor | None:
        return self.weights

    def sources(self, rank: int) -> list[Source]:
        placed = {node: with_rank(score, rank + 2) for node, score in self.scores.items()}
        return [Numbers(node, score, score.new_zeros(score.shape[:-1])) for node, score in placed.items()]

    def moved(self, position: Mapping[int, int]) -> NumberPieces:
        return replace(self, scores={position[node]: score for node, score in self.scores.items()})

    def mapped(self, function: PartMap) -> NumberPieces:
        scores = {node: function(score) for node, score in self.scores.items()}
        return NumberPieces(scores, None if self.weights is None else function(self.weights))

    def expand(self, batch_shape: torch.Size) -> NumberPieces:
        placed = {node: with_rank(score, len(batch_shape) + 2) for node, score in self.scores.items()}
        scores = {
            node: score.expand(score.shape[0], *batch_shape, score.shape[-1])
            for node, score in placed.items()
        }
        weights = self.weights
        return NumberPieces(
            scores, None if weights is None else weights.expand(*batch_shape, weights.shape[-1])
        )


def with_rank(tensor: Tensor, rank: int) -> Tensor:
    """Dimensions of size 1 after the first, so that there are `rank` in all."""
    return tensor.reshape(tensor.shape[0], *([1] * (rank - tensor.ndim)), *tensor.shape[1:])


def paired(
    a: Sequence[Tensor | None], b: Sequence[Tensor | None]
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Scores `(L, *batch, k)` and `(L', *batch', k)` in shapes that broadcast to `(L, L', *batch, k)`."""
    rank = max((score.ndim for score in (*a, *b) if score is not None), default=2)
    left = [None if score is None else with_rank(score, rank).unsqueeze(1) for score in a]
    right = [None if score is None else with_rank(score, rank).unsqueeze(0) for score in b]
    return left, right
