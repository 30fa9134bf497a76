"""Evidence on the nodes of a tree, and its scores for all rows or for blocks of them.

Rows are the flattened leading dimensions of values, or of evidence. The evidence on one node is a *source*:
values of its variables, from which scores follow by their kernels, or the scores themselves. Evidence that is
a mixture consists of L weighted *pieces*, each with a source for some nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from kdmkit._core.runtime import only_reverse_mode
from kdmkit._core.tensors import broadcast
from kdmkit.distributions.arguments import BatchIndex
from kdmkit.distributions.base import PartMap
from kdmkit.distributions.component_scores import RowScores, relative_scores, scores_of_each
from kdmkit.distributions.evidence import Evidence, with_rank
from kdmkit.distributions.mixing import Entry
from kdmkit.ops.blocks import slices

# Scores of all nodes that exist at once.
_NUMBERS = 1 << 25
# The same if gradients are needed: below this nothing is computed twice.
_NUMBERS_WITH_GRADIENTS = 1 << 26


@dataclass(frozen=True)
class ValueSource:
    """Values or regions of some variables of a node."""

    node: int
    entries: tuple[Entry, ...]

    @property
    def lead(self) -> torch.Size:
        """The leading dimensions."""
        return broadcast(*[entry.lead for entry in self.entries])

    @property
    def mixture_batch(self) -> torch.Size:
        """The batch of the components and kernels."""
        return broadcast(*[entry.mixture_batch for entry in self.entries])

    def flat(self, lead: torch.Size) -> RowScores:
        """The scores with all leading dimensions in one, for blocks of rows."""
        return RowScores.of([_flat(entry, lead) for entry in self.entries])

    def scores(self) -> tuple[Float[Tensor, "*lead k"], Float[Tensor, "*lead"]]:
        """log p(evidence | z) in two parts that have to be added."""
        return relative_scores(self.entries)


@dataclass(frozen=True)
class ScoreSource:
    """The scores of a node, with a constant per row that has to be added."""

    node: int
    relative: Float[Tensor, "*lead k"]
    tops: Float[Tensor, "*lead"]

    @classmethod
    def of(cls, node: int, scores: Float[Tensor, "*lead k"]) -> ScoreSource:
        return cls(node, scores, scores.new_zeros(scores.shape[:-1]))

    @property
    def lead(self) -> torch.Size:
        return broadcast(self.relative.shape[:-1], self.tops.shape)

    @property
    def mixture_batch(self) -> torch.Size:
        return torch.Size()

    def flat(self, lead: torch.Size) -> ScoreSource:
        k = self.relative.shape[-1]
        relative = self.relative.expand(*lead, k).reshape(-1, k)
        return replace(self, relative=relative, tops=self.tops.expand(lead).reshape(-1))

    def rows(self, part: slice) -> ScoreSource:
        return replace(self, relative=self.relative[part], tops=self.tops[part])

    def scores(self) -> tuple[Tensor, Tensor]:
        return self.relative, self.tops

    compute = scores


#: Scores by node, and what has to be added to their sum, `(*lead,)`.
NodeSums = tuple[list[Tensor | None], Tensor | float]
#: Evidence on one node.
Source = ValueSource | ScoreSource


def _flat(entry: Entry, lead: torch.Size) -> Entry:
    event = entry.value.shape[entry.value.ndim - entry.event_rank :]
    keep = None if entry.keep is None else entry.keep.expand(lead).reshape(-1)
    return replace(entry, value=entry.value.expand(*lead, *event).reshape(-1, *event), keep=keep)


def by_node(places: Mapping[str, int], entries: Mapping[str, Entry]) -> list[Source]:
    """Values by variable as sources of the nodes that have the variables.

    Args:
        places: the node of every variable.
    """
    grouped: dict[int, list[Entry]] = {}
    for name, entry in entries.items():
        grouped.setdefault(places[name], []).append(entry)
    return [ValueSource(node, tuple(group)) for node, group in grouped.items()]


def score_sources(places: Mapping[str, int], scores: Mapping[str, tuple[Tensor, Tensor]]) -> list[Source]:
    """Scores by variable, each with a constant per row, as sources of the nodes that have the variables."""
    return [ScoreSource(places[name], *parts) for name, parts in scores.items()]


def scores_by_node(topology: Any, scores: Mapping[str, tuple[Tensor, Tensor]]) -> NodeSums:
    """Scores by variable in one list by node, and what has to be added to their sum."""
    parts = [(topology.node_of[name], pair) for name, pair in scores.items()]
    return sum_by_node(len(topology.nodes), parts)


# ---- evidence that is a mixture


@dataclass(frozen=True)
class EvidencePieces:
    """Evidence on variables: points, weighted points, or regions.

    Args:
        evidence: with the kernels and components of its variables.
        places: the node of every variable.
    """

    evidence: Evidence
    places: Mapping[str, int]

    @property
    def batch_shape(self) -> torch.Size:
        return self.evidence.batch_shape

    @property
    def rank(self) -> int:
        """The number of batch dimensions of the sources."""
        return self.evidence.rank

    @property
    def nodes(self) -> set[int]:
        """The nodes with evidence."""
        return {self.places[name] for name in self.evidence.kernels}

    @property
    def log_weights(self) -> Float[Tensor, "*batch l"] | None:
        """The log-weights of the L pieces; None for one piece."""
        return self.evidence.log_weights

    def sources(self, rank: int) -> list[Source]:
        """The sources, with `rank` dimensions after the one that counts pieces."""
        return by_node(self.places, self.evidence.entries_by_name("density", rank))

    def renumbered(self, position: Mapping[int, int]) -> EvidencePieces:
        """The same for nodes with other positions."""
        places = {name: position[self.places[name]] for name in self.evidence.kernels}
        return replace(self, places=places)

    def mapped(self, function: PartMap) -> EvidencePieces:
        """The same with `function` applied to every tensor and kernel."""
        return replace(self, evidence=self.evidence.mapped(function))

    def expand(self, batch_shape: torch.Size) -> EvidencePieces:
        """The same for more elements of a batch."""
        return replace(self, evidence=self.evidence.expand(batch_shape))

    def at(self, index: BatchIndex) -> EvidencePieces:
        """The same for chosen elements of the batch."""
        return replace(self, evidence=self.evidence.at(index))


@dataclass(frozen=True)
class ScorePieces:
    """Evidence as scores of nodes.

    Args:
        scores: by node, `(L, *batch, k)`, or `(1, *batch, k)` if all pieces share them.
        log_weights: of shape `(*batch, L)`; None for one piece.
    """

    scores: Mapping[int, Float[Tensor, "..."]]
    log_weights: Float[Tensor, "*batch l"] | None = None

    @property
    def batch_shape(self) -> torch.Size:
        shapes = [score.shape[1:-1] for score in self.scores.values()]
        return broadcast(*shapes, *([] if self.log_weights is None else [self.log_weights.shape[:-1]]))

    @property
    def rank(self) -> int:
        return max((score.ndim - 2 for score in self.scores.values()), default=0)

    @property
    def nodes(self) -> set[int]:
        return set(self.scores)

    def sources(self, rank: int) -> list[Source]:
        return [ScoreSource.of(node, with_rank(score, rank + 2)) for node, score in self.scores.items()]

    def renumbered(self, position: Mapping[int, int]) -> ScorePieces:
        return replace(self, scores={position[node]: score for node, score in self.scores.items()})

    def mapped(self, function: PartMap) -> ScorePieces:
        scores = {node: function(score) for node, score in self.scores.items()}
        return ScorePieces(scores, None if self.log_weights is None else function(self.log_weights))

    def expand(self, batch_shape: torch.Size) -> ScorePieces:
        scores = {}
        for node, score in self.scores.items():
            placed = with_rank(score, len(batch_shape) + 2)
            scores[node] = placed.expand(score.shape[0], *batch_shape, score.shape[-1])
        weights = self.log_weights
        return ScorePieces(
            scores, None if weights is None else weights.expand(*batch_shape, weights.shape[-1])
        )

    def at(self, index: BatchIndex) -> ScorePieces:
        scores = {node: index.choose_behind(score, 1) for node, score in self.scores.items()}
        return ScorePieces(scores, None if self.log_weights is None else index.choose(self.log_weights, 1))


#: Evidence on some nodes, L times, for every element of a batch.
Pieces = EvidencePieces | ScorePieces


def paired(
    a: Sequence[Tensor | None], b: Sequence[Tensor | None]
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Scores `(L, *batch, k)` and `(L', *batch', k)` in shapes that broadcast to `(L, L', *batch, k)`."""
    rank = max((score.ndim for score in (*a, *b) if score is not None), default=2)
    left = [None if score is None else with_rank(score, rank).unsqueeze(1) for score in a]
    right = [None if score is None else with_rank(score, rank).unsqueeze(0) for score in b]
    return left, right


