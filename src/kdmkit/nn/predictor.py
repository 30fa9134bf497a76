"""The distribution of an answer given a row: the one module behind the estimators."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument
from kdmkit.distributions import KDM, JointKDM
from kdmkit.nn.layer import LayerOptions, Variable
from kdmkit.nn.mixture_layer import JointLayer
from kdmkit.nn.mlp import MLP
from kdmkit.nn.scaler import Scaler
from kdmkit.nn.trend import LabelTrend, Trend

# Rows per block without gradients: activations stay in a CPU's caches.
BLOCK = 1024
# Points are moved to at most this distance from all components, in units of their range. Farther away the
# order of distances to components is the same, but squares would be rounded or infinite.
_REACH = 1e5


class Predictor(nn.Module):
    """p(y|x) = Σ_j w_j(z)·f̂_j(y) with z = encoder(scaler(x)): a joint KDM over (z, y) behind an encoder.

    With a trend f the KDM is over (x, y − f(x)), and p(y|x) = Σ_j w_j(x)·N(y; c_j + f(x), s_j² + v(x)) with
    the trend's excess variance v. With a trend of labels, p(y|x) = Σ_j w_j(x)·softmax_y(t(x) + c_j), see
    `LabelTrend`; the KDM's label distributions are those answers at its components. The KDM computes in
    float64; encoder, decoder and trend in the dtype of their parameters.

    Args:
        layer: the joint KDM with the variables `x`, which is z here, and `y`. It is converted to float64 in
            place.
        scaler: standardises x for the encoder; only with an encoder.
        encoder: from x to z; None means z = x.
        decoder: from z back to x; only with an encoder.
        trend: of y; only without an encoder.

    >>> import kdmkit as kdm
    >>> predictor = kdm.nn.Predictor(kdm.nn.JointLayer(4, 3, n_components=16))
    >>> predictor(torch.randn(5, 4)).probs.shape
    torch.Size([5, 3])
    """

    if TYPE_CHECKING:

        def __call__(self, x: Tensor) -> KDM: ...

    scaler: Scaler | None
    encoder: nn.Module | None
    decoder: nn.Module | None
    trend: Trend | LabelTrend | None

    def __init__(
        self,
        layer: JointLayer,
        *,
        scaler: Scaler | None = None,
        encoder: nn.Module | None = None,
        decoder: nn.Module | None = None,
        trend: Trend | LabelTrend | None = None,
    ) -> None:
        super().__init__()
        for name, part in {"scaler": scaler, "decoder": decoder}.items():
            if part is not None and encoder is None:
                raise ValueError(bad_argument(name, "None without an encoder", type(part).__name__))
        if trend is not None and encoder is not None:
            raise ValueError(bad_argument("trend", "None behind an encoder", type(trend).__name__))
        self.layer = layer.double()
        self.scaler, self.encoder, self.decoder, self.trend = scaler, encoder, decoder, trend

    @classmethod
    def from_standardized(
        cls,
        layer: JointLayer,
        scalers: dict[str, Scaler],
        *,
        encoder: nn.Module | None = None,
        decoder: nn.Module | None = None,
        trend: Trend | LabelTrend | None = None,
    ) -> Predictor:
        """A predictor in the units of the data, from a layer that was fitted to standardised variables.

        Args:
            layer, encoder, decoder, trend: fitted.
            scalers: the scaler of every variable that was standardised. Without an encoder, the scaler of x
                becomes part of the layer; with one, it stays a module in front of the encoder.
        """
        if encoder is None:
            return cls(in_data_units(layer, scalers), trend=trend)
        others = {name: scaler for name, scaler in scalers.items() if name != "x"}
        layer = in_data_units(layer, others)
        return cls(layer, scaler=scalers.get("x"), encoder=encoder, decoder=decoder, trend=trend)

    def encode(self, x: Tensor) -> Tensor:
        """z, in float64."""
        if self.encoder is None:
            return x.double()
        x = x if self.scaler is None else self.scaler(x)
        z: Tensor = self.encoder(x.to(dtype_of(self.encoder)))
        return z.double()

    def decode(self, z: Tensor) -> Tensor:
        """x of a latent vector z; without a decoder z itself."""
        if self.decoder is None:
            return z
        x: Tensor = self.decoder(z.to(dtype_of(self.decoder)))
        return x.double() if self.scaler is None else self.scaler.inverse(x)

    def forward(self, x: Tensor) -> KDM:
        """p(y|x) of every row; gradients flow to x and to the parameters."""
        return self._conditional(self.layer.joint(validate_args=False), *self._evaluate(x))

    @torch.no_grad()
    def distribution(self, x: Tensor, *, block: int = BLOCK) -> KDM:
        """`forward` for any number of rows, without gradients; the KDM checks the values of later calls.

        Encoder and trend see `block` rows at a time; x may be on another device.
        """
        blocks = [self._evaluate(part.to(self.layer.logits.device)) for part in x.split(block)]
        return self._conditional(self.joint(), *(torch.cat(part) for part in zip(*blocks, strict=True)))

    def moments(self, x: Tensor, *, spread: bool) -> list[Tensor]:
        """The mean of p(y|x) and, with `spread`, its standard deviation: the mean alone takes less time."""
        z, *trend = self._evaluate(x)
        rho = self._inferred(self.layer.joint(validate_args=False), z)
        if self.trend is None:
            return [rho.mean, rho.stddev] if spread else [rho.mean]
        mean = rho.mean + trend[0]
        return [mean, self.trend.adjust(rho, *trend).stddev] if spread else [mean]

    def _evaluate(self, x: Tensor) -> tuple[Tensor, ...]:
        """z, and the results of the trend."""
        return self.encode(x), *(() if self.trend is None else self.trend(x))

    def _conditional(self, joint: JointKDM, z: Tensor, *trend: Tensor) -> KDM:
        """p(y|z), adjusted by the trend."""
        rho = self._inferred(joint, z)
        return rho if self.trend is None else self.trend.adjust(rho, *trend)

    def _inferred(self, joint: JointKDM, z: Tensor) -> KDM:
        """p(y|z); with a trend, that of the residual."""
        components = self.layer.components["x"].detach().double()
        low, high = components.amin(0), components.amax(0)
        size = torch.where(high > low, high - low, components.abs().amax(0).clamp_min(1))
        rho: KDM = joint.infer(x=z.clamp(low - _REACH * size, high + _REACH * size), target="y")
        return rho

    def joint(self) -> JointKDM:
        """The joint distribution of z and y, without gradients and with checks of values.

        With a trend its y is the residual y − f(x). With a trend of labels, each component has the label
        distribution that the model gives at the component.
        """
        layer = self.layer
        kernels = {name: copy.deepcopy(layer.kernel(name)).requires_grad_(False) for name in layer.variables}
        components = {name: value.detach() for name, value in layer.components.items()}
        return JointKDM(components, None, kernels, log_weights=torch.log_softmax(layer.logits.detach(), -1))

    def log_density(self, x: Tensor) -> Float[Tensor, " n"]:
        """log p(x); behind an encoder log p(z) of the latent vector."""
        return self.layer.joint(validate_args=False).marginal("x").log_prob(self.encode(x))

    # ---- to and from disk

    def config(self) -> dict[str, Any]:
        """A JSON-ready description; of a user's modules it has the names only."""
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
    ) -> Predictor:
        """The predictor that `config` describes, with the user's modules."""
        size, trend = config["scaler"], config.get("trend")
        layer = JointLayer.from_config(config["layer"])
        # Labels have a trend of logits, numbers a trend of means.
        trend_class = LabelTrend if layer.kernel("y").discrete else Trend
        return cls(
            layer,
            scaler=None if size is None else Scaler.identity(size),
            encoder=_module_from_config(config["encoder"], encoder),
            decoder=_module_from_config(config["decoder"], decoder),
            trend=None if trend is None else trend_class.from_config(trend),
        )


