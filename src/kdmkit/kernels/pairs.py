"""Masses of pairs: every interval has one component."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from kdmkit.kernels.base import Kernel
from kdmkit.kernels.location_scale import LocationScale
from kdmkit.kernels.transformed import Transformed
from kdmkit.kernels.truncated import Truncated


def pair_masses(
    kernel: Kernel, low: Float[Tensor, "*lead d"], high: Float[Tensor, "*lead d"], components: Tensor
) -> Float[Tensor, "*both"]:
    """The log mass of [low, high] under the component beside it; leading dimensions broadcast."""
    if isinstance(kernel, Transformed):
        low, high = kernel.inner_ends(low, high)
        return pair_masses(kernel.kernel, low, high, components)
    if isinstance(kernel, Truncated):
        return kernel.interval_log_mass(low, high, components)
    assert isinstance(kernel, LocationScale)
    return kernel.interval_log_mass(low, high, components, kernel.score_scale(components)).sum(-1)
