"""Objectives of the phases: modules that map a batch to one loss per image."""

from __future__ import annotations

from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from kdmkit.nn import JointLayer
from kdmkit.training import cross_entropy
from kdmlab.images.architectures import features
from kdmlab.images.augment import Augment
from kdmlab.images.data import CLASSES, pixels
from kdmlab.images.models import LAYOUT_FACTOR, DenseModel, KDMModel
from kdmlab.images.recipes import Recipe


class Dense(nn.Module):
    """Cross-entropy of encoder and dense head against smoothed labels, plus the loss of the layout."""

    replayable = True

    def __init__(self, model: DenseModel, recipe: Recipe, augment: Augment | None) -> None:
        super().__init__()
        self.model, self.recipe, self.augment = model, recipe, augment

    def forward(self, x: Tensor, y: Tensor) -> Float[Tensor, " n"]:
        image = pixels(_augmented(x, self.augment, self.training))
        z = self.model.encoder(image).float()
        smoothing = self.recipe.smoothing
        losses = functional.cross_entropy(
            self.model.head(z).float(), y, reduction="none", label_smoothing=smoothing
        )
        return losses + _layout_loss(self.model.layout, z, image, self.recipe)


class Discriminative(nn.Module):
    """−Σ_i t_i log p(i|x) of encoder and KDM, plus the losses of the dense head and of the layout.

    The targets t are `distillation_targets`: the dense head is the KDM's teacher. Where the recipe has none,
    they are the smoothed labels, and the dense head is not used.

    Args:
        model: encoder and KDM.
        start: the model that the encoder was pretrained in; only its dense head and layout are used.
        recipe: `smoothing`, `teaching`, `head_weight` and `layout_weight`.
        augment: random changes of the images.
    """

    replayable = True

    def __init__(self, model: KDMModel, start: DenseModel, recipe: Recipe, augment: Augment | None) -> None:
        super().__init__()
        self.model, self.recipe, self.augment = model, recipe, augment
        self.head, self.layout = start.head, start.layout

    def forward(self, x: Tensor, y: Tensor) -> Float[Tensor, " n"]:
        image = pixels(_augmented(x, self.augment, self.training))
        z = self.model.encoder(image).float()
        rho = self.model.layer(z)
        layout = _layout_loss(self.layout, z, image, self.recipe)
        if not self.recipe.has_teacher:
            return cross_entropy(rho, smoothed(y, self.recipe)) + layout
        logits = self.head(z).float()
        losses = cross_entropy(rho, distillation_targets(logits, y, self.recipe))
        smoothing = self.recipe.smoothing
        dense = functional.cross_entropy(logits, y, reduction="none", label_smoothing=smoothing)
        return losses + self.recipe.head_weight * dense + layout


class Distillation(nn.Module):
    """−Σ_i t_i log p(i|z) of the KDM alone, for given targets t."""

    replayable = True

    def __init__(self, layer: JointLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, z: Tensor, target: Tensor) -> Float[Tensor, " n"]:
        return cross_entropy(self.layer(z), target)


def distillation_targets(logits: Float[Tensor, "n k"], y: Tensor, recipe: Recipe) -> Float[Tensor, "n k"]:
    """t = (1 − λ)·(smoothed label) + λ·softmax(logits), with λ = `recipe.teaching` and the head's logits."""
    return torch.lerp(smoothed(y, recipe), logits.detach().softmax(-1), recipe.teaching)


def smoothed(y: Tensor, recipe: Recipe) -> Float[Tensor, "n k"]:
    """Labels as probabilities: 1 − s of the label plus s/k of every class, with s = `recipe.smoothing`."""
    return functional.one_hot(y, CLASSES) * (1 - recipe.smoothing) + recipe.smoothing / CLASSES


class Reconstruction(nn.Module):
    """The error of a decoded latent vector: in pixels, and in the features of an encoder.

    Blurred images have the smallest error in pixels. So features are matched as well. Each error is divided
    by the mean square of its target, which makes the parts comparable.

    Args:
        encoder: fixed, in evaluation mode.
        decoder: what is trained.
        feature_weight: weight of the features; that of the pixels is 1.
    """

    replayable = True

    def __init__(self, encoder: nn.Sequential, decoder: nn.Sequential, *, feature_weight: float) -> None:
        super().__init__()
        self.encoder = encoder.requires_grad_(False)
        self.decoder, self.feature_weight = decoder, feature_weight

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.encoder.eval()
        return self

    def forward(self, x: Tensor, z: Tensor, noise: Tensor) -> Float[Tensor, " n"]:
        """The loss of images, their latent vectors, and the standard deviations of noise on them."""
        image = pixels(x)
        if self.training:
            z = z + noise * torch.randn_like(z)
        made = self.decoder(z)
        loss = _relative(made, image, image - image.mean(0))
        if self.feature_weight:
            loss = loss + self.feature_weight * self._feature_loss(made, image)
        return loss

    def _feature_loss(self, made: Tensor, image: Tensor) -> Float[Tensor, " n"]:
        with torch.no_grad():
            wanted = features(self.encoder, image)
        pairs = zip(features(self.encoder, made), wanted, strict=True)
        return torch.stack([_relative(drawn, target, target) for drawn, target in pairs]).mean(0)


def _layout_loss(layout: nn.Module, z: Tensor, image: Tensor, recipe: Recipe) -> Tensor | float:
    """The share of the small image's variance that a linear map of z does not explain, weighted."""
    if not recipe.layout_weight:
        return 0.0
    small = functional.avg_pool2d(image, LAYOUT_FACTOR).flatten(1)
    return recipe.layout_weight * _relative(layout(z), small, small - small.mean(0))


def _relative(drawn: Tensor, wanted: Tensor, size: Tensor) -> Float[Tensor, " n"]:
    """Squared distances of rows, over the mean square of `size`."""
    return (drawn - wanted).float().square().flatten(1).mean(1) / size.float().square().mean()


def _augmented(x: Tensor, augment: Augment | None, training: bool) -> Tensor:
    return augment(pixels(x)) if augment is not None and training else x
