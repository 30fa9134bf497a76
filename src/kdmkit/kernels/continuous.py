"""Kernels with a bandwidth, and those whose components are centres."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit._core.checks import bad_argument, check_event
from kdmkit.kernels.bandwidth import (
    BOUND,
    Bandwidth,
    LearnedBandwidth,
    as_bandwidth,
    typical_distance,
)
from kdmkit.kernels.base import Kernel
from kdmkit.kernels.measured import Measured
from kdmkit.ops import ComponentDistance, SquaredDistance, Term

if TYPE_CHECKING:
    from kdmkit.kernels.location_scale import LocationScale


class WithBandwidth(Kernel, ABC):
    """A kernel of vectors with a bandwidth."""

    bandwidth: Bandwidth
    #: The parameter's name in errors, if it is not that of the bandwidth.
    parameter_name: str | None = None

    @abstractmethod
    def with_bandwidth(self, bandwidth: Bandwidth) -> Self:
        """The kernel with another bandwidth."""

    @property
    def batch_shape(self) -> torch.Size:
        return self.bandwidth.batch_shape

    def arranged(self, place: Callable[[Tensor], Tensor]) -> WithBandwidth:
        return self.with_bandwidth(self.bandwidth.mapped(place)) if self.batch_shape else self

    @property
    def learned_bandwidth(self) -> LearnedBandwidth:
        if not isinstance(self.bandwidth, LearnedBandwidth):
            self._cannot("one with a learned bandwidth")
        return self.bandwidth

    def initialize_bandwidth(
        self, components: Tensor, sigma: str | float, *, distance: float | None = None
    ) -> None:
        if not isinstance(self.bandwidth, LearnedBandwidth):
            return
        if isinstance(sigma, str):
            width = self.typical_width(components, sigma) if distance is None else distance
            value = width * self.relative_widths(components)
        else:
            value = torch.full_like(self.bandwidth.raw, sigma)
        self.bandwidth.restart(value, BOUND * float(value.min()))

    def typical_width(self, components: Tensor, rule: str) -> float:
        """The bandwidth to start from, by a rule of `typical_distance`."""
        return typical_distance(components, rule)

    def relative_widths(self, components: Tensor) -> Tensor:
        """Factors of the bandwidth to start from, in the shape of the bandwidth."""
        return torch.ones_like(self.learned_bandwidth.raw)

    def check_dimensions(self, d: int, x: Tensor | None = None) -> int:
        """d, if the bandwidth and x have as many dimensions; otherwise a ValueError."""
        if x is not None:
            check_event("x", x, torch.Size([d]))
        shape = self.bandwidth.shape
        if len(shape) and shape[-1] not in (1, d):
            wanted = f"a scalar, ({d},), (m, 1) or (m, {d}), or a batch of them, for events of shape ({d},)"
            name = self.parameter_name or self.bandwidth.name
            raise ValueError(bad_argument(name, wanted, f"shape {tuple(shape)}"))
        return d

    def distance_term(self, x: Tensor, components: Tensor, scale: Tensor) -> Term:
        """−Σ_i (scale_i·(x_i − c_i))² of all pairs; `scale` has the shape of the bandwidth."""
        if self.bandwidth.per_component:
            return ComponentDistance(x, components, scale)
        row = scale.expand(1, *scale.shape[-1:]) if scale.ndim else scale.view(1, 1)
        return SquaredDistance(x, components, row)


class Continuous(WithBandwidth, Measured, ABC):
    """A kernel whose density has one shape for all positions: components are centres, which can be moved.

    >>> import kdmkit as kdm
    >>> [isinstance(kernel, Continuous) for kernel in (kdm.RBF(1.0), kdm.LowRank(1.0, [[1.0], [2.0]]))]
    [True, True]
    """

    is_continuous: ClassVar[bool] = True
    has_moments: ClassVar[bool] = True

    @abstractmethod
    def take(self, index: Int[Tensor, " k"] | slice) -> Continuous:
        """The kernel of some components."""

    @abstractmethod
    def joined(self, other: Kernel, sizes: tuple[int, int]) -> Continuous:
        """One kernel for the components of both, one after the other.

        Bandwidths that differ become those of every component.

        Args:
            sizes: the numbers of components of this kernel and of the other.
        """

    @abstractmethod
    def scaled(self, factor: Any) -> Continuous: ...

    @abstractmethod
    def conditional(
        self, index: Sequence[int], value: Float[Tensor, "*lead k"], components: Tensor
    ) -> tuple[Continuous, Float[Tensor, "*lead m rest"]]:
        """The kernel and the components of the other coordinates, given those of `index`."""

    @property
    @abstractmethod
    def envelope(self) -> LocationScale:
        """A product over dimensions whose overlaps with the same components are at least as large."""

    @property
    def root(self) -> Float[Tensor, "*m d d"] | None:
        """Lower triangular A with x = c + A·u for u with the density of `RBF(1.0)`, in float64.

        None for kernels that are products over dimensions of `whiten(x)`.
        """
        return None

    @property
    def overlaps_everywhere(self) -> bool:
        return True

    def mode(self, components: Tensor) -> Tensor:
        return components

    def mean(self, components: Tensor) -> Tensor:
        return components

    def joined_bandwidth(self, other: Continuous, sizes: tuple[int, int]) -> Bandwidth:
        """The bandwidths of both kernels' components, a row for each."""
        values = [kernel.bandwidth.value.to(self.bandwidth.value.device) for kernel in (self, other)]
        columns = [value if value.ndim else value.unsqueeze(0) for value in values]
        d = max(value.shape[-1] for value in columns)
        rows = [value.expand(size, d) for value, size in zip(columns, sizes, strict=True)]
        return as_bandwidth(self.bandwidth.name, torch.cat(rows), None, trainable=False)


def check_continuous(argument: str, kernel: Kernel, wanted: str = "a continuous kernel") -> Continuous:
    """`kernel` as a continuous one; a TypeError says that `argument` should have been what was wanted.

    Args:
        argument: the name of the argument, for the error.
        kernel: the kernel to check.
        wanted: what the argument should have been.

    Returns:
        The kernel itself.

    >>> import kdmkit as kdm
    >>> check_continuous("kernel", kdm.RBF(1.0))
    RBF(sigma=1)
    """
    if not isinstance(kernel, Continuous):
        wanted = f"{wanted} (RBF, LowRank, Epanechnikov, Tricube)"
        raise TypeError(bad_argument(argument, wanted, type(kernel).__name__))
    return kernel
