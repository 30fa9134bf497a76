"""The phases of an estimator's fit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from kdmkit.estimators.common.encoders import build_module, mlp_encoder
from kdmkit.estimators.common.joint import JointEstimator
from kdmkit.nn import make_linear
from kdmkit.training import FitOptions, Phases, Rows, encode_rows

# Of the weights of encoders and dense heads.
_WEIGHT_DECAY = 1e-2


class EstimatorFit(Phases):
    """Phases with the settings, checkpoints and device of an estimator; modules come back on the CPU.

    `place_components` of a subclass makes the layer.

    Args:
        estimator: its parameters are the settings.
        x: the inputs among which components are placed.
        train, validation: rows of the objectives.
        n_outputs: of the dense head.
        batch_size: None is the estimator's.
        phases: `generative_weight`, `noise`, `loss` and `head_epochs`, as in `Phases`.
    """

    def __init__(
        self,
        estimator: JointEstimator,
        x: Tensor,
        train: Rows,
        validation: Rows | None,
        *,
        n_outputs: int,
        batch_size: int | None = None,
        **phases: Any,
    ) -> None:
        settings = {**estimator._settings(estimator._seed, len(train)), "weight_decay": _WEIGHT_DECAY}
        if batch_size is not None:
            settings["batch_size"] = batch_size
        generator = estimator._torch_generator()
        super().__init__(
            build_module(estimator.encoder, "encoder", lambda: self.build_encoder(x.shape[1], generator)),
            train,
            validation,
            options=FitOptions(**settings),
            identity=estimator._identity((x,)),
            **phases,
        )
        self.estimator, self.x, self.n_outputs, self.generator = estimator, x, n_outputs, generator

    def build_encoder(self, features: int, generator: torch.Generator) -> nn.Module:
        """The encoder that `"mlp"` means."""
        return mlp_encoder(features, generator)

    def make_dense(self) -> nn.Module:
        return make_linear(self.encode(self.x[:2]).shape[1], self.n_outputs, self.generator)

    def encode(self, x: Tensor) -> Tensor:
        return x if self.encoder is None else encode_rows(self.encoder, x, self.estimator._fit_device())

    def minimize(self, phase: str, objective: nn.Module, *arguments: Any) -> None:
        super().minimize(phase, objective, *arguments)
        objective.cpu()
