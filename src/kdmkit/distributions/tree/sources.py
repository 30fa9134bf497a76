"""Scores of the nodes of a tree, computed for all rows or for blocks of them.

Rows are the flattened leading dimensions of values, or of evidence. What is known of one node is a *source*:
values of its variables, from which scores follow by their kernels, or the scores themselves.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from kdmkit._core.runtime import only_reverse_mode
from kdmkit._core.tensors import broadcast
from kdmkit.distributions.mixing import Entry, RowScores, relative_scores
from kdmkit.distributions.stacking import scores_of_each
from kdmkit.ops.blocks import slices

# Scores of all nodes that exist at once.
_NUMBERS = 1 << 25
# The same where gradients are wanted: below this nothing is computed twice.
_NUMBERS_WITH_GRADIENTS = 1 << 26


class Source(ABC):
    """What is known of one node."""

    node: int

    @property
    @abstractmethod
    def lead(self) -> torch.Size:
        """The leading dimensions."""

    @property
    @abstractmethod
    def mixture_batch(self) -> torch.Size:
        """The batch of the components and kernels."""

    @abstractmethod
    def flat(self, lead: torch.Size) -> Rows:
        """The source with all leading dimensions in one, for blocks of rows."""

    @abstractmethod
    def scores(self) -> tuple[Float[Tensor, "*lead k"], Float[Tensor, "*lead"]]:
        """log p(what is known | z) in two parts that have to be added."""


class Rows(Protocol):
    """Scores of many rows, some of which are computed at a time."""

    def rows(self, part: slice) -> Any:
        """Those of some rows."""

    def compute(self) -> tuple[Float[Tensor, "r k"], Float[Tensor, " r"]]:
        """The scores in two parts that have to be added."""


@dataclass(frozen=True)
class Values(Source):
    """Values or regions of some variables of a node."""

    node: int
    entries: tuple[Entry, ...]

    @property
    def lead(self) -> torch.Size:
        return broadcast(*(entry.lead for entry in self.entries))

    @property
    def mixture_batch(self) -> torch.Size:
        return broadcast(*(entry.mixture_batch for entry in self.entries))

    def flat(self, lead: torch.Size) -> RowScores:
        return RowScores.of([_flat(entry, lead) for entry in self.entries])

    def scores(self) -> tuple[Tensor, Tensor]:
        return relative_scores(self.entries)


@dataclass(frozen=True)
class Numbers(Source):
    """The scores of a node."""

    node: int
    relative: Float[Tensor, "*lead k"]
    tops: Float[Tensor, "*lead"]

    @property
    def lead(self) -> torch.Size:
        return broadcast(self.relative.shape[:-1], self.tops.shape)

    @property
    def mixture_batch(self) -> torch.Size:
        return torch.Size()

    def flat(self, lead: torch.Size) -> Numbers:
        k = self.relative.shape[-1]
        relative = self.relative.expand(*lead, k).reshape(-1, k)
        return replace(self, relative=relative, tops=self.tops.expand(lead).reshape(-1))

    def rows(self, part: slice) -> Numbers:
        return replace(self, relative=self.relative[part], tops=self.tops[part])

    def scores(self) -> tuple[Tensor, Tensor]:
        return self.relative, self.tops

    compute = scores


def _flat(entry: Entry, lead: torch.Size) -> Entry:
    event = entry.value.shape[entry.value.ndim - entry.event_rank :]
    keep = None if entry.keep is None else entry.keep.expand(lead).reshape(-1)
    return replace(entry, value=entry.value.expand(*lead, *event).reshape(-1, *event), keep=keep)


def by_node(places: Mapping[str, int], entries: Mapping[str, Entry]) -> list[Source]:
    """Values by variable as sources of the nodes that hold the variables.

    Args:
        places: by variable, the node that holds it.
    """
    grouped: dict[int, list[Entry]] = {}
    for name, entry in entries.items():
        grouped.setdefault(places[name], []).append(entry)
    return [Values(node, tuple(held)) for node, held in grouped.items()]


def all_scores(n_nodes: int, sources: Sequence[Source]) -> tuple[list[Tensor | None], Tensor | float]:
    """Scores by node, and what has to be added to their sum, `(*lead,)`."""
    single = {i: s.entries[0] for i, s in enumerate(sources) if isinstance(s, Values) and len(s.entries) == 1}
    known = dict(zip(single, scores_of_each(list(single.values())), strict=True))
    found = [(s.node, known[i] if i in known else s.scores()) for i, s in enumerate(sources)]
    return _by_node(n_nodes, found)


def _by_node(
    n_nodes: int, found: Sequence[tuple[int, tuple[Tensor, Tensor]]]
) -> tuple[list[Tensor | None], Tensor | float]:
    scores: list[Tensor | None] = [None] * n_nodes
    total: Tensor | float = 0.0
    for node, (relative, tops) in found:
        before = scores[node]
        scores[node] = relative if before is None else before + relative
        total = total + tops
    return scores, total


#: Maps scores by node and a constant per row, of each group of sources, to results `(*lead, …)`.
RowFunction = Callable[..., tuple[Tensor, ...]]


def in_blocks(
    function: RowFunction, groups: Sequence[Sequence[Source]], sizes: Sequence[int], batch: torch.Size
) -> tuple[Tensor, ...]:
    """`function` of the scores of each group of sources, for blocks of rows where there are many.

    Where gradients are wanted, the scores of a block are computed again in the backward pass.

    Args:
        function: takes scores by node and a constant per row for each group; returns `(*lead, …)`.
        sizes: by node, its number of states.
        batch: the batch of the tree; rows are not cut where it is not empty.
    """
    n = len(sizes)
    sources = [source for group in groups for source in group]
    lead = broadcast(*(source.lead for source in sources))
    shared = not len(batch) and all(math.prod(source.mixture_batch) == 1 for source in sources)
    per_row = sum(sizes[source.node] for source in sources)
    limit = _NUMBERS_WITH_GRADIENTS if torch.is_grad_enabled() else _NUMBERS
    if lead.numel() * per_row <= limit or not shared or not only_reverse_mode():
        return function(*(one for group in groups for one in all_scores(n, group)))
    flat = [[(source.node, source.flat(lead)) for source in group] for group in groups]

    def run(part: slice) -> tuple[Tensor, ...]:
        found = ([(node, rows.rows(part).compute()) for node, rows in group] for group in flat)
        return function(*(one for group in found for one in _by_node(n, group)))

    results = []
    for part in slices(lead.numel(), max(1, _NUMBERS // per_row)):
        results.append(_recomputed(run, part) if torch.is_grad_enabled() else run(part))
    joined = (torch.cat(parts) for parts in zip(*results, strict=True))
    return tuple(result.reshape(*lead, *result.shape[1:]) for result in joined)


def _recomputed(run: Callable[..., Any], part: slice) -> tuple[Tensor, ...]:
    results: tuple[Tensor, ...] = checkpoint(run, part, use_reentrant=False)
    return results
