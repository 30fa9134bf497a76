"""An order of points in which every block of consecutive ones is near together."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

# The number of parts of a group along its widest dimension.
_PARTS = 8


def block_order(points: Float[Tensor, "m d"], size: int) -> Int[Tensor, " m"]:
    """Numbers of the points in an order whose blocks `[i·size, (i + 1)·size)` are compact.

    All points are sorted along the dimension in which they vary most and cut into eight parts, each part
    along its own widest dimension, and so on down to blocks: the leaves of a k-d tree.

    >>> block_order(torch.tensor([[5.0], [1.0], [6.0], [2.0]]), 2)
    tensor([1, 3, 0, 2])
    """
    m = len(points)
    order = torch.arange(m, device=points.device)
    width = size
    while width < m:
        width *= _PARTS
    while width > size:
        # The last group may have fewer points than the others.
        full = m - m % width
        order = torch.cat([_sorted(points, order[:full], width), _sorted(points, order[full:], m - full)])
        width //= _PARTS
    return order


def _sorted(points: Tensor, order: Int[Tensor, " n"], width: int) -> Int[Tensor, " n"]:
    """The order of points with each group of `width` sorted along its widest dimension."""
    if not len(order):
        return order
    groups = points[order].view(-1, width, points.shape[1])
    # Not the variance, whose squares may overflow.
    widest = (groups - groups.mean(1, keepdim=True)).abs().mean(1).argmax(-1)
    keys = groups.gather(2, widest.view(-1, 1, 1).expand(-1, width, 1)).squeeze(2)
    return order.view(-1, width).gather(1, keys.argsort(1)).flatten()
