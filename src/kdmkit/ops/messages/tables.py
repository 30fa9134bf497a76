"""Conditional probabilities of the edges of a tree, as logarithms in stacks of equal shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

#: Where the tables of an edge lie: which stack, and which table of it.
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
        logs: stacks of tables, each `(n, *batch, k_parent, k_v)`; rows are logarithms of weights that sum
            to 1.
        places: by node, where its table lies; None for the root.
        sharp: by stack, whether an entry may be below `smallest_sum`. False promises that none is.
    """

    logs: tuple[Float[Tensor, "..."], ...]
    places: tuple[Place | None, ...]
    sharp: tuple[bool, ...]

    @classmethod
    def of(cls, logs: Sequence[Float[Tensor, "..."]]) -> Tables:
        """Tables of the nodes 1, 2, …, one by one; node 0 is the root."""
        places = (None, *((i, 0) for i in range(len(logs))))
        stacks = tuple(table.unsqueeze(0) for table in logs)
        return cls(stacks, places, _sharp(stacks))

    @classmethod
    def stacked(cls, logs: Float[Tensor, "n k k"], *, above_floor: bool = False) -> Tables:
        """Tables of the nodes 1 … n in one tensor.

        Args:
            above_floor: whether every entry is known to be above `smallest_sum`; otherwise it is found out,
                which on a GPU waits for the device.
        """
        places = (None, *((0, i) for i in range(logs.shape[0])))
        return cls((logs,), places, (False,) if above_floor else _sharp((logs,)))

    def log_table(self, node: int) -> Float[Tensor, "*batch k_parent k"]:
        """log p(z_v | z_parent) of one node."""
        place = self.places[node]
        assert place is not None, "the root has no table"
        stack, slot = place
        return self.logs[stack][slot]

    @cached_property
    def probs(self) -> tuple[Float[Tensor, "..."], ...]:
        """p(z_v | z_parent) of every stack, for messages without gradients."""
        with torch.no_grad():
            return tuple(stack.exp() for stack in self.logs)

    @property
    def batch_shape(self) -> torch.Size:
        """The batch that tables broadcast to."""
        return torch.broadcast_shapes(*(stack.shape[1:-2] for stack in self.logs))

    def mapped(self, function: Callable[[Tensor], Tensor]) -> Tables:
        """The tables made of `function`'s values of all tensors."""
        logs = tuple(function(stack) for stack in self.logs)
        narrower = any(new.dtype != old.dtype for new, old in zip(logs, self.logs, strict=True))
        return replace(self, logs=logs, sharp=_sharp(logs) if narrower else self.sharp)

    def restricted(self, nodes: Sequence[int]) -> Tables:
        """The tables of some nodes, the root first, which are counted anew in the given order."""
        places = [place for place in (self.places[node] for node in nodes) if place is not None]
        used = sorted({stack for stack, _ in places})
        position = {old: new for new, old in enumerate(used)}
        moved = (None, *((position[stack], slot) for stack, slot in places))
        return Tables(tuple(self.logs[i] for i in used), moved, tuple(self.sharp[i] for i in used))

    def __getstate__(self) -> dict[str, object]:
        """For copies and pickle: without what is computed from the logarithms."""
        return {name: part for name, part in vars(self).items() if name != "probs"}


def _sharp(stacks: Sequence[Tensor]) -> tuple[bool, ...]:
    """Whether a stack has entries below `smallest_sum`; True where that is unknown."""
    traced = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    if traced or not stacks or any(stack.is_meta for stack in stacks):
        return (True,) * len(stacks)
    # Read once: on a GPU every reading waits for the device.
    lowest = torch.stack([stack.detach().amin().double() for stack in stacks]).tolist()
    bounds = [math.log(smallest_sum(stack.dtype)) for stack in stacks]
    # Not <, which is false for NaN.
    return tuple(not low > bound for low, bound in zip(lowest, bounds, strict=True))
