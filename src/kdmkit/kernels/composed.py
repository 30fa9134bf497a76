"""A kernel on encoded values."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kdmkit._core.checks import apply, bad_argument, check_count, check_finite, check_instance
from kdmkit.kernels.bandwidth import LearnedBandwidth
from kdmkit.kernels.base import Kernel
from kdmkit.kernels.registry import check_kernel, kernel_from_config
from kdmkit.ops import Term


class Composed(Kernel):
    """k(x, c) = k'(e(x), e(c)) for an encoder e: similarity in a learned space.

    It compares values but is no density of x: log-probabilities, moments and samples raise.

    Args:
        encoder: maps `(batch, *event)` to `(batch, features)`.
        kernel: the kernel on the features.
        event_dim: the number of dimensions of one event, 3 for images.

    >>> import kdmkit as kdm
    >>> kernel = Composed(nn.Linear(4, 2), kdm.RBF(1.0))
    >>> kernel.log_overlap(torch.ones(4), torch.ones(4)).exp().item()
    1.0
    """

    has_density: ClassVar[bool] = False

    def __init__(self, encoder: nn.Module, kernel: Kernel, *, event_dim: int = 1) -> None:
        super().__init__()
        check_instance("encoder", encoder, nn.Module, "an nn.Module")
        if check_kernel("kernel", kernel).batch_shape:
            raise ValueError(bad_argument("kernel", "one without a batch of bandwidths", repr(kernel)))
        self.encoder, self.kernel = encoder, kernel
        self.event_dim = self.component_dim = check_count("event_dim", event_dim, least=0)

    @property
    def discrete(self) -> bool:  # type: ignore[override]
        """Whether the kernel behind the encoder is one of labels."""
        return self.kernel.discrete

    @property
    def overlaps_everywhere(self) -> bool:
        return self.kernel.overlaps_everywhere

    @property
    def per_component(self) -> bool:
        return self.kernel.per_component

    @property
    def learned_bandwidth(self) -> LearnedBandwidth:
        return self.kernel.learned_bandwidth

    def initialize_bandwidth(
        self, components: Tensor, sigma: str | float, *, distance: float | None = None
    ) -> None:
        """Sets the inner bandwidth, from distances in the encoder's space."""
        self.kernel.initialize_bandwidth(self.encode(components), sigma, distance=distance)

    def encode(self, x: Tensor) -> Tensor:
        """e(x), for events of any leading shape."""
        lead = x.shape[: x.ndim - self.event_dim]
        encoded: Tensor = apply("encoder", self.encoder, x.reshape(-1, *x.shape[len(lead) :]))
        return encoded.reshape(*lead, *encoded.shape[1:])

    @torch.no_grad()
    def check_components(self, argument: str, components: Tensor) -> None:
        """Checks the encoded components, in evaluation mode."""
        modes = {module: module.training for module in self.modules()}
        try:
            encoded = self.eval().encode(components)
        finally:
            for module, mode in modes.items():
                module.training = mode
        check_finite("encoder", encoded)
        self.kernel.check_components(argument, encoded)

    def term(self, x: Tensor, components: Tensor) -> Term:
        return self.kernel.term(self.encode(x), self.encode(components))

    def log_overlap(self, x: Tensor, components: Tensor) -> Float[Tensor, "*lead"]:
        return self.kernel.log_overlap(self.encode(x), self.encode(components))

    def log_norm(self, components: Tensor) -> NoReturn:
        raise TypeError(
            bad_argument(
                "kernel", "one with a density", "Composed, which compares encoded values and has none"
            )
        )

    def sample(
        self, components: Tensor, index: Int[Tensor, "*lead"], generator: torch.Generator | None = None
    ) -> NoReturn:
        raise TypeError(bad_argument("kernel", "one that can be sampled", "Composed, which has no density"))

    def config(self) -> dict[str, Any]:
        return {"kernel": "Composed", "inner": self.kernel.config(), "event_dim": self.event_dim}

    @classmethod
    def from_config(cls, config: dict[str, Any], *, encoder: nn.Module | None = None) -> Composed:
        if encoder is None:
            raise ValueError(bad_argument("encoder", "the encoder of the Composed kernel", None))
        return cls(encoder, kernel_from_config(config["inner"]), event_dim=config["event_dim"])

    def extra_repr(self) -> str:
        return f"{type(self.encoder).__name__}, {self.kernel!r}"
