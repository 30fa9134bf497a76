"""Estimators of a joint distribution: scaling, encoder, components, fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sklearn.utils import Tags
from torch import Tensor, nn

from kdmkit.estimators.common.base import KDMEstimator
from kdmkit.estimators.common.checks import Array, check_number
from kdmkit.estimators.common.encoders import build_module, encode_rows
from kdmkit.nn import MLP, JointLayer, Predictor, Scaler
from kdmkit.nn.initialize import Sigma
from kdmkit.nn.predictor import dtype_of
from kdmkit.training import Rows

_HIDDEN, _LATENT = 128, 16
# An untrained encoder takes a rate of its own: one that suits components makes it diverge.
_ENCODER_RATE = 3e-3
_ENCODER_DECAY = 1e-2
# Afterwards encoder and components move together, more gently.
_FINE_RATE = 0.3


@dataclass(frozen=True)
class Phases:
    """The phases of a fit: what an encoder learns first, where components start, what both learn then."""

    #: From the encoder and a dense head to an objective.
    pretraining: Callable[[nn.Module, nn.Module], nn.Module]
    #: From latent vectors of the instances, and the dense head that read them, if any, to a layer.
    first_layer: Callable[[Tensor, nn.Module | None], JointLayer]
    #: From the encoder, if any, and the layer to an objective.
    objective: Callable[[nn.Module | None, JointLayer], nn.Module]


class JointEstimator(KDMEstimator):
    """Base of the estimators whose module is a joint KDM over rows and targets, behind an encoder or not."""

    module_: Predictor
    history_: list[dict[str, float]]
    pretraining_history_: list[dict[str, float]]

    encoder: Any
    sigma: Any

    # ---- fitting

    @property
    def _takes_anything(self) -> bool:
        """A user's encoder sees what the user gave: images, unscaled numbers."""
        return isinstance(self.encoder, nn.Module)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = self._takes_anything
        return tags

    def _input_scaler(self, x: Tensor, weights: Tensor | None) -> dict[str, Scaler]:
        return {} if self._takes_anything else {"x": Scaler.from_data(x, weights)}

    def _training_inputs(self, x: Tensor, scalers: dict[str, Scaler]) -> Tensor:
        return scalers["x"](x).float() if "x" in scalers else x.to(dtype_of(self.encoder))

    def _learn(
        self,
        x: Tensor,
        rows: Rows,
        validation: Rows | None,
        phases: Phases,
        *,
        outputs: int,
        description: str,
        **options: Any,
    ) -> tuple[nn.Module | None, JointLayer]:
        """Encoder and layer, learned from rows that hold the instances x; `options` go to both fits."""
        encoder = build_module(self.encoder, "encoder", lambda: MLP([x.shape[1], _HIDDEN, _HIDDEN, _LATENT]))
        self.pretraining_history_ = []
        changes, head = options, None
        if encoder is not None:
            rate, head = self._encoder_rate(), _dense_head(encoder, x, outputs)
            self.pretraining_history_ = self._run(
                phases.pretraining(encoder, head),
                rows,
                validation,
                "encoder",
                learning_rate=rate,
                data=(x,),
                weight_decay=_ENCODER_DECAY,
                checkpoint_dir=self._phase_dir("encoder"),
                **options,
            )
            changes = {"learning_rate": _FINE_RATE * rate, "weight_decay": _ENCODER_DECAY, **options}
        layer = phases.first_layer(encode_rows(encoder, x, self._fit_device()), head)
        objective = phases.objective(encoder, layer)
        self.history_ = self._run(objective, rows, validation, description, data=(x,), **changes)
        return encoder, layer

    def _encoder_rate(self) -> float:
        return min(self.learning_rate, _ENCODER_RATE)

    def _first_sigma(self, automatic: Sigma) -> Sigma:
        """Where a learned bandwidth starts."""
        if isinstance(self.sigma, str) and self.sigma == "auto":
            return automatic
        return check_number("sigma", self.sigma, "'auto' or a number > 0", positive=True)

    def _phase_dir(self, phase: str) -> Any:
        """Every phase of a fit has a checkpoint of its own."""
        return None if self.checkpoint_dir is None else Path(self.checkpoint_dir) / phase

    def _torch_generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self._seed)

    # ---- answers

    def _inputs(self, X: Any) -> Tensor:
        return self._rows(X, allow_nd=self._takes_anything)

    def score_samples(self, X: Any) -> Array:
        """log p(x) of every row: low where the model has seen nothing like it.

        Behind an encoder it is log p(z) of the latent vector, and says how usual the encoding is.
        """
        x = self._inputs(X)
        return self._rowwise(self.module_.log_density, x)


def _dense_head(encoder: nn.Module, x: Tensor, outputs: int) -> nn.Linear:
    latent = encode_rows(encoder, x[:2], torch.device("cpu")).shape[1]
    return nn.Linear(latent, outputs, dtype=torch.float32)


def mlp_decoder(latent: int, shape: tuple[int, ...]) -> MLP:
    """A decoder from latent vectors to inputs of any shape."""
    sizes = [latent, _HIDDEN, _HIDDEN, math.prod(shape)]
    return MLP(sizes, dropout=0.0, normalize=False, shape=None if len(shape) == 1 else list(shape))
