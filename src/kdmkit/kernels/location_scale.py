"""Continuous kernels of the form k²(x, c) = Π_i g((x_i − c_i)/s_i)."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit._core.precision import compute_dtype
from kdmkit._core.shapes import pick
from kdmkit.kernels.bandwidth import Bandwidth
from kdmkit.kernels.base import Kernel
from kdmkit.ops import Score, Term


class LocationScale(Kernel, ABC):
    """A product over dimensions of one bump function, moved to c and stretched by a bandwidth.

    Leaves say what the bump is in the unit variable u = (x − c)/s; densities, draws and distribution
    functions follow.
    """

    discrete: ClassVar[bool] = False
    bandwidth: Bandwidth

    #: log of 1/∫ g(u) du.
    unit_log_norm: ClassVar[float]
    #: The variance of the density of u.
    unit_variance: ClassVar[float]
    #: The density of u is zero beyond this distance.
    unit_radius: ClassVar[float]

    @abstractmethod
    def unit_log_overlap(self, u: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """log g(u)."""

    @abstractmethod
    def unit_cdf(self, u: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """The distribution function of u."""

    @abstractmethod
    def unit_draw(self, like: Tensor, generator: torch.Generator | None) -> Tensor:
        """Independent draws of u, of the shape, dtype and device of `like`."""

    def unit_quantile_bound(self, q: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """A distance from the centre beyond which less than min(q, 1 − q) of the mass of u lies."""
        return torch.full_like(q, self.unit_radius)

    @property
    def overlaps_everywhere(self) -> bool:
        return math.isinf(self.unit_radius)

    @property
    def per_component(self) -> bool:
        return self.bandwidth.per_component

    @property
    def batch_shape(self) -> torch.Size:
        return self.bandwidth.shape[:-2]

    def scale(self, like: Tensor) -> Tensor:
        """The bandwidth in the dtype and on the device of `like`."""
        return self.bandwidth.value.to(like)

    def score_scale(self, components: Tensor) -> Tensor:
        """The bandwidth for scores: components may be stored in half precision, a bandwidth must not be."""
        return self.bandwidth.value.to(components.device, compute_dtype(components.dtype))

    def scale_of(self, index: Tensor, like: Tensor) -> Tensor:
        """The bandwidth that belongs to each chosen component."""
        scale = self.scale(like)
        return pick(scale, index, 1) if self.per_component else scale

    def log_overlap(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead"]:
        return self.unit_log_overlap((x - components) / self.scale(components)).sum(-1)

    def term(self, x: Tensor, components: Tensor) -> Term:
        self._check_dimensions(components.shape[-1])
        return Score(self._block, x, components, (self.score_scale(components),))

    def _block(self, x: Tensor, components: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        """Dimension after dimension: the differences of all pairs never exist at once."""
        (scale,) = parameters
        d = components.shape[-1]
        scale = scale.expand(d)
        total = None
        for i in range(d):
            u = (x[..., :, None, i] - components[..., None, :, i]) / scale[i]
            part = self.unit_log_overlap(u)
            total = part if total is None else total + part
        assert total is not None
        return total

    def log_norm(self, event_shape: torch.Size) -> Tensor:
        d = self._check_dimensions(event_shape[-1])
        logs = self.bandwidth.value.log()
        if logs.ndim == 0 or logs.shape[-1] != d:
            logs = logs.unsqueeze(-1) if logs.ndim == 0 else logs
            logs = logs.expand(*logs.shape[:-1], d)
        return d * self.unit_log_norm - logs.sum(-1)

    def _check_dimensions(self, d: int) -> int:
        shape = self.bandwidth.shape
        if len(shape) and shape[-1] not in (1, d):
            wanted = f"a scalar, ({d},), (m, 1) or (m, {d}) for events of shape ({d},)"
            raise ValueError(bad_argument(self.bandwidth.name, wanted, f"shape {tuple(shape)}"))
        return d

    def variance(self, components: Tensor) -> Float[Tensor, "*batch d"]:
        return (self.unit_variance * self.scale(components).square()).expand_as(components)

    def sample(
        self, components: Tensor, index: Int[Tensor, "*lead"], generator: torch.Generator | None = None
    ) -> Tensor:
        return components + self.scale_of(index, components) * self.unit_draw(components, generator)

    def extra_repr(self) -> str:
        shape, name = self.bandwidth.shape, self.bandwidth.name
        return f"{name} of shape {tuple(shape)}" if shape else f"{name}={self.bandwidth.value.item():.4g}"

    def whiten(self, x: Tensor) -> Tensor:
        """Coordinates in which the kernel is a product over dimensions."""
        return x

    def unwhiten(self, u: Tensor) -> Tensor:
        """The inverse of `whiten`."""
        return u

    def whitened(self) -> "LocationScale":
        """The kernel in whitened coordinates."""
        return self


def log_one_minus(v: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """log(1 − v) for 0 ≤ v < 1, and −∞ with no gradient from 1 on."""
    inside = v < 1
    return torch.where(inside, torch.log1p(-torch.where(inside, v, torch.zeros_like(v))), -math.inf)