def _module_config(module: nn.Module | None) -> dict[str, Any] | None:
    if module is None:
        return None
    return {"mlp": module.config()} if isinstance(module, MLP) else {"own": type(module).__name__}


def _module_from_config(config: dict[str, Any] | None, given: nn.Module | None) -> nn.Module | None:
    if config is None:
        return None
    return MLP(**config["mlp"], generator=torch.Generator()) if "mlp" in config else given


def dtype_of(module: nn.Module) -> torch.dtype:
    """The floating-point dtype that a module computes in: that of its first such tensor, or float32."""
    tensors = [*module.parameters(), *module.buffers()]
    return next((t.dtype for t in tensors if t.is_floating_point()), torch.float32)


def in_data_units(layer: JointLayer, scalers: dict[str, Scaler]) -> JointLayer:
    """The same joint in float64, over x instead of (x − shift)/scale for every variable with a scaler."""
    kernels = {
        name: layer.kernel(name).scaled(scalers[name].scale) if name in scalers else layer.kernel(name)
        for name in layer.variables
    }
    variables = [Variable(name, kernels[name], v.shape) for name, v in layer.variables.items()]
    options: LayerOptions = {"dtype": torch.float64, "generator": torch.Generator()}
    moved = JointLayer.from_variables(variables, layer.n_components, inputs=layer.inputs, **options)
    components = {
        name: scalers[name].inverse(values) if name in scalers else values
        for name, values in layer.components.items()
    }
    return moved.assign(components, layer.logits)
