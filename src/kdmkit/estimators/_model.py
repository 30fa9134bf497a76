"""The module behind an estimator: an encoder and a joint KDM, in the units of the data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from kdmkit.distributions import KDM, JointKDM
from kdmkit.estimators._encoders import MLP, dtype_of
from kdmkit.estimators._scaling import Scaler, in_own_units
from kdmkit.estimators._trend import Trend
from kdmkit.nn import JointLayer


class Model(nn.Module):
    """x → scaler → encoder → joint KDM over (z, y); a decoder maps z back. Without an encoder z is x.

    With a trend f the KDM is over (x, y − f(x)): its components move with x, and widen where f is in doubt.
    The KDM answers in float64, encoders, decoders and trends in their own precision.
    """

    scaler: Scaler | None
    encoder: nn.Module | None
    decoder: nn.Module | None
    trend: Trend | None

    def __init__(
        self,
        layer: JointLayer,
        *,
        scaler: Scaler | None = None,
        encoder: nn.Module | None = None,
        decoder: nn.Module | None = None,
        trend: Trend | None = None,
    ) -> None:
        super().__init__()
        self.layer = layer.double()
        self.scaler, self.encoder, self.decoder, self.trend = scaler, encoder, decoder, trend

    def encode(self, x: Tensor) -> Tensor:
        if self.encoder is None:
            return x.double()
        x = x if self.scaler is None else self.scaler(x)
        z: Tensor = self.encoder(x.to(dtype_of(self.encoder)))
        return z.double()

    def decode(self, z: Tensor) -> Tensor:
        if self.decoder is None:
            return z
        x: Tensor = self.decoder(z.to(dtype_of(self.decoder)))
        return x.double() if self.scaler is None else self.scaler.inverse(x)

    def forward(self, x: Tensor) -> KDM:
        rho: KDM = self.layer(self.encode(x))
        if self.trend is None:
            return rho
        centre, doubt = self.trend(x)
        return rho.shifted(centre).convolved(doubt)

    def joint(self) -> JointKDM:
        """The joint distribution as a user gets it: without gradients, values are checked.

        With a trend its y is the residual.
        """
        layer = self.layer
        kernels: dict[str, Any] = dict(layer.kernels.items())
        components = {name: value.detach() for name, value in layer.components.items()}
        return JointKDM(components, None, kernels, log_weights=torch.log_softmax(layer.logits.detach(), -1))

    def log_density(self, x: Tensor) -> Tensor:
        """log p(x); behind an encoder log p(z) of the latent vector."""
        return self.layer.joint().marginal("x").log_prob(self.encode(x))

    # ---- to and from disk

    def config(self) -> dict[str, Any]:
        """A JSON-ready description; modules that users brought are only named."""
        return {
            "layer": self.layer.config(),
            "scaler": None if self.scaler is None else self.scaler.shift.numel(),
            "encoder": _module_config(self.encoder),
            "decoder": _module_config(self.decoder),
            "trend": None if self.trend is None else self.trend.config(),
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], *, encoder: nn.Module | None = None, decoder: nn.Module | None = None
    ) -> Model:
        """The model that `config` describes, with the user's own modules."""
        size, trend = config["scaler"], config.get("trend")
        return cls(
            JointLayer.from_config(config["layer"]),
            scaler=None if size is None else Scaler(torch.zeros(size), torch.ones(size)),
            encoder=_module_from_config(config["encoder"], encoder),
            decoder=_module_from_config(config["decoder"], decoder),
            trend=None if trend is None else Trend.from_config(trend),
        )


def assembled(
    layer: JointLayer,
    encoder: nn.Module | None,
    scalers: dict[str, Scaler],
    *,
    decoder: nn.Module | None = None,
) -> Model:
    """The model of a layer that learned from scaled variables, in the units of the data.

    Without an encoder all scaling becomes part of the KDM; behind one that of x stays in front of it.
    """
    if encoder is None:
        return Model(in_own_units(layer, scalers))
    others = {name: scaler for name, scaler in scalers.items() if name != "x"}
    return Model(in_own_units(layer, others), scaler=scalers.get("x"), encoder=encoder, decoder=decoder)


def _module_config(module: nn.Module | None) -> dict[str, Any] | None:
    if module is None:
        return None
    return {"mlp": module.config()} if isinstance(module, MLP) else {"own": type(module).__name__}


def _module_from_config(config: dict[str, Any] | None, own: nn.Module | None) -> nn.Module | None:
    if config is None:
        return None
    return MLP(**config["mlp"]) if "mlp" in config else own
