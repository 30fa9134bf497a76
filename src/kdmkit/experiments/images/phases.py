"""The paper's phases: encoder with a dense head, KDM and encoder, maximum likelihood, decoder."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kdmkit.experiments.images.augment import AUGMENTS, Augment
from kdmkit.experiments.images.data import Pictures
from kdmkit.experiments.images.models import DenseModel, KDMModel, encode
from kdmkit.experiments.images.objectives import (
    Dense,
    Discriminative,
    Likelihood,
    Reconstruction,
    Taught,
    lesson,
)
from kdmkit.experiments.images.recipes import Drawing, Recipe
from kdmkit.experiments.images.vae import ConditionalVAE, Evidence
from kdmkit.kernels import RBF
from kdmkit.training import Device, FitOptions, Precision, Rows, fit

# Latent vectors are small: more of them at a time.
_WIDE = 4
# Encoded images among which the KDM's first components are looked for.
_CANDIDATES = 20_000


@dataclass(frozen=True)
class Setting:
    """What all phases of a run share."""

    recipe: Recipe
    seed: int
    device: Device
    augment: Augment | None = None

    @property
    def precision(self) -> Precision:
        return "bf16" if self.device == "cuda" else "no"


def train_encoder(model: DenseModel, data: Pictures, setting: Setting) -> None:
    """Encoder and dense head, from the start."""
    recipe = setting.recipe
    objective = Dense(model, recipe, setting.augment)
    _fit(objective, (data.x_train, data.y_train), setting, 1, recipe.encoder_epochs, recipe.learning_rate)


def train_dense(model: DenseModel, data: Pictures, setting: Setting) -> None:
    """The baseline goes on with its dense head for as long as the KDM is trained."""
    recipe = setting.recipe
    objective = Dense(model, recipe, setting.augment)
    _fit(objective, (data.x_train, data.y_train), setting, 2, recipe.joint_epochs, recipe.joint_rate)


def train_kdm(model: KDMModel, start: DenseModel, data: Pictures, setting: Setting) -> None:
    """Components from encoded images; encoder and KDM together; before and after, the KDM alone.

    A rate that is right for the encoder is too small for components: alone they take a larger one, before the
    encoder listens to them and when it has come to rest.
    """
    recipe = setting.recipe
    generator = torch.Generator().manual_seed(setting.seed)
    some = torch.randperm(len(data.y_train), generator=generator)[:_CANDIDATES].to(data.x_train.device)
    z = encode(model.encoder, data.x_train[some]).cpu()
    model.layer.initialize(z, data.y_train[some].cpu(), method="kmeans", generator=generator)
    _teach(model, start.head, data, setting, 7)
    objective = Discriminative(model, start, recipe, setting.augment)
    _fit(objective, (data.x_train, data.y_train), setting, 3, recipe.joint_epochs, recipe.joint_rate)
    _teach(model, start.head, data, setting, 8)


def _teach(model: KDMModel, head: nn.Module, data: Pictures, setting: Setting, phase: int) -> None:
    """The KDM alone, on encoded images."""
    recipe = setting.recipe
    z = encode(model.encoder, data.x_train)
    with torch.no_grad():
        target = lesson(head(z).float(), data.y_train, recipe)
    size = _WIDE * recipe.batch_size
    _fit(Taught(model.layer), (z, target), setting, phase, recipe.head_epochs, recipe.head_rate, size)


def train_likelihood(model: KDMModel, data: Pictures, setting: Setting) -> None:
    """Maximum likelihood of the joint KDM from where it is, the encoder fixed."""
    recipe = setting.recipe
    rows = (encode(model.encoder, data.x_train), data.y_train)
    _fit(
        Likelihood(model.layer),
        rows,
        setting,
        4,
        recipe.likelihood_epochs,
        recipe.likelihood_rate,
        _WIDE * recipe.batch_size,
    )


def train_decoder(
    model: KDMModel,
    decoder: nn.Sequential,
    critics: Sequence[DenseModel],
    data: Pictures,
    setting: Setting,
    drawing: Drawing,
) -> None:
    """The decoder of an auto-encoder whose encoder is fixed."""
    _begin(decoder, data)
    kernel = model.layer.kernels["x"]
    assert isinstance(kernel, RBF)
    objective = Reconstruction(
        model.encoder,
        decoder,
        critics,
        AUGMENTS[data.name],
        feature_weight=drawing.feature_weight,
        critic_weight=drawing.critic_weight,
        noise=drawing.latent_noise * kernel.std.detach(),
    )
    rows = (data.x_train, encode(model.encoder, data.x_train), data.y_train)
    _fit(objective, rows, setting, 5, drawing.epochs, drawing.learning_rate, drawing.batch_size)


def train_vae(vae: ConditionalVAE, data: Pictures, setting: Setting, drawing: Drawing) -> None:
    """The conditional VAE, for as many epochs as encoder, KDM and decoder together."""
    _begin(vae.decoder, data)
    rows = (data.x_train, data.y_train)
    epochs = setting.recipe.encoder_epochs + setting.recipe.joint_epochs + drawing.epochs
    _fit(Evidence(vae), rows, setting, 6, epochs, drawing.learning_rate, drawing.batch_size)


def _begin(decoder: nn.Sequential, data: Pictures) -> None:
    """First images as bright as the mean of all. From ½, black is so near that sigmoids saturate there."""
    brightness = data.x_train.float().mean().item() / 255
    last = [layer for layer in decoder if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d)][-1]
    assert last.bias is not None
    nn.init.constant_(last.bias, math.log(brightness / (1 - brightness)))


def _fit(
    objective: nn.Module,
    rows: tuple[Tensor, ...],
    setting: Setting,
    phase: int,
    epochs: int,
    rate: float,
    batch_size: int | None = None,
) -> None:
    """Trains to the end of the schedule; the averaged weights are what is left."""
    recipe = setting.recipe
    size = min(batch_size or recipe.batch_size, len(rows[0]))
    options = FitOptions(
        max_epochs=epochs,
        batch_size=size,
        learning_rate=rate,
        weight_decay=recipe.weight_decay,
        patience=None,
        averaging=recipe.averaging,
        seed=100 * setting.seed + phase,
        device=setting.device,
        precision=setting.precision,
    )
    fit(objective, Rows(rows), options=options)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Global random numbers from a seed, put back afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
