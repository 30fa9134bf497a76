"""Shapes of batches."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor


def broadcast(*shapes: Sequence[int]) -> torch.Size:
    """`torch.broadcast_shapes`, faster in the usual case that every shape is an end of the longest one.

    >>> broadcast((), (3,), (2, 3)), broadcast((2, 1), (3,))
    (torch.Size([2, 3]), torch.Size([2, 3]))
    """
    given = [tuple(shape) for shape in shapes if len(shape)]
    # A loop: the compiler cannot trace `max(given, key=len)`.
    longest: tuple[int, ...] = ()
    for shape in given:
        longest = shape if len(shape) > len(longest) else longest
    for shape in given:
        if longest[len(longest) - len(shape) :] != shape:
            return torch.broadcast_shapes(*shapes)
    return torch.Size(longest)


def pick(components: Tensor, index: Int[Tensor, "*n_batch"], event_dim: int) -> Tensor:
    """The chosen components: `(n, *batch, *event)` from shared `(m, *event)` or batched ones."""
    m_dim = components.ndim - event_dim - 1
    if m_dim == 0:
        return components[index]
    event = components.shape[m_dim + 1 :]
    batch = index.shape[1:]
    expanded = components.expand(*batch, *components.shape[m_dim:])
    place = index.movedim(0, -1).reshape(*batch, -1, *([1] * event_dim)).expand(*batch, -1, *event)
    return expanded.gather(len(batch), place).movedim(len(batch), 0)