# ---- scores


def all_scores(n_nodes: int, sources: Sequence[Source]) -> NodeSums:
    """Scores by node, and what has to be added to their sum, `(*lead,)`."""
    single = {
        i: s.entries[0] for i, s in enumerate(sources) if isinstance(s, ValueSource) and len(s.entries) == 1
    }
    stacked = dict(zip(single, scores_of_each(list(single.values())), strict=True))
    return sum_by_node(
        n_nodes, [(s.node, stacked[i] if i in stacked else s.scores()) for i, s in enumerate(sources)]
    )


def sum_by_node(n_nodes: int, parts: Sequence[tuple[int, tuple[Tensor, Tensor]]]) -> NodeSums:
    scores: list[Tensor | None] = [None] * n_nodes
    total: Tensor | float = 0.0
    for node, (relative, tops) in parts:
        before = scores[node]
        scores[node] = relative if before is None else before + relative
        total = total + tops
    return scores, total


#: Maps scores by node and a constant per row, of each group of sources, to results `(*lead, …)`.
RowFunction = Callable[..., tuple[Tensor, ...]]


def in_blocks(
    function: RowFunction, groups: Sequence[Sequence[Source]], sizes: Sequence[int], batch: torch.Size
) -> tuple[Tensor, ...]:
    """`function` of the scores of each group of sources, for blocks of rows if there are many.

    If gradients are needed, the scores of a block are computed again in the backward pass.

    Args:
        function: takes scores by node and a constant per row for each group; returns `(*lead, …)`.
        sizes: the number of states of every node.
        batch: the batch of the tree; rows are not cut if it is not empty.
    """
    n = len(sizes)
    sources = [source for group in groups for source in group]
    lead = broadcast(*[source.lead for source in sources])
    shared = not len(batch) and all(math.prod(source.mixture_batch) == 1 for source in sources)
    per_row = sum(sizes[source.node] for source in sources)
    limit = _NUMBERS_WITH_GRADIENTS if torch.is_grad_enabled() else _NUMBERS
    if lead.numel() * per_row <= limit or not shared or not only_reverse_mode():
        return function(*[one for group in groups for one in all_scores(n, group)])
    flat = [[(source.node, source.flat(lead)) for source in group] for group in groups]

    def run(part: slice) -> tuple[Tensor, ...]:
        scores = ([(node, rows.rows(part).compute()) for node, rows in group] for group in flat)
        return function(*[one for group in scores for one in sum_by_node(n, group)])

    results = []
    for part in slices(lead.numel(), max(1, _NUMBERS // per_row)):
        results.append(_recomputed(run, part) if torch.is_grad_enabled() else run(part))
    joined = (torch.cat(parts) for parts in zip(*results, strict=True))
    return tuple(result.reshape(*lead, *result.shape[1:]) for result in joined)


def _recomputed(run: Callable[..., Any], part: slice) -> tuple[Tensor, ...]:
    results: tuple[Tensor, ...] = checkpoint(run, part, use_reentrant=False)
    return results
