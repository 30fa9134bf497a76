"""The phases of the paper: encoder with a dense head, encoder and KDM, maximum likelihood, decoder."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from kdmkit.training import ConditionalObjective, Device, FitOptions, Precision, Rows, fit
from kdmlab.images.augment import Augment
from kdmlab.images.data import CLASSES, Pictures, pixels
from kdmlab.images.models import DenseModel, KDMModel, encode
from kdmlab.images.objectives import (
    Dense,
    Discriminative,
    Distillation,
    Reconstruction,
    distillation_targets,
)
from kdmlab.images.recipes import DecoderRecipe, Recipe
from kdmlab.images.vae import ConditionalVAE, NegativeELBO

# The size of batches of latent vectors over that of batches of images.
_WIDE = 4
# What tells the seeds of the phases of a run apart.
_SEEDS = {
    "pretraining": 1,
    "dense": 2,
    "joint": 3,
    "likelihood": 4,
    "decoder": 5,
    "vae": 6,
    "head-before": 7,
    "head-after": 8,
}
# Encoded images that the KDM's first components are chosen from.
_CANDIDATES = 20_000


@dataclass(frozen=True)
class Setting:
    """Settings that all phases of a run share."""

    recipe: Recipe
    seed: int
    device: Device
    augment: Augment | None = None

    @property
    def precision(self) -> Precision:
        return "bf16" if self.device == "cuda" else "no"

    def options(self, phase: str, rows: int, *, epochs: int, rate: float, batch_size: int) -> FitOptions:
        """Options of a phase: it trains to the end of its schedule and keeps averaged weights."""
        return FitOptions(
            max_epochs=epochs,
            batch_size=min(batch_size, rows),
            learning_rate=rate,
            weight_decay=self.recipe.weight_decay,
            patience=None,
            averaging=self.recipe.averaging,
            seed=100 * self.seed + _SEEDS[phase],
            device=self.device,
            precision=self.precision,
        )


class Latents(NamedTuple):
    """Latent vectors of images, and the standard deviations of noise on them while a decoder is trained."""

    z: Float[Tensor, "n e"]
    noise: Float[Tensor, "n e"]


def train_encoder(model: DenseModel, data: Pictures, setting: Setting) -> None:
    """Encoder and dense head, from the start."""
    _fit("pretraining", Dense(model, setting.recipe, setting.augment), _images(data), setting)


def train_dense(model: DenseModel, data: Pictures, setting: Setting) -> None:
    """The baseline: encoder and dense head go on for as long as the KDM is trained."""
    _fit("dense", Dense(model, setting.recipe, setting.augment), _images(data), setting)


def train_kdm(model: KDMModel, start: DenseModel, data: Pictures, setting: Setting) -> None:
    """Encoder and KDM together, and the KDM alone before and after; the dense head is the KDM's teacher.

    The learning rate that suits the encoder is too small for components. Alone they take a larger one, before
    the encoder gets gradients from them and when it has converged.
    """
    place_components(model, data, setting)
    _train_head("head-before", model, start, data, setting)
    objective = Discriminative(model, start, setting.recipe, setting.augment)
    _fit("joint", objective, _images(data), setting)
    _train_head("head-after", model, start, data, setting)


def place_components(model: KDMModel, data: Pictures, setting: Setting) -> None:
    """The KDM's first components: centres of clusters of encoded images."""
    x, y = data.x_train, data.y_train
    generator = torch.Generator().manual_seed(setting.seed)
    some = torch.randperm(len(y), generator=generator)[:_CANDIDATES].to(x.device)
    z = encode(model.encoder, x[some]).cpu()
    model.layer.initialize(z, y[some].cpu(), method="kmeans", generator=generator)
    kernel: Any = model.layer.kernel("x")
    kernel.sigma = setting.recipe.sigma_start * kernel.sigma.detach()


def train_likelihood(model: KDMModel, data: Pictures, setting: Setting) -> None:
    """Maximum likelihood of the joint KDM from its present weights, the encoder fixed."""
    rows = Rows((encode(model.encoder, data.x_train), data.y_train))
    _fit("likelihood", ConditionalObjective(None, model.layer, generative_weight=1.0), rows, setting)


def _train_head(phase: str, model: KDMModel, start: DenseModel, data: Pictures, setting: Setting) -> None:
    """The KDM alone, on latent vectors and on the targets that the dense head gives for them."""
    if not setting.recipe.head_epochs:
        return
    z = encode(model.encoder, data.x_train)
    with torch.no_grad():
        target = distillation_targets(start.head(z).float(), data.y_train, setting.recipe)
    _fit(phase, Distillation(model.layer), Rows((z, target)), setting)


