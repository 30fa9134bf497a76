"""tr ρσ of two kernel density matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit._core.logspace import safe_logsumexp
from kdmkit.distributions.arguments import common_batch
from kdmkit.distributions.mixing import Entry
from kdmkit.kernels import Kernel

if TYPE_CHECKING:
    from kdmkit.distributions.base import Mixture


def overlap(rho: Mixture, other: Mixture) -> Float[Tensor, "*batch"]:
    """Σ_ij p_i q_j Π_v k_v²(c_vi, d_vj), one mixture's components as points of the other's projection."""
    ours, theirs = rho._variables(), other._variables()
    if list(ours) != list(theirs):
        raise ValueError(bad_argument("other", f"the variables {list(ours)}", list(theirs)))
    entries = []
    for name, (kernel, components) in ours.items():
        other_kernel, other_components = theirs[name]
        check_same_kernel(kernel, other_kernel)
        check_same_events(kernel, components, other_components)
        m_dim = other_components.ndim - kernel.component_dim - 1
        points = other_components.movedim(m_dim, 0)
        # The dimension of the points comes in front of the batch.
        missing = max(len(rho.batch_shape), m_dim) - m_dim
        points = points.reshape(points.shape[0], *([1] * missing), *points.shape[1:])
        entries.append(Entry(kernel, points, components, "overlap"))
    common_batch({"batch_shape": rho.batch_shape, "other": other.batch_shape})
    log_f = rho._weights.log_mix(entries)
    return safe_logsumexp(log_f.movedim(0, -1) + other.log_weights).exp()


def check_same_kernel(kernel: Kernel, other: Kernel) -> None:
    """Raises unless components are states of one space, whose inner products the kernel gives."""
    if not kernel.components_are_events:
        raise TypeError(bad_argument("kernel", "one whose components are events", repr(kernel)))
    if kernel.per_component or other.per_component:
        raise ValueError(bad_argument("kernel", "one bandwidth for all components", "one per component"))
    if other is not kernel and not same_kernel(kernel, other):
        raise ValueError(bad_argument("other", f"a KDM with the kernel {kernel}", other))


def check_same_events(kernel: Kernel, components: Tensor, other: Tensor) -> None:
    """Raises unless components of two distributions have one shape."""
    shape, other_shape = (part.shape[part.ndim - kernel.component_dim :] for part in (components, other))
    if other_shape != shape:
        wanted = f"a KDM over events of shape {tuple(shape)}"
        raise ValueError(bad_argument("other", wanted, tuple(other_shape)))


def same_kernel(a: Kernel, b: Kernel) -> bool:
    """Whether two kernels are densities of the same form with the same parameters."""
    return type(a) is type(b) and a.has_density and a.config() == b.config()
