"""What every kernel can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kdmkit._core.checks import as_tensor, bad_argument, check_event, check_finite, check_floating
from kdmkit._core.precision import full_precision
from kdmkit.ops import Term


class Kernel(nn.Module, ABC):
    """A kernel k with k(x, x) = 1; its square is the Born rule's probability of x given c.

    Values have shape `(*lead, *event)`; components `(*batch, m, *event)`.
    """

    #: Whether the kernel's density is a probability over finitely many events.
    discrete: ClassVar[bool]
    #: The number of dimensions of one event.
    event_dim: int = 1
    #: Whether `log_norm` and `sample` exist.
    has_density: ClassVar[bool] = True
    #: Whether M = 1, so that `log_norm` is 0.
    unit_norm: ClassVar[bool] = False

    @property
    def overlaps_everywhere(self) -> bool:
        """Whether k(x, c) is known to be positive for all x and c."""
        return False

    @property
    def batch_shape(self) -> torch.Size:
        """Leading dimensions of the kernel's own parameters: none, unless a batch has a kernel each."""
        return torch.Size()

    def arranged(self, place: Callable[[Tensor], Tensor]) -> Kernel:
        """The kernel with parameters of other leading dimensions; only one with a batch has any."""
        raise TypeError(bad_argument("kernel", "one with a batch of bandwidths", type(self).__name__))

    @abstractmethod
    def term(self, x: Tensor, components: Tensor) -> Term:
        """2·log|k(x_i, c_j)| of all pairs, for the reductions to evaluate in blocks.

        Args:
            x: of shape `(*lead, n, *event)`.
            components: of shape `(*lead, m, *event)`.
        """

    @abstractmethod
    def log_overlap(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead"]:
        """2·log|k(x, c)| of pairs: leading dimensions broadcast against each other."""

    @abstractmethod
    def log_norm(self, event_shape: torch.Size) -> Float[Tensor, "*batch_m"]:
        """log M with ∫ M·k²(x, c) dx = 1 (or a sum over a basis), one value or one per component."""

    @abstractmethod
    def sample(
        self, components: Tensor, index: Int[Tensor, "*lead"], generator: torch.Generator | None = None
    ) -> Tensor:
        """One exact draw from the density of each of the given components.

        Args:
            components: the chosen components, of shape `(*lead, *event)`.
            index: which component each is, of shape `(*lead,)`.
            generator: source of randomness; None is torch's global one.
        """

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """A JSON-ready description from which `from_config` makes an equal kernel."""

    @classmethod
    @abstractmethod
    def from_config(cls, config: dict[str, Any], *, encoder: nn.Module | None = None) -> Self:
        """The kernel that `config` describes; `encoder` is for a Composed kernel."""

    @property
    def per_component(self) -> bool:
        """Whether every component has parameters of its own."""
        return False

    def log_overlap_matrix(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead n m"]:
        """2·log|k(x_i, c_j)| of all pairs; the shapes are those of `term`."""
        term = self.term(x, components)
        with full_precision(x.device.type):
            return term.exact()

    def as_events(self, argument: str, value: Any, event_shape: torch.Size, like: Tensor) -> Tensor:
        """`value` as a tensor of events; `like` lends plain numbers its dtype and device."""
        value = as_tensor(argument, value, like=like)
        check_event(argument, value, event_shape)
        return value

    def check_events(self, argument: str, value: Tensor, event_shape: torch.Size) -> None:
        """Raises where `value` holds no events of this kernel: NaN, a zero amplitude, a label outside."""
        check_floating(argument, value)
        check_finite(argument, value)

    def event_rank(self, value: Tensor) -> int:
        """The number of trailing dimensions of `value` that are one event."""
        return self.event_dim

    def probs(self, components: Tensor) -> Float[Tensor, "*batch n"]:
        """The probability of every event under each component."""
        raise TypeError(
            bad_argument("kernel", "a discrete kernel (Cosine, Categorical)", type(self).__name__)
        )

    def variance(self, components: Tensor) -> Float[Tensor, "*batch d"]:
        """The variance of each component's density, dimension by dimension."""
        raise TypeError(bad_argument("kernel", "a continuous kernel", type(self).__name__))

    def same_family(self, other: "Kernel") -> bool:
        """Whether components of `other` may be evidence for a variable with this kernel."""
        return type(self) is type(other)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"