def _images(data: Pictures) -> Rows:
    return Rows((data.x_train, data.y_train))


def _fit(phase: str, objective: nn.Module, rows: Rows, setting: Setting) -> None:
    recipe, wide = setting.recipe, _WIDE * setting.recipe.batch_size
    epochs, rate, batch_size = {
        "pretraining": (recipe.encoder_epochs, recipe.learning_rate, recipe.batch_size),
        "dense": (recipe.joint_epochs, recipe.joint_rate, recipe.batch_size),
        "joint": (recipe.joint_epochs, recipe.joint_rate, recipe.batch_size),
        "head-before": (recipe.head_epochs, recipe.head_rate, wide),
        "head-after": (recipe.head_epochs, recipe.head_rate, wide),
        "likelihood": (recipe.likelihood_epochs, recipe.likelihood_rate, wide),
    }[phase]
    options = setting.options(phase, len(rows), epochs=epochs, rate=rate, batch_size=batch_size)
    fit(objective, rows, options=options, description=phase)


def train_decoder(
    decoder: nn.Sequential,
    latents: Latents,
    encoder: nn.Sequential,
    data: Pictures,
    setting: Setting,
    decoder_recipe: DecoderRecipe,
) -> None:
    """A decoder of given latent vectors, the same way for those of a KDM and of a conditional VAE.

    Args:
        decoder: what is trained.
        latents: of the training images.
        encoder: gives the features to match.
        data: the images.
        setting: seed and device.
        decoder_recipe: the weights of the losses, and how long to train.
    """
    _start_at_mean_brightness(decoder, data)
    objective = Reconstruction(encoder, decoder, feature_weight=decoder_recipe.feature_weight)
    rows = Rows((data.x_train, latents.z, latents.noise))
    _fit_decoder("decoder", objective, rows, setting, decoder_recipe, decoder_recipe.epochs)


def kdm_latents(model: KDMModel, data: Pictures, latent_noise: float) -> Latents:
    """Encoded images; the noise is a part of the kernel's width, since draws are not encoded images."""
    z = encode(model.encoder, data.x_train)
    marginal = model.layer.joint().marginal("x")
    # All components have the same kernel, and so the same variance.
    variance = marginal.kernel.variance(marginal.components[:1]).squeeze(0).detach()
    return Latents(z, (latent_noise * variance.sqrt()).expand_as(z).contiguous())


@torch.no_grad()
def vae_latents(vae: ConditionalVAE, data: Pictures) -> Latents:
    """Means and standard deviations of the posterior, beside the label, which has no noise."""
    vae.eval()
    pairs = zip(data.x_train.split(2000), data.y_train.split(2000), strict=True)
    moments = [vae.moments(pixels(x), y) for x, y in pairs]
    mean, log_variance = (torch.cat(parts) for parts in zip(*moments, strict=True))
    label = functional.one_hot(data.y_train, CLASSES).to(mean)
    noise = torch.cat([(0.5 * log_variance).exp(), torch.zeros_like(label)], 1)
    return Latents(torch.cat([mean, label], 1), noise)


def train_vae(vae: ConditionalVAE, data: Pictures, setting: Setting, decoder_recipe: DecoderRecipe) -> None:
    """The conditional VAE by its evidence bound, for as many epochs as encoder and KDM."""
    _start_at_mean_brightness(vae.decoder, data)
    epochs = setting.recipe.encoder_epochs + setting.recipe.joint_epochs
    _fit_decoder(
        "vae", NegativeELBO(vae), Rows((data.x_train, data.y_train)), setting, decoder_recipe, epochs
    )


def _fit_decoder(
    phase: str, objective: nn.Module, rows: Rows, setting: Setting, decoder_recipe: DecoderRecipe, epochs: int
) -> None:
    rate, size = decoder_recipe.learning_rate, decoder_recipe.batch_size
    fit(objective, rows, options=setting.options(phase, len(rows), epochs=epochs, rate=rate, batch_size=size))


def _start_at_mean_brightness(decoder: nn.Sequential, data: Pictures) -> None:
    """Makes the first decoded images as bright as the mean image: from ½ dark ones saturate the sigmoid."""
    brightness = data.x_train.float().mean().item() / 255
    last = [layer for layer in decoder if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d)][-1]
    assert last.bias is not None
    nn.init.constant_(last.bias, math.log(brightness / (1 - brightness)))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Global random numbers from a seed, put back afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
