"""Expected absolute distances of one-dimensional components: what a mixture's CRPS is made of."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.kernels import RBF, LocationScale

# Exact for polynomials of degree 39; the product of two Tricube distribution functions has degree 38.
_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(20)


def distance_to(
    kernel: LocationScale, gap: Float[Tensor, "*shape"], scale: Tensor
) -> Float[Tensor, "*shape"]:
    """E|s·u − gap|, where u is the kernel's unit variable."""
    if isinstance(kernel, RBF):
        return _gaussian(gap, scale * math.sqrt(0.5))
    _check_compact(kernel)
    z = (gap / scale).abs()
    # E|u − z| = z + 2·E(u − z)₊, and by symmetry E(u − z)₊ = ∫_{−1}^{−z} G(t) dt.
    edge = -z.clamp_max(1)
    return gap.abs() + 2 * scale * _integral(kernel.unit_cdf, -torch.ones_like(edge), edge)


def distance_between(
    kernel: LocationScale, gap: Float[Tensor, "*shape"], scale: Tensor, other: Tensor
) -> Float[Tensor, "*shape"]:
    """E|gap + s·u − s'·u'|, where u and u' are independent; compact kernels have one scale, s = s'."""
    if isinstance(kernel, RBF):
        return _gaussian(gap, torch.hypot(scale, other) * math.sqrt(0.5))
    _check_compact(kernel)
    z = (gap / scale).abs().clamp_max(2)

    # E(u − u' − z)₊ = ∫ G(t)·G(−t − z) dt over [−1, 1 − z], symmetric about −z/2: twice the upper half,
    # cut at 0 where the polynomial changes.
    def product(t: Tensor) -> Tensor:
        return kernel.unit_cdf(t) * kernel.unit_cdf(-t - z.unsqueeze(-1))

    cut = (1 - z).clamp_max(0)
    half = _integral(product, -z / 2, cut) + _integral(product, cut, 1 - z)
    return gap.abs() + 4 * scale * half


def values_per_pair(kernel: LocationScale) -> int:
    """How many numbers exist at once for the distance of one pair."""
    return 1 if isinstance(kernel, RBF) else len(_POINTS)


def _gaussian(gap: Float[Tensor, "*shape"], std: Tensor) -> Float[Tensor, "*shape"]:
    """E|N(gap, std²)| = 2·std·φ(z) + gap·(2Φ(z) − 1) with z = gap/std."""
    z = gap / std
    return std * math.sqrt(2 / math.pi) * (-0.5 * z.square()).exp() + gap * torch.erf(z * math.sqrt(0.5))


def _integral(
    function: Callable[[Tensor], Tensor], low: Float[Tensor, "*shape"], high: Float[Tensor, "*shape"]
) -> Float[Tensor, "*shape"]:
    """∫ function from `low` to `high`, both of the same shape."""
    points = torch.as_tensor(_POINTS, dtype=low.dtype, device=low.device)
    weights = torch.as_tensor(_WEIGHTS, dtype=low.dtype, device=low.device)
    half = 0.5 * (high - low)
    t = low.unsqueeze(-1) + half.unsqueeze(-1) * (1 + points)
    return half * (function(t) * weights).sum(-1)


def _check_compact(kernel: LocationScale) -> None:
    if kernel.unit_radius != 1 or kernel.per_component:
        raise TypeError(bad_argument("rho", "one of the kernels RBF, Epanechnikov, Tricube", repr(kernel)))
