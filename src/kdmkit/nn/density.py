"""A layer that is one density."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import nn

from kdmkit._core.checks import as_shape
from kdmkit.distributions import KDM
from kdmkit.kernels import RBF, Kernel, check_kernel
from kdmkit.nn.initialize import Method, Sigma
from kdmkit.nn.layer import LayerOptions, MixtureLayer, options_from
from kdmkit.nn.variable import Variable


class DensityLayer(MixtureLayer):
    """A trainable KDM over one variable.

    Args:
        features: the dimension of x.
        n_components: m.
        kernel: None is RBF.
        options: as of `JointLayer`.

    >>> import kdmkit as kdm
    >>> layer = kdm.nn.DensityLayer(2, n_components=8)
    >>> x = torch.randn(50, 2)
    >>> layer.initialize(x)().log_prob(x).shape
    torch.Size([50])
    """

    if TYPE_CHECKING:

        def __call__(self) -> KDM: ...

    def __init__(
        self,
        features: int,
        n_components: int,
        *,
        kernel: Kernel | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__()
        kernel = check_kernel("kernel", RBF(1.0) if kernel is None else kernel)
        shape = as_shape("features", features, least=1) if kernel.event_dim else ()
        variable = Variable("x", kernel, shape)
        self._build([variable], n_components, **options)

    def forward(self) -> KDM:
        """The layer's distribution; gradients flow to the parameters, and values are checked on a CPU."""
        return KDM._made(
            self.components["x"], self._log_weights(), self.kernel("x"), self._checks_values(None)
        )

    def initialize(
        self,
        x: Any,
        *,
        method: Method = "random",
        sigma: Sigma = "nearest",
        generator: torch.Generator | None = None,
    ) -> DensityLayer:
        """Sets components, weights and bandwidth from data, as in `JointLayer.initialize`."""
        return self._initialize({"x": x}, method, sigma, generator)

    def config(self) -> dict[str, Any]:
        return {
            "layer": "DensityLayer",
            "variable": self.variables["x"].config(),
            **self._common_config(),
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], *, encoders: Mapping[str, nn.Module] | None = None
    ) -> DensityLayer:
        variable = Variable.from_config(config["variable"], encoder=(encoders or {}).get("x"))
        features = variable.shape[0] if variable.shape else 1
        return cls(features, config["n_components"], kernel=variable.kernel, **options_from(config))

    def extra_repr(self) -> str:
        return f"n_components={self.n_components}"
