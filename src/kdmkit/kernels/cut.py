"""Densities that are cut off outside of an interval."""

from __future__ import annotations

import torch
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.kernels.base import Kernel
from kdmkit.kernels.inflated import Inflated
from kdmkit.kernels.location_scale import LocationScale
from kdmkit.kernels.regions import Interval
from kdmkit.kernels.rounded import Rounded
from kdmkit.kernels.transformed import Transformed
from kdmkit.kernels.truncated import Truncated

# The logarithm of a share that counts as none.
_NOTHING = -1e4


def cut(kernel: Kernel, region: Interval, components: Tensor) -> tuple[Kernel, Tensor]:
    """The kernel and the components of f_j(x)/P_j(low ≤ x ≤ high), x between low and high.

    The weights of a mixture change with it: each is multiplied by the component's mass in the interval.

    Args:
        kernel: of one dimension: a continuous one, also `Truncated`, `Transformed`, `Rounded`, `Inflated`.
        region: one interval, wider than a point.
        components: c, of shape `(m, *component)`.

    Returns:
        The kernel that is cut off, and its components.

    >>> from kdmkit.kernels import RBF
    >>> kernel, c = cut(RBF(1.0), Interval(0.0, None), torch.zeros(1, 1))
    >>> kernel.mean(c)
    tensor([[0.5642]])
    """
    low, high = (end.double().reshape(()) for end in (region.low, region.high))
    if isinstance(kernel, LocationScale):
        return Truncated(kernel, float(low), float(high)), components
    if isinstance(kernel, Truncated):
        ends = max(float(low), float(kernel.low)), min(float(high), float(kernel.high))
        return Truncated(kernel.kernel, *ends), components
    if isinstance(kernel, Transformed):
        inner, _ = cut(kernel.kernel, Interval(*kernel.inner_ends(low, high)), components)
        return Transformed(inner, kernel.change), components
    if isinstance(kernel, Rounded):
        inner, _ = cut(kernel.kernel, Interval(*kernel.cells(Interval(low, high))), components)
        return kernel.around(inner), components
    if isinstance(kernel, Inflated):
        return _cut_inflated(kernel, Interval(low, high), components)
    raise TypeError(bad_argument("kernel", "one of numbers, whose density can be cut off", repr(kernel)))


def can_cut(kernel: Kernel) -> bool:
    """Whether `cut` knows the kernel.

    Args:
        kernel: any kernel.

    Returns:
        False where `cut` would raise.

    >>> import kdmkit as kdm
    >>> can_cut(kdm.RBF(1.0)), can_cut(kdm.Levels(3))
    (True, False)
    """
    return isinstance(kernel, LocationScale | Truncated | Transformed | Rounded | Inflated)


def _cut_inflated(kernel: Inflated, region: Interval, components: Tensor) -> tuple[Kernel, Tensor]:
    """Atoms inside keep their probabilities, the continuous part its mass; both relative to their sum."""
    log_p, inner = kernel.split(components)
    rest, inner = cut(kernel.kernel, region, inner)
    held = (kernel.atoms >= region.low) & (kernel.atoms <= region.high)
    if not bool(held.any()):
        return rest, inner
    mass = log_p[..., :1] + kernel.kernel.log_mass(region, kernel.split(components)[1]).unsqueeze(-1)
    shares = torch.cat([mass.to(log_p), log_p[..., 1:][..., held.to(log_p.device)]], -1)
    shares = shares - torch.logsumexp(shares, -1, keepdim=True).nan_to_num(neginf=0.0)
    logits = shares.clamp_min(_NOTHING).to(inner)
    return Inflated(rest, kernel.atoms[held].tolist()), torch.cat([logits, inner], -1)
