"""The phases of a classifier without a trend."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from kdmkit.estimators.common.encoders import (
    build_module,
    is_built_in,
    mlp_decoder,
    reconstructing_encoder,
)
from kdmkit.estimators.common.phases import EstimatorFit
from kdmkit.nn import make_linear
from kdmkit.nn.predictor import dtype_of
from kdmkit.training import FitOptions, Rows
from kdmkit.training.objectives import DecoderObjective, DenseObjective


class ClassifierFit(EstimatorFit):
    """The phases of a classifier; the last one fits the decoder, if there is one.

    The built-in encoder learns with a dense head that predicts labels and reconstructs rows: without the
    latter, latent vectors of novel rows fall among those of the known classes. Afterwards the encoder is
    fixed, and the layer learns p(z, y) with the label distributions that its components start with.
    """

    estimator: Any
    decoder: nn.Module | None = None

    def run(self) -> dict[str, list[dict[str, float]]]:
        super().run()
        self.fit_decoder()
        return self.histories

    def build_encoder(self, features: int, generator: torch.Generator) -> nn.Module:
        return reconstructing_encoder(features, generator)

    @property
    def _fixes_encoder(self) -> bool:
        return is_built_in(self.estimator.encoder)

    def dense_objective(self) -> nn.Module:
        if not self._fixes_encoder:
            return super().dense_objective()
        assert self.encoder is not None
        assert self.dense is not None
        latent = self.encode(self.x[:2]).shape[1]
        reconstruct = make_linear(latent, self.x.shape[1], self.generator)
        return DenseObjective(self.encoder, self.dense, noise=self.noise, reconstruct=reconstruct)

    def place_components(self) -> None:
        z, labels = self.encode(self.x), self.train.tensors[1]
        self.layer = self.estimator._first_layer(z, labels, self.train.weights, self.n_outputs)

    def fit_jointly(self) -> None:
        if not self._fixes_encoder:
            super().fit_jointly()
            return
        # The encoder separates the classes of its own rows too well: label distributions that learned from
        # them would be too sure.
        labels = self.layer.components["y"].requires_grad_(False)
        self.minimize("joint", self.head_objective(), self.latent_rows)
        labels.requires_grad_()

    def fit_decoder(self) -> None:
        """Trains a decoder to invert the encoder, which is fixed."""
        latent, shape = self.encode(self.x[:2]).shape[1], tuple(self.x.shape[1:])
        self.decoder = build_module(
            self.estimator.decoder, "decoder", lambda: mlp_decoder(latent, shape, self.generator)
        )
        if self.decoder is not None:
            self.minimize("decoder", DecoderObjective(self.decoder), self._decoder_rows)

    def _decoder_rows(self, rows: Rows) -> Rows:
        assert self.decoder is not None
        x, dtype = rows.tensors[0], dtype_of(self.decoder)
        return Rows((self.encode(x).to(dtype), x.to(dtype)), rows.weights)

    def options_for(self, phase: str) -> FitOptions:
        options = super().options_for(phase)
        if phase == "joint" and self._fixes_encoder:
            # Latent vectors cost nothing: larger batches are faster.
            return replace(
                options, learning_rate=self.options.learning_rate, batch_size=2 * options.batch_size
            )
        return replace(options, weight_decay=0.0) if phase == "decoder" else options
