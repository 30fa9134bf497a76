"""What the phases minimise: modules that map a batch to one loss per image."""

from __future__ import annotations

from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from kdmkit.experiments.images.architectures import features
from kdmkit.experiments.images.augment import Augment
from kdmkit.experiments.images.data import CLASSES, pixels
from kdmkit.experiments.images.models import DenseModel, KDMModel
from kdmkit.nn import JointLayer
from kdmkit.training import cross_entropy, joint_nll


class Dense(nn.Module):
    """Cross-entropy of encoder and dense head against smoothed labels."""

    def __init__(self, model: DenseModel, smoothing: float, augment: Augment | None) -> None:
        super().__init__()
        self.model, self.smoothing, self.augment = model, smoothing, augment

    def forward(self, x: Tensor, y: Tensor) -> Float[Tensor, " n"]:
        logits = self.model(_varied(x, self.augment, self.training))
        return functional.cross_entropy(logits, y, reduction="none", label_smoothing=self.smoothing)


class Discriminative(nn.Module):
    """−Σ_i t_i log p(i|x) of encoder and KDM against smoothed labels t."""

    def __init__(self, model: KDMModel, smoothing: float, augment: Augment | None) -> None:
        super().__init__()
        self.model, self.smoothing, self.augment = model, smoothing, augment

    def forward(self, x: Tensor, y: Tensor) -> Float[Tensor, " n"]:
        rho = self.model(_varied(x, self.augment, self.training))
        target = functional.one_hot(y, CLASSES) * (1 - self.smoothing) + self.smoothing / CLASSES
        return cross_entropy(rho, target.to(rho.components.dtype))

    def exempt_from_decay(self, name: str) -> bool:
        return name.startswith("model.layer.")


class Likelihood(nn.Module):
    """−log p(z, y), the encoder fixed."""

    def __init__(self, layer: JointLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, z: Tensor, y: Tensor) -> Float[Tensor, " n"]:
        return joint_nll(self.layer.joint(), x=z, y=y)


class Reconstruction(nn.Module):
    """The distance of an image from its decoded latent vector, in pixels and in the encoder's features.

    Pixels alone are matched best by blurred images, which nobody takes for anything. Each distance is
    relative to the mean square of what is to be matched, so that the parts are comparable.

    Args:
        encoder: fixed, in evaluation mode.
        decoder: what is trained.
        feature_weight: of the features beside the pixels.
        noise: standard deviation of noise on latent vectors, for draws do not fall on encoded images.
    """

    noise: Tensor

    def __init__(
        self, encoder: nn.Sequential, decoder: nn.Sequential, feature_weight: float, noise: Tensor
    ) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder.requires_grad_(False), decoder
        self.feature_weight = feature_weight
        self.register_buffer("noise", noise)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.encoder.eval()
        return self

    def forward(self, x: Tensor, z: Tensor) -> Float[Tensor, " n"]:
        image = pixels(x)
        if self.training:
            z = z + self.noise * torch.randn_like(z)
        made = self.decoder(z)
        loss = _relative(made, image, image.detach() - image.mean(0))
        if self.feature_weight:
            with torch.no_grad():
                wanted = features(self.encoder, image)
            pairs = zip(features(self.encoder, made), wanted, strict=True)
            distances = [_relative(found, target, target) for found, target in pairs]
            loss = loss + self.feature_weight * torch.stack(distances).mean(0)
        return loss


def _relative(found: Tensor, wanted: Tensor, size: Tensor) -> Float[Tensor, " n"]:
    """Squared distances of rows, over the mean square of `size`."""
    return (found - wanted).float().square().flatten(1).mean(1) / size.float().square().mean()


def _varied(x: Tensor, augment: Augment | None, training: bool) -> Tensor:
    return augment(pixels(x)) if augment is not None and training else x
