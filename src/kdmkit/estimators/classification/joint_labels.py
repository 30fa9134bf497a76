"""Classifiers without a trend: a joint KDM of rows and labels, learned or with a component per row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from kdmkit.estimators.common.arrays import merge_rows, split_rows
from kdmkit.estimators.common.joint_estimator import build_module, is_built_in, mlp_decoder, start_phases
from kdmkit.estimators.common.leave_one_out import choose_sigma
from kdmkit.kernels import RBF
from kdmkit.nn import JointLayer, Predictor, Scaler, make_linear
from kdmkit.nn.layer import LayerOptions
from kdmkit.nn.predictor import dtype_of
from kdmkit.training import PhasedFit, Rows
from kdmkit.training.objectives import DecoderObjective, DenseObjective


def component_per_row(
    sigma: Any, x: Tensor, labels: Tensor, weights: Tensor | None, n_classes: int
) -> Predictor:
    """Every distinct pair of row and label as a component.

    Args:
        sigma: the bandwidth among standardised features, a rule, or `"auto"`.
    """
    scaler = Scaler.from_data(x, weights)
    rows, w = merge_rows(x, weights, labels)
    z, labels = scaler(x[rows]), labels[rows]
    rule = "loo" if isinstance(sigma, str) and sigma == "auto" else sigma
    # A first chunk may have one label, which says nothing about the bandwidth.
    sigma = choose_sigma(rule, z, w, labels if bool((labels != labels[0]).any()) else None)
    options: LayerOptions = {"dtype": torch.float64, "generator": torch.Generator()}
    layer = JointLayer(x.shape[1], n_classes, len(z), in_kernel=RBF(sigma), **options)
    layer.assign({"x": z, "y": nn.functional.one_hot(labels, n_classes)}, w.log())
    return Predictor.from_standardized(layer, {"x": scaler})


def fit_joint_labels(
    estimator: Any, x: Tensor, labels: Tensor, weights: Tensor | None, n_classes: int
) -> tuple[Predictor, dict[str, list[dict[str, float]]]]:
    """Fits an encoder, if any, the joint KDM of its latent vectors and labels, then a decoder, if any.

    The built-in encoder learns with a dense head that predicts labels and reconstructs rows: without the
    latter, latent vectors of novel rows fall among those of the known classes. Afterwards the encoder is
    fixed, and the layer learns p(z, y) with the label distributions that its components start with.

    Returns:
        The fitted model, and the histories of the phases.
    """
    scalers = estimator._input_scaler(x, weights)
    tensors = (estimator._training_inputs(x, scalers), labels)
    train, validation = split_rows(tensors, weights, estimator.validation_fraction, estimator._seed, labels)
    inputs, built_in = train.tensors[0], is_built_in(estimator.encoder)
    m = estimator._count_components(len(inputs), max(2 * n_classes, min(256, len(inputs) // 5)))
    phases = start_phases(
        estimator,
        inputs,
        train,
        validation,
        n_components=m,
        n_outputs=n_classes,
        wide=True,
        generative_weight=estimator._alpha(has_trend=False),
        noise=float(estimator.noise),
        head_epochs=int(estimator.head_epochs),
    )
    _pretrain(phases, inputs, reconstruct=built_in)
    _place_components(phases, estimator, phases.encode(inputs))
    phases.fit_head("head-before")
    if built_in:
        _fit_behind_fixed_encoder(phases)
    else:
        phases.fit_jointly()
    phases.fit_head("head-after")
    decoder = _fit_decoder(phases, estimator.decoder, inputs)
    encoder, decoder = (None if part is None else part.cpu() for part in (phases.encoder, decoder))
    layer = phases.layer.cpu()
    return Predictor.from_standardized(layer, scalers, encoder=encoder, decoder=decoder), phases.histories


def _place_components(phases: PhasedFit, estimator: Any, z: Tensor) -> None:
    """Puts components at the centres of each class's clusters."""
    layer, (_, labels), weights = phases.layer, phases.train.tensors, phases.train.weights
    sigma, generator = estimator._first_sigma("nearest"), estimator._torch_generator()
    layer.initialize(z, labels, method="kmeans", sigma=sigma, generator=generator)
    if weights is not None:
        # A cluster counts its rows; their class says what each of them weighs.
        mean = torch.bincount(labels, weights) / torch.bincount(labels)
        with torch.no_grad():
            layer.logits.add_(mean.log()[layer.components["y"].argmax(1)])


def _pretrain(phases: PhasedFit, x: Tensor, *, reconstruct: bool) -> None:
    """Trains the encoder with a dense head, and if `reconstruct` with a linear map back to rows."""
    if not reconstruct:
        phases.pretrain()
        return
    assert phases.encoder is not None
    assert phases.dense is not None
    back = make_linear(phases.layer.components["x"].shape[1], x.shape[1], phases.generator)
    phases.minimize(
        "pretraining", DenseObjective(phases.encoder, phases.dense, noise=phases.noise, reconstruct=back)
    )


def _fit_behind_fixed_encoder(phases: PhasedFit) -> None:
    # The encoder separates the classes of its training rows too well: label distributions that learned from
    # them would be too sure.
    labels = phases.layer.components["y"].requires_grad_(False)
    # Latent vectors cost nothing: larger batches are faster.
    options = phases.options
    changes = {"learning_rate": options.learning_rate, "batch_size": 2 * options.batch_size}
    phases.minimize("joint", phases.head_objective(), phases.latent_rows, **changes)
    labels.requires_grad_()


def _fit_decoder(phases: PhasedFit, parameter: Any, x: Tensor) -> nn.Module | None:
    """Trains a decoder to invert the encoder, which is fixed."""
    latent, shape = phases.layer.components["x"].shape[1], tuple(x.shape[1:])
    decoder = build_module(parameter, "decoder", lambda: mlp_decoder(latent, shape, phases.generator))
    if decoder is None:
        return None
    dtype = dtype_of(decoder)

    def decoder_rows(rows: Rows) -> Rows:
        return Rows((phases.encode(rows.tensors[0]).to(dtype), rows.tensors[0].to(dtype)), rows.weights)

    phases.minimize("decoder", DecoderObjective(decoder), decoder_rows, weight_decay=0.0)
    return decoder
