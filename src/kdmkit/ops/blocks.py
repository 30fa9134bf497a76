"""Loops over blocks that shrink when memory runs out, and over the elements of a batch."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
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


def vmap_one_by_one(
    function: Callable[..., Sequence[Tensor]],
    size: int,
    in_dims: Sequence[int | None],
    inputs: Sequence[Any],
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """A rule for `vmap` with bounded memory: applies the function to one element of the batch at a time."""
    results = [
        function(*(x if dim is None else x.select(dim, b) for x, dim in zip(inputs, in_dims, strict=True)))
        for b in range(size)
    ]
    outputs = tuple(torch.stack(parts) for parts in zip(*results, strict=True))
    return outputs, tuple(0 for _ in outputs)
