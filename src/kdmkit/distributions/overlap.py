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
    from kdmkit.distributions.kdm import KDM


def overlap(rho: KDM, other: KDM) -> Float[Tensor, "*batch"]:
    """Σ_ij p_i q_j k²(c_i, d_j), one KDM's components as points of the other's projection."""
    _check_comparable(rho, other)
    m_dim = other.components.ndim - other.kernel.component_dim - 1
    points = other.components.movedim(m_dim, 0)
    # The dimension of the points comes in front of the batch.
    missing = max(len(rho.batch_shape), m_dim) - m_dim
    points = points.reshape(points.shape[0], *([1] * missing), *points.shape[1:])
    log_f = rho._weights.log_mix([Entry(rho.kernel, points, rho.components, "overlap")])
    return safe_logsumexp(log_f.movedim(0, -1) + other.log_weights).exp()


def _check_comparable(rho: KDM, other: KDM) -> None:
    if not rho.kernel.components_are_events:
        raise TypeError(bad_argument("kernel", "one whose components are events", repr(rho.kernel)))
    if rho.kernel.per_component or other.kernel.per_component:
        raise ValueError(bad_argument("kernel", "one bandwidth for all components", "one per component"))
    if other.kernel is not rho.kernel and not _same_kernel(rho.kernel, other.kernel):
        raise ValueError(bad_argument("other", f"a KDM with the kernel {rho.kernel}", other.kernel))
    if other.event_shape != rho.event_shape:
        wanted = f"a KDM over events of shape {tuple(rho.event_shape)}"
        raise ValueError(bad_argument("other", wanted, tuple(other.event_shape)))
    common_batch({"batch_shape": rho.batch_shape, "other": other.batch_shape})


def _same_kernel(a: Kernel, b: Kernel) -> bool:
    return type(a) is type(b) and a.has_density and a.config() == b.config()
