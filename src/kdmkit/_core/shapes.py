"""Shapes of batches."""

from collections.abc import Sequence

import torch


def broadcast(*shapes: Sequence[int]) -> torch.Size:
    """`torch.broadcast_shapes`, at once where every shape is an end of the longest one, as nearly always.

    >>> broadcast((), (3,), (2, 3)), broadcast((2, 1), (3,))
    (torch.Size([2, 3]), torch.Size([2, 3]))
    """
    longest: tuple[int, ...] = ()
    for shape in shapes:
        if len(shape) > len(longest):
            longest = tuple(shape)
    for shape in shapes:
        if len(shape) and longest[len(longest) - len(shape) :] != tuple(shape):
            return torch.broadcast_shapes(*shapes)
    return torch.Size(longest)
