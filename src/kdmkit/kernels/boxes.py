"""Boxes around blocks of components, and upper bounds of the overlap with their components."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit.kernels.location_scale import LocationScale
from kdmkit.ops.blocks import block_order

# Components whose boxes are computed at a time: their copies in float64 stay small.
_COMPONENTS = 1 << 20


@dataclass(frozen=True)
class Boxes:
    """The box of every block of consecutive components, in the coordinates of `LocationScale.whiten`.

    Args:
        kernel: the kernel in these coordinates.
        low, high: the smallest and largest coordinates.
        scale: the largest bandwidths of a block, or `(1, d)` if all components share them.
    """

    kernel: LocationScale
    low: Float[Tensor, "b d"]
    high: Float[Tensor, "b d"]
    scale: Float[Tensor, "#b d"]

    @classmethod
    def of(cls, kernel: LocationScale, components: Float[Tensor, "m d"], size: int) -> Boxes:
        """Boxes of `size` components each, but for the last one."""
        low, high, scale = [], [], []
        step, whitened = max(1, _COMPONENTS // size) * size, kernel.whitened()
        shared = whitened.scale(components.new_empty(0, dtype=torch.float64))
        for part in torch.arange(len(components), device=components.device).split(step):
            points = kernel.whiten(components[part].double())
            low.append(_ends(points, size).amin(1))
            high.append(_ends(points, size).amax(1))
            if kernel.per_component:
                scale.append(_ends(shared[part].expand_as(points), size).amax(1))
        widest = torch.cat(scale) if scale else shared.expand(1, components.shape[1])
        return cls(whitened, torch.cat(low), torch.cat(high), widest)

    def largest_log_overlap(
        self, low: Float[Tensor, "n d"], high: Float[Tensor, "n d"], blocks: Int[Tensor, " b"] | slice
    ) -> Float[Tensor, "n b"]:
        """An upper bound of 2·log|k(x, c)| for all x between `low` and `high` and all c of some blocks.

        It is the overlap at the distance of the boxes: overlaps fall with the distance in any dimension.
        """
        scale = self.scale[blocks] if len(self.scale) > 1 else self.scale
        total: Tensor | float = 0.0
        for i in range(low.shape[1]):
            before, after = self.low[blocks, i] - high[:, i, None], low[:, i, None] - self.high[blocks, i]
            gap = torch.maximum(before, after).clamp_min_(0).div_(scale[:, i])
            total = self.kernel.unit_log_overlap(gap) + total
        return torch.as_tensor(total)


def _ends(points: Float[Tensor, "n d"], size: int) -> Float[Tensor, "b size d"]:
    """The points of every block; the last one is filled up by repetitions of its last point."""
    missing = -len(points) % size
    return torch.cat([points, points[-1:].expand(missing, -1)]).view(-1, size, points.shape[1])


def order_in_blocks(kernel: LocationScale, components: Float[Tensor, "m d"], size: int) -> Int[Tensor, " m"]:
    """An order in which blocks of components are compact, in units of the bandwidth.

    If components have different bandwidths, those of a block have similar ones.
    """
    points = kernel.whiten(components)
    scale = kernel.whitened().scale(components)
    if not kernel.per_component:
        return block_order(points / scale, size)
    logs = scale.log()
    typical = logs.mean(0).exp()
    return block_order(torch.cat([points / typical, logs.mean(-1, keepdim=True)], -1), size)
