"""Kernels around a kernel: the parameters, masses and moments that they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import ClassVar, Self

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit.kernels.bandwidth import LearnedBandwidth
from kdmkit.kernels.base import Kernel
from kdmkit.kernels.calculus.transforms import exact_buffers
from kdmkit.kernels.measured import Measured
from kdmkit.kernels.regions import Region
from kdmkit.ops.terms import common_dtype, whole


class Around(Measured, ABC):
    """A density of numbers made of that of an inner kernel, which has the bandwidth.

    Components are those of the inner kernel, or hold them. Buffers keep their dtype if the kernel is
    converted: an atom of 0.1 that was rounded to float32 would differ from the 0.1 of a float64 column.
    """

    has_moments: ClassVar[bool] = True
    components_are_events: bool = False
    kernel: Kernel

    @abstractmethod
    def around(self, kernel: Kernel) -> Around:
        """The same around another kernel."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        with exact_buffers(self):
            return super()._apply(fn, recurse=recurse)

    # ---- parameters

    @cached_property
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
        """Sets the inner bandwidth, from the distances of components in its space."""
        self.kernel.initialize_bandwidth(components, sigma, distance=distance)

    def same_family(self, other: Kernel) -> bool:
        return type(self) is type(other) and self.kernel.same_family(other.kernel)

    # ---- masses and moments

    def pack(
        self, argument: str, region: Region, event_shape: torch.Size, device: torch.device | None = None
    ) -> Float[Tensor, "*lead p"]:
        inner = self.kernel
        while isinstance(inner, Around):
            inner = inner.kernel
        return inner.pack(argument, region, event_shape, device)

    def _mass_below(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead m"]:
        """F_j(x) by the masses of intervals, which are precise in both tails, for events of shape `(1,)`."""
        high = x[..., None, None]
        term = self.interval_term(torch.full_like(high, -torch.inf), high, components)
        return whole(term.prepared()).squeeze(-2).exp().to(common_dtype((x, components)))

    def moments(self, components: Tensor) -> tuple[Tensor, Tensor]:
        """The mean and the variance of each component. A subclass defines this, or both of them."""
        return self.mean(components), self.variance(components)

    def mean(self, components: Tensor) -> Float[Tensor, "*batch d"]:
        return self.moments(components)[0]

    def variance(self, components: Tensor) -> Float[Tensor, "*batch d"]:
        return self.moments(components)[1]
