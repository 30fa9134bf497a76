"""Continuous kernels of the form k²(x, c) = Π_i g((x_i − c_i)/s_i)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit._core.tensors import broadcast, compute_dtype, pick
from kdmkit.kernels.bandwidth import relative_spread
from kdmkit.kernels.base import Kernel
from kdmkit.kernels.calculus.integrals import sum_last
from kdmkit.kernels.continuous import Continuous
from kdmkit.ops import Score, Term
from kdmkit.ops.terms import BlockScore


class LocationScale(Continuous, ABC):
    """A product over dimensions of one bump function g, moved to c and stretched by a bandwidth s.

    A subclass defines the bump in the unit variable u = (x − c)/s. Densities, draws and distribution
    functions follow from it.

    >>> import kdmkit as kdm
    >>> [isinstance(kernel, LocationScale) for kernel in (kdm.Tricube(1.0), kdm.Levels(3))]
    [True, False]
    """

    has_rsample: ClassVar[bool] = True
    is_product: ClassVar[bool] = True

    #: log of 1/∫ g(u) du.
    unit_log_norm: ClassVar[float]
    #: The variance of the density of u.
    unit_variance: ClassVar[float]
    #: The density of u is zero beyond this distance.
    unit_radius: ClassVar[float]
    #: The number of values that exist at once for one expected distance.
    values_per_distance: ClassVar[int]

    @abstractmethod
    def unit_log_overlap(self, u: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """log g(u)."""

    @abstractmethod
    def unit_cdf(self, u: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """The distribution function of u."""

    @abstractmethod
    def interval_log_mass(
        self,
        low: Float[Tensor, "*#shape"],
        high: Float[Tensor, "*#shape"],
        centre: Float[Tensor, "*#shape"],
        scale: Float[Tensor, "*#shape"],
    ) -> Float[Tensor, "*shape"]:
        """The log mass of [low, high] in one dimension, precise in the tails; the ends may be infinite."""

    def anchored_log_overlap(self, x: Tensor, anchor: Tensor, centre: Tensor, scale: Tensor) -> Tensor:
        """log g((x − c)/s) in one dimension; if g is positive everywhere, minus its value at the anchor.

        The difference has all its digits for an x near the anchor, however far both are from the centre.
        """
        return self.unit_log_overlap((x - centre) / scale)

    def anchored_log_mass(
        self, low: Tensor, high: Tensor, anchor: Tensor, centre: Tensor, scale: Tensor
    ) -> Tensor:
        """`interval_log_mass`, minus the value at the anchor as in `anchored_log_overlap`."""
        return self.interval_log_mass(low, high, centre, scale)

    @abstractmethod
    def unit_draw(self, like: Tensor, generator: torch.Generator | None) -> Tensor:
        """Independent draws of u, of the shape, dtype and device of `like`."""

    @abstractmethod
    def distance_to_point(self, gap: Float[Tensor, "*shape"], scale: Tensor) -> Float[Tensor, "*shape"]:
        """E|s·u − gap|."""

    @abstractmethod
    def distance_between(
        self, gap: Float[Tensor, "*shape"], scale: Tensor, other: Tensor
    ) -> Float[Tensor, "*shape"]:
        """E|gap + s·u − s'·u'| for independent u and u'."""

    def unit_quantile_bound(self, q: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """A distance from the centre beyond which less than min(q, 1 − q) of the mass of u lies."""
        return torch.full_like(q, self.unit_radius)

    # ---- bandwidth

    @property
    def overlaps_everywhere(self) -> bool:
        return math.isinf(self.unit_radius)

    @property
    def per_component(self) -> bool:
        return self.bandwidth.per_component

    @property
    def envelope(self) -> LocationScale:
        return self

    def relative_widths(self, components: Tensor) -> Tensor:
        """Proportional to the spread of each dimension, if dimensions have different bandwidths."""
        ones = super().relative_widths(components)
        if not ones.ndim or ones.shape[-1] == 1:
            return ones
        return ones * relative_spread(components.detach().double()).to(ones)

    def scaled(self, factor: Any) -> LocationScale:
        return self.with_bandwidth(self.bandwidth.scaled(factor))

    def coordinates(self, index: Sequence[int]) -> LocationScale:
        return self.with_bandwidth(self.bandwidth.coordinates(index))

    def take(self, index: Int[Tensor, " k"] | slice) -> LocationScale:
        if not self.per_component:
            return self
        return self.with_bandwidth(self.bandwidth.mapped(lambda value: value[..., index, :]))

    def joined(self, other: Kernel, sizes: tuple[int, int]) -> Continuous:
        if not isinstance(other, type(self)):
            self._cannot(f"one of the class {type(other).__name__}, which the other density has")
        value = self.bandwidth.value
        if not self.per_component and torch.equal(value, other.bandwidth.value.to(value.device)):
            return self
        return self.with_bandwidth(self.joined_bandwidth(other, sizes))

    def conditional(
        self, index: Sequence[int], value: Float[Tensor, "*lead k"], components: Tensor
    ) -> tuple[LocationScale, Float[Tensor, "*lead m rest"]]:
        rest = [i for i in range(components.shape[-1]) if i not in index]
        return self.coordinates(rest), components[..., rest]

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

    # ---- densities

    def log_overlap(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead"]:
        return self.unit_log_overlap((x - components) / self.scale(components)).sum(-1)

    def term(self, x: Tensor, components: Tensor) -> Term:
        self.check_dimensions(components.shape[-1], x)
        return self.score_term(self._block, x, components)

    def score_term(self, block: BlockScore, query: Tensor, components: Tensor) -> Term:
        """Scores by a function of blocks, which reads components and scales by `centres_and_scales`."""
        scale = self.score_scale(components)
        if not self.per_component:
            return Score(block, query, components, (scale,))
        # Blocks slice the components: the scales of components are columns beside them.
        return Score(block, query, torch.cat(torch.broadcast_tensors(components, scale), -1))

    def centres_and_scales(
        self, components: Tensor, parameters: Sequence[Tensor], d: int
    ) -> tuple[Tensor, Tensor]:
        """The components of a block and their bandwidths, `(*lead, m, d)`, or `(1, d)` for all of them."""
        scales = parameters[0].expand(1, d) if parameters else components[..., d:]
        return components[..., :d], scales

    def _block(self, x: Tensor, components: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        """Dimension after dimension: the differences of all pairs never exist at once."""
        centres, scales = self.centres_and_scales(components, parameters, x.shape[-1])

        def part(x: Tensor, centre: Tensor, scale: Tensor) -> Tensor:
            return self.unit_log_overlap((x - centre) / scale)

        return sum_last(part, x.unsqueeze(-2), centres.unsqueeze(-3), scales.unsqueeze(-3))

    def log_norm(self, components: Tensor) -> Float[Tensor, "*batch_m"]:
        d = self.check_dimensions(components.shape[-1])
        logs = self.bandwidth.value.log()
        if logs.ndim == 0:
            logs = logs.unsqueeze(-1)
        return d * self.unit_log_norm - logs.expand(*logs.shape[:-1], d).sum(-1)

    # ---- regions

    def interval_term(self, low: Tensor, high: Tensor, components: Tensor) -> Term:
        self.check_dimensions(components.shape[-1], low)
        return self.score_term(self._mass_block, torch.cat([low, high], -1), components)

    def _mass_block(self, ends: Tensor, components: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        low, high = ends.unsqueeze(-2).chunk(2, -1)
        parts = self.centres_and_scales(components, parameters, low.shape[-1])
        return sum_last(self.interval_log_mass, low, high, *[part.unsqueeze(-3) for part in parts])

    def between(self, low: float, high: float, components: Tensor) -> tuple[Kernel, Tensor]:
        from kdmkit.kernels.truncated import Truncated  # not above: that module imports this one

        is_whole = low == -math.inf and high == math.inf
        return self if is_whole else Truncated(self, low, high), components

    def pair_log_mass(self, low: Tensor, high: Tensor, components: Tensor) -> Float[Tensor, "*lead"]:
        """The log mass of [low, high] under the component beside it; leading dimensions broadcast."""
        return self.interval_log_mass(low, high, components, self.score_scale(components)).sum(-1)

    def cdf(self, x: Float[Tensor, "*x"], components: Tensor) -> Float[Tensor, "*lead m"]:
        scale = self.scale(components)
        scale = scale.squeeze(-1) if scale.ndim else scale
        return self.unit_cdf((x.unsqueeze(-1) - components.squeeze(-1)) / scale)

    def quantile_bounds(self, q: Float[Tensor, "*x"], components: Tensor) -> tuple[Tensor, Tensor]:
        scale = self.scale(components)
        reach = (scale.squeeze(-1) if scale.ndim else scale) * self.unit_quantile_bound(q).unsqueeze(-1)
        return components.squeeze(-1) - reach, components.squeeze(-1) + reach

    def variance(self, components: Tensor) -> Float[Tensor, "*batch d"]:
        variance = self.unit_variance * self.scale(components).square()
        return variance.expand(broadcast(variance.shape, components.shape))

    def sample(
        self, components: Tensor, index: Int[Tensor, "*lead"], generator: torch.Generator | None = None
    ) -> Tensor:
        return components + self.scale_of(index, components) * self.unit_draw(components, generator)

    def extra_repr(self) -> str:
        shape, name = self.bandwidth.shape, self.bandwidth.name
        return f"{name} of shape {tuple(shape)}" if shape else f"{name}={self.bandwidth.value.item():.4g}"

    # ---- coordinates in which the kernel is a product over dimensions

    def whiten(self, x: Tensor) -> Tensor:
        """The coordinates of x in which the kernel is a product over dimensions."""
        return x

    def unwhiten(self, u: Tensor) -> Tensor:
        """The inverse of `whiten`."""
        return u

    def whitened(self) -> LocationScale:
        """The kernel in whitened coordinates."""
        return self


def check_product(argument: str, kernel: Kernel, wanted: str = "a continuous kernel") -> LocationScale:
    """As `check_continuous`, for kernels that are products over dimensions."""
    if not isinstance(kernel, LocationScale):
        wanted = f"{wanted} (RBF, Epanechnikov, Tricube)"
        raise TypeError(bad_argument(argument, wanted, type(kernel).__name__))
    return kernel
