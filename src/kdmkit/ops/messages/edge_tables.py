"""The edges of a tree: conditional probabilities in stacks of equal shape, and the order of messages."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.tensors import broadcast

#: The place of an edge's table: the number of the stack, and of the table in it.
Place = tuple[int, int]

# The largest entry of a row of exponentials is 1: a sum of products is at least the smallest edge entry.
_SMALLEST = {torch.float64: 1e-280}
_SMALLEST_FLOAT32 = 1e-30


def smallest_sum(dtype: torch.dtype) -> float:
    """Sums of products below this have lost digits to underflow; edge entries above it cannot cause that.

    >>> smallest_sum(torch.float32)
    1e-30
    """
    return _SMALLEST.get(dtype, _SMALLEST_FLOAT32)


@dataclass(frozen=True)
class Tables:
    """log p(z_v | z_parent) of every edge of a tree.

    Args:
        stacks: of tables, each `(n, *batch, k_parent, k_v)`; rows are logarithms of weights that sum to 1, or
            these weights.
        places: the place of every node's table; None for the root.
        sharp: for every stack, whether an entry may be below `smallest_sum`. False promises that none is.
        linear: whether the stacks hold weights; then no entry is below `smallest_sum`.
    """

    stacks: tuple[Float[Tensor, "..."], ...]
    places: tuple[Place | None, ...]
    sharp: tuple[bool, ...]
    linear: bool = False

    @classmethod
    def of(cls, logs: Sequence[Float[Tensor, "..."]]) -> Tables:
        """Tables of the nodes 1, 2, …, one by one; node 0 is the root."""
        places = (None, *[(i, 0) for i in range(len(logs))])
        stacks = tuple(table.unsqueeze(0) for table in logs)
        return cls(stacks, places, _sharp(stacks))

    @classmethod
    def stacked(cls, logs: Float[Tensor, "n k k"]) -> Tables:
        """Tables of the nodes 1 … n in one tensor of logarithms."""
        return cls((logs,), _in_order(logs), _sharp((logs,)))

    @classmethod
    def above_floor(cls, weights: Float[Tensor, "n k k"]) -> Tables:
        """Tables of the nodes 1 … n in one tensor of weights, none of which is below `smallest_sum`."""
        return cls((weights,), _in_order(weights), (False,), linear=True)

    @property
    def logs(self) -> tuple[Float[Tensor, "..."], ...]:
        """The stacks as logarithms."""
        return tuple(stack.log() for stack in self.stacks) if self.linear else self.stacks

    @property
    def weights(self) -> tuple[Float[Tensor, "..."], ...]:
        """The stacks as weights."""
        return self.stacks if self.linear else tuple(stack.exp() for stack in self.stacks)

    def log_table(self, node: int) -> Float[Tensor, "*batch k_parent k"]:
        """log p(z_v | z_parent) of one node."""
        table = self._table(node)
        return table.log() if self.linear else table

    def size(self, node: int) -> int:
        """The number of states of a node other than the root."""
        return self._table(node).shape[-1]

    def _table(self, node: int) -> Float[Tensor, "*batch k_parent k"]:
        place = self.places[node]
        assert place is not None, "the root has no table"
        stack, slot = place
        return self.stacks[stack][slot]

    @property
    def batch_shape(self) -> torch.Size:
        """The batch that tables broadcast to."""
        return broadcast(*[stack.shape[1:-2] for stack in self.stacks])

    def mapped(self, function: Callable[[Tensor], Tensor]) -> Tables:
        """The tables with `function` applied to all tensors."""
        stacks = tuple(function(stack) for stack in self.stacks)
        converted = any(new.dtype != old.dtype for new, old in zip(stacks, self.stacks, strict=True))
        if self.linear and converted and any(stack.itemsize < 4 for stack in stacks):
            # In half precision small weights are 0.
            return replace(self, stacks=self.logs, linear=False).mapped(function)
        sharp = _sharp(stacks) if converted and not self.linear else self.sharp
        return replace(self, stacks=stacks, sharp=sharp)

    def restricted(self, nodes: Sequence[int]) -> Tables:
        """The tables of some nodes, the root first, which are counted anew in the given order."""
        places = [place for place in (self.places[node] for node in nodes) if place is not None]
        used = sorted({stack for stack, _ in places})
        position = {old: new for new, old in enumerate(used)}
        moved = (None, *[(position[stack], slot) for stack, slot in places])
        stacks, sharp = tuple(self.stacks[i] for i in used), tuple(self.sharp[i] for i in used)
        return replace(self, stacks=stacks, places=moved, sharp=sharp)


def _in_order(stack: Float[Tensor, "n k k"]) -> tuple[Place | None, ...]:
    return (None, *[(0, i) for i in range(stack.shape[0])])


def _sharp(stacks: Sequence[Tensor]) -> tuple[bool, ...]:
    """Whether a stack has entries below `smallest_sum`; True if that is unknown."""
    traced = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    if traced or not stacks or any(stack.is_meta for stack in stacks):
        return (True,) * len(stacks)
    # Read once: on a GPU every reading waits for the device.
    lowest = torch.stack([stack.detach().amin().double() for stack in stacks]).tolist()
    bounds = [math.log(smallest_sum(stack.dtype)) for stack in stacks]
    # Not <, which is false for NaN.
    return tuple(not low > bound for low, bound in zip(lowest, bounds, strict=True))


@dataclass(frozen=True)
class MessageStep:
    """Messages that are computed together, one from each source to its target.

    Args:
        sources, targets: nodes, in pairs.
        stack, slots: the places of the edges' tables.
        downward: whether the sources are the parents: then tables are transposed.
        sharp: whether a table may have entries so small that sums of products underflow.
    """

    sources: tuple[int, ...]
    targets: tuple[int, ...]
    stack: int
    slots: tuple[int, ...]
    downward: bool
    sharp: bool


def schedule(
    parents: Sequence[int],
    tables: Tables,
    scored: Collection[int],
    to: int,
    *,
    together: bool,
    distinct: Mapping[int, int] | None = None,
) -> tuple[MessageStep, ...]:
    """The messages that node `to` needs, each after those that its source needs.

    A leaf without scores sends nothing to its parent: rows of probabilities sum to 1.

    Args:
        parents: the parent of every node; −1 for the root. Parents come before their children.
        scored: nodes that have scores; the root must be among them if `to` is another node.
        together: whether messages of equal shape that are ready at the same time are one step.
        distinct: the number of distinct rows of nodes with `Indexed` scores.
    """
    next_hop, distance = _directions(parents, to)
    farthest_first = [node for _, node in sorted([(-distance[node], node) for node in next_hop])]
    informed = set(scored)
    receiving: set[int] = set()
    groups: dict[tuple[int, int, bool, int, int], list[tuple[int, int, int]]] = {}
    for source in farthest_first:
        target = next_hop[source]
        downward = parents[target] == source
        if source not in informed and not downward:
            continue
        informed.add(target)
        place = tables.places[target if downward else source]
        assert place is not None, "the root has no table"
        stack, slot = place
        # A node that receives messages has scores of all rows.
        rows = 0 if source in receiving else (distinct or {}).get(source, 0)
        receiving.add(target)
        key = (distance[source], stack, downward, rows, 0 if together else source)
        groups.setdefault(key, []).append((source, target, slot))
    steps = []
    for (_, stack, downward, _, _), edges in groups.items():
        sources, targets, slots = zip(*edges, strict=True)
        steps.append(MessageStep(sources, targets, stack, slots, downward, tables.sharp[stack]))
    return tuple(steps)


def _directions(parents: Sequence[int], to: int) -> tuple[dict[int, int], list[int]]:
    """The next node on the way to `to`, for every other node; and the distance of every node from `to`."""
    next_hop, distance = {}, [0] * len(parents)
    node = to
    while parents[node] >= 0:
        next_hop[parents[node]] = node
        distance[parents[node]] = distance[node] + 1
        node = parents[node]
    above = {to, *next_hop}
    for child, parent in enumerate(parents):
        if child not in above:
            next_hop[child] = parent
            distance[child] = distance[parent] + 1
    return next_hop, distance
