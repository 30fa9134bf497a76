"""What kernels share whose parameters are a bandwidth, or those of a kernel inside them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit.kernels.bandwidth import Bandwidth, LearnedBandwidth
from kdmkit.kernels.base import Kernel
from kdmkit.kernels.regions import Interval
from kdmkit.ops.terms import whole


class WithBandwidth(Kernel, ABC):
    """A kernel with a bandwidth of its own."""

    bandwidth: Bandwidth

    @abstractmethod
    def with_bandwidth(self, bandwidth: Bandwidth) -> WithBandwidth:
        """The kernel with another bandwidth."""

    @property
    def batch_shape(self) -> torch.Size:
        return self.bandwidth.batch_shape

    def arranged(self, place: Callable[[Tensor], Tensor]) -> WithBandwidth:
        return self.with_bandwidth(self.bandwidth.arranged(place)) if self.batch_shape else self

    @property
    def learned_bandwidth(self) -> LearnedBandwidth:
        if not isinstance(self.bandwidth, LearnedBandwidth):
            self._cannot("one with a learned bandwidth")
        return self.bandwidth


class Around(Kernel, ABC):
    """A kernel around another one, which has the bandwidth."""

    kernel: Kernel

    @abstractmethod
    def around(self, kernel: Kernel) -> Around:
        """The same around another kernel."""

    @property
    def batch_shape(self) -> torch.Size:
        return self.kernel.batch_shape

    def arranged(self, place: Callable[[Tensor], Tensor]) -> Around:
        return self.around(self.kernel.arranged(place)) if self.batch_shape else self

    @property
    def learned_bandwidth(self) -> LearnedBandwidth:
        return self.kernel.learned_bandwidth

    def initialize_bandwidth(
        self, components: Tensor, sigma: str | float, *, distance: float | None = None
    ) -> None:
        """From the distances of components in the space of the inner kernel."""
        self.kernel.initialize_bandwidth(components, sigma, distance=distance)

    def same_family(self, other: Kernel) -> bool:
        return type(self) is type(other) and self.kernel.same_family(other.kernel)

    def _mass_below(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead m"]:
        """F_j(x) by the masses of intervals, which are precise in both tails, for events of shape `(1,)`."""
        high = x[..., None, None]
        region = Interval.unchecked(torch.full_like(high, -torch.inf), high)
        term = self.region_term(region, components)
        return whole(term.prepared()).squeeze(-2).exp().to(term.dtype)
