"""Lengths on the scale of a set of points, from which bandwidths start."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import check_choice

#: The lower bound of a bandwidth that was set from data, relative to its starting value.
BOUND = 0.01
#: Differences below this part of the values' size are rounding.
ROUNDING = 1e-12
# Distances are taken from about this many points, so many pairs at a time.
_SAMPLE = 2048
_PAIRS = 1 << 22


def typical_distance(points: Tensor, rule: str) -> float:
    """The distance of points `(n, *event)`: the median to the nearest neighbour, or the mean of all pairs.

    Coinciding points do not count; where all coincide the answer is 1.

    Args:
        rule: `"nearest"`, `"mean"`, or `"scott"`, which multiplies the mean by n^(−1/(d + 4)): the order of
            the best bandwidth of a smooth density.
        points: of which the distances are taken.

    Returns:
        A number > 0.

    >>> typical_distance(torch.tensor([[0.0], [1.0], [3.0]]), "nearest")
    1.0
    """
    check_choice("sigma", rule, ("nearest", "mean", "scott"))
    if rule == "scott":
        n, d = points.shape[0], points[0].numel()
        return typical_distance(points, "mean") * n ** (-1 / (d + 4))
    points = points.detach().double().flatten(1).cpu()
    some = points[:: max(1, points.shape[0] // _SAMPLE)]
    others = points if rule == "nearest" else some
    coincide = ROUNDING * float(points.abs().max())
    lengths = []
    for block in some.split(max(1, _PAIRS // others.shape[0])):
        # The product form would put coinciding points 1e-7 apart.
        distances = torch.cdist(block, others, compute_mode="donot_use_mm_for_euclid_dist")
        apart = distances > coincide
        lengths.append(
            distances[apart] if rule == "mean" else torch.where(apart, distances, torch.inf).amin(1)
        )
    length = torch.cat(lengths)
    length = length[torch.isfinite(length)]
    if not len(length):
        return 1.0
    return float(length.mean() if rule == "mean" else length.median())


def relative_spread(x: Float[Tensor, "n d"]) -> Float[Tensor, " d"]:
    """Standard deviations relative to their root mean square, with 1 for constant columns."""
    spread = x.std(0, unbiased=False)
    varies = spread > ROUNDING * x.abs().amax(0)
    if not bool(varies.any()):
        return torch.ones_like(spread)
    return torch.where(varies, spread / spread[varies].square().mean().sqrt(), torch.ones_like(spread))
