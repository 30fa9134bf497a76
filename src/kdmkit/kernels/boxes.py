"""Boxes: those around blocks of components bound overlaps; masses of boxes under factors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.kernels.calculus.normal import anchored_log_mass
from kdmkit.kernels.location_scale import LocationScale
from kdmkit.ops.blocks import block_order

# Components whose boxes are computed at a time: their copies in float64 stay small.
_COMPONENTS = 1 << 20
# Half the width of the grid in standard deviations, by how much more it may cover, and its step times
# √(1 + τ²): the error of the trapezoidal rule for a function whose spectrum falls as exp(−ω²/(2(1 + τ²))) is
# exp(−(2π/.95)²/2) ≈ 3e-10.
_REACH, _MOVED, _STEP = 6.0, 3.0, 0.95
# Numbers that exist at once, and the largest number of nodes.
_PAIRS, _NODES = 1 << 20, 1 << 18


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


def box_log_mass(
    low: Float[Tensor, "n k"],
    high: Float[Tensor, "n k"],
    centre: Float[Tensor, "m k"],
    sigma: Float[Tensor, "m k"],
    factors: Float[Tensor, "m k r"],
) -> Float[Tensor, "n m"]:
    """log P(low ≤ x ≤ high) for x = c + (σ∘ε + F·η)/√2 with standard normal ε and η.

    Given η the coordinates are independent, so the mass is an integral over η of products of masses of
    intervals. The trapezoidal rule has about 13·√(1 + τ²) nodes in every direction, and 20·√(1 + τ²) far from
    c, where τ are the singular values of F/σ. Its error is below 1e-6.

    >>> one = torch.ones(1, 2, dtype=torch.float64)
    >>> low, high = torch.zeros_like(one), torch.full_like(one, torch.inf)
    >>> box_log_mass(low, high, 0 * one, one, one.unsqueeze(-1)).exp()  # a quarter plus asin(1/2)/(2π)
    tensor([[0.3333]], dtype=torch.float64)
    """
    nearest = torch.minimum(torch.maximum(centre, low.unsqueeze(1)), high.unsqueeze(1)) - centre
    with torch.no_grad():
        # Directions in which F/σ is diagonal.
        _, tau, turn = torch.linalg.svd(factors / sigma.unsqueeze(-1), full_matrices=False)
    turned = factors @ turn.mT
    # The grid is centred at the most likely factors of the point of the box that is nearest to c.
    weighted = (turned / sigma.square().unsqueeze(-1)).mT
    middle = (weighted @ nearest.unsqueeze(-1)).squeeze(-1) / (1 + tau.square())
    middle = (math.sqrt(2) * middle).detach()
    reach = _REACH + middle.abs().flatten(0, 1).amax(0).clamp_max(_MOVED)
    widths = (2 * reach * (1 + tau.square().amax(0)).sqrt() / _STEP).tolist()
    counts = [math.ceil(width) + 1 for width in widths]
    if math.prod(counts) > _NODES:
        wanted = f"a box whose quadrature needs at most {_NODES} nodes (fewer coordinates or factors)"
        raise ValueError(bad_argument("region", wanted, math.prod(counts)))
    steps = [2 * end / (count - 1) for end, count in zip(reach.tolist(), counts, strict=True)]
    size = max(1, _PAIRS // max(1, nearest.numel()))
    parts = []
    for eta in _grid(steps, counts, size):
        at = middle + eta.to(middle).view(-1, 1, 1, len(counts))
        moved = centre + (turned @ at.unsqueeze(-1)).squeeze(-1) * math.sqrt(0.5)
        masses = anchored_log_mass(low.unsqueeze(1), high.unsqueeze(1), moved, moved, sigma).sum(-1)
        density = -0.5 * (at.square() + math.log(2 * math.pi)).sum(-1)
        parts.append(torch.logsumexp(masses + density, 0))
    return (torch.logsumexp(torch.stack(parts), 0) + math.log(math.prod(steps))).clamp_max(0)


def _grid(steps: list[float], counts: list[int], size: int) -> Iterator[Float[Tensor, "p r"]]:
    """The nodes of a product of grids about 0, `size` at a time."""
    pairs = zip(steps, counts, strict=True)
    axes = [step * (torch.arange(n, dtype=torch.float64) - 0.5 * (n - 1)) for step, n in pairs]
    every = torch.cartesian_prod(*axes).view(-1, len(counts))
    yield from every.split(size)
