"""Blocks: slices of rows, blocks that shrink when memory runs out, and an order with compact blocks."""

import math
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

T = TypeVar("T")
Block = tuple[int, int]


def slices(length: int, step: int) -> Iterator[slice]:
    """Consecutive slices of at most `step` elements.

    >>> list(slices(5, 3))
    [slice(0, 3, None), slice(3, 5, None)]
    """
    return (slice(start, min(start + step, length)) for start in range(0, length, step))


def halved(block: Block) -> Block:
    """Half of the larger side.

    >>> halved((3, 8)), halved((1, 1))
    ((3, 4), (1, 1))
    """
    rows, columns = block
    return (rows, max(1, columns // 2)) if columns >= rows else (rows // 2, columns)


def run_in_memory(block: Block, run: Callable[[Block], T]) -> tuple[T, Block]:
    """`run(block)` and its block: the given one, halved each time that the device runs out of memory."""
    while True:
        try:
            return run(block), block
        except torch.OutOfMemoryError:
            if block == halved(block):
                raise
        # Here and not in the handler: the exception keeps the tensors of the failed attempt alive.
        block = halved(block)


def block_order(points: Float[Tensor, "m d"], size: int, *, parts: int = 8) -> Int[Tensor, " m"]:
    """Numbers of the points in an order whose blocks `[i·size, (i + 1)·size)` are compact.

    All points are sorted along the dimension in which they vary most and cut into parts. Each part is sorted
    along the dimension in which it varies most, and so on down to blocks: the leaves of a k-d tree.

    Args:
        size: the number of points of a block.
        parts: about the number of parts of a group. Few parts are slower, and better if columns have few
            distinct values.

    >>> block_order(torch.tensor([[5.0], [1.0], [6.0], [2.0]]), 2)
    tensor([1, 3, 0, 2])
    """
    m = len(points)
    order = torch.arange(m, device=points.device)
    blocks = max(1, math.ceil(m / size))
    levels = max(1, round(math.log(blocks, parts)))
    parts_of_level = math.ceil(blocks ** (1 / levels))
    for level in range(levels, 0, -1):
        width = size * parts_of_level**level
        # The last group may have fewer points than the others.
        full = m - m % width
        moved = torch.cat([_sorted(points[:full], 0, width), _sorted(points[full:], full, m - full)])
        points, order = points[moved], order[moved]
    return order


def _sorted(points: Float[Tensor, "n d"], first: int, width: int) -> Int[Tensor, " n"]:
    """Numbers of the points, from `first` on, each group of `width` sorted along its widest dimension."""
    if not len(points):
        return torch.empty(0, dtype=torch.long, device=points.device)
    groups = points.view(-1, width, points.shape[1])
    # Not the variance, whose squares may overflow.
    widest = (groups - groups.mean(1, keepdim=True)).abs().mean(1).argmax(-1)
    keys = groups.gather(2, widest.view(-1, 1, 1).expand(-1, width, 1)).squeeze(2)
    starts = first + width * torch.arange(len(groups), device=points.device)
    return (keys.argsort(1) + starts.unsqueeze(1)).flatten()
