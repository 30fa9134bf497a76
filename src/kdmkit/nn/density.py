"""A layer that is one density."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from kdmkit.distributions import KDM
from kdmkit.kernels import RBF, Kernel
from kdmkit.nn.initialize import Method, Sigma
from kdmkit.nn.parameters import attach, dtype_name, initialize_from, kernels_of, options_from
from kdmkit.nn.store import ComponentStore
from kdmkit.nn.variable import Variable


class DensityLayer(nn.Module):
    """A trainable KDM over one variable.

    Args:
        features: the dimension of x.
        n_components: m.
        kernel: None is RBF.
        train_components, train_weights, train_kernels: what asks for gradients.
        dtype, device: of the parameters.

    >>> import kdmkit as kdm
    >>> layer = kdm.nn.DensityLayer(2, n_components=8)
    >>> x = torch.randn(50, 2)
    >>> layer.initialize(x)().log_prob(x).shape
    torch.Size([50])
    """

    variables: dict[str, Variable]
    components: ComponentStore
    kernels: nn.ModuleDict
    logits: nn.Parameter

    def __init__(
        self,
        features: int,
        n_components: int,
        *,
        kernel: Kernel | None = None,
        train_components: bool = True,
        train_weights: bool = True,
        train_kernels: bool = True,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        kernel = RBF(1.0) if kernel is None else kernel
        variable = Variable("x", kernel, features if kernel.event_dim else ())
        self._train = {"components": train_components, "weights": train_weights, "kernels": train_kernels}
        attach(self, [variable], n_components, self._train, dtype, device)

    @property
    def n_components(self) -> int:
        return self.logits.shape[0]

    def forward(self) -> KDM:
        """The layer's distribution; gradients flow to the parameters."""
        log_weights = torch.log_softmax(self.logits, -1)
        kernel = kernels_of(self)["x"]
        return KDM(self.components["x"], None, kernel, log_weights=log_weights, validate_args=False)

    def initialize(
        self,
        x: Any,
        *,
        method: Method = "random",
        sigma: Sigma = "nearest",
        generator: torch.Generator | None = None,
    ) -> DensityLayer:
        """Sets components, weights and bandwidth from data, as in `JointLayer.initialize`."""
        initialize_from(self, {"x": x}, method, sigma, generator)
        return self

    def config(self) -> dict[str, Any]:
        """As `JointLayer.config`."""
        return {
            "layer": "DensityLayer",
            "variable": self.variables["x"].config(),
            "n_components": self.n_components,
            "train": dict(self._train),
            "dtype": dtype_name(self),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> DensityLayer:
        variable = Variable.from_config(config["variable"])
        features = variable.shape[0] if variable.shape else 1
        return cls(features, config["n_components"], kernel=variable.kernel, **options_from(config))

    def extra_repr(self) -> str:
        return f"n_components={self.n_components}"
