"""The phases of an estimator's fit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from kdmkit.estimators.common.encoders import build_module, mlp_encoder
from kdmkit.estimators.common.joint import JointEstimator
from kdmkit.training import FitOptions, PhasedFit, Rows, encode_rows

# Of the weights of encoders and dense heads.
_WEIGHT_DECAY = 1e-2


class EstimatorFit(PhasedFit):
    """Phases with the settings, checkpoints and device of an estimator; modules come back on the CPU.

    `place_components` of a subclass makes the layer.

    Args:
        estimator: its parameters are the settings.
        x: the inputs among which components are placed.
        train, validation: rows of the objectives.
        n_outputs: of the dense head.
        generative_weight, head_epochs: as in `PhasedFit`.
        changes: options that differ from the estimator's settings.
    """

    def __init__(
        self,
        estimator: JointEstimator,
        x: Tensor,
        train: Rows,
        validation: Rows | None,
        *,
        n_outputs: int,
        generative_weight: float = 0.0,
        head_epochs: int = 0,
        **changes: Any,
    ) -> None:
        settings = {**estimator._settings(estimator._seed, len(train)), "weight_decay": _WEIGHT_DECAY}
        super().__init__(
            build_module(estimator.encoder, "encoder", lambda: mlp_encoder(x.shape[1])),
            None,
            train,
            validation,
            options=FitOptions(**{**settings, **changes}),
            head_epochs=head_epochs,
            generative_weight=generative_weight,
            identity=estimator._identity((x,)),
        )
        self.estimator, self.x, self.n_outputs = estimator, x, n_outputs

    def make_dense(self) -> nn.Module:
        return nn.Linear(self.encode(self.x[:2]).shape[1], self.n_outputs, dtype=torch.float32)

    def encode(self, x: Tensor) -> Tensor:
        return x if self.encoder is None else encode_rows(self.encoder, x, self.estimator._fit_device())

    def minimize(self, phase: str, objective: nn.Module, *arguments: Any) -> None:
        super().minimize(phase, objective, *arguments)
        objective.cpu()
