"""An encoder with a head: dense, or a joint KDM of latent vector and label."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kdmkit import KDM
from kdmkit.nn import JointLayer
from kdmlab.images.architectures import Shape, dense_head, paper_encoder
from kdmlab.images.data import CLASSES, pixels
from kdmlab.images.recipes import Encoder, Recipe
from kdmlab.images.residual import residual_encoder

#: The layout of an image is the image made smaller by this factor.
LAYOUT_FACTOR = 2
# Images per forward pass without gradients.
_ROWS = 2000


class DenseModel(nn.Module):
    """The baseline, Enc+Dense; its head has as many parameters as the KDM, to within a hidden unit."""

    replayable = True

    def __init__(self, encoder: nn.Sequential, head: nn.Module, layout: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head
        #: A linear map from the latent vector to the layout; it makes the encoder keep what a decoder needs.
        self.layout = layout

    def forward(self, x: Tensor) -> Float[Tensor, "n k"]:
        """Logits."""
        return self.head(self.encoder(pixels(x))).float()

    def log_probs(self, x: Tensor) -> Float[Tensor, "n k"]:
        return self(x).log_softmax(-1)


class KDMModel(nn.Module):
    """Encoder and joint KDM: p(y|x) in one direction, latent vectors of a label in the other."""

    replayable = True

    def __init__(self, encoder: nn.Sequential, layer: JointLayer) -> None:
        super().__init__()
        self.encoder, self.layer = encoder, layer

    def forward(self, x: Tensor) -> KDM:
        rho: KDM = self.layer(self.encoder(pixels(x)).float())
        return rho

    def log_probs(self, x: Tensor) -> Float[Tensor, "n k"]:
        return self(x).logits

    def log_density(self, x: Tensor) -> Float[Tensor, " n"]:
        """log p(z) of encoded images: low for images unlike those of the training."""
        return self.layer.joint().marginal("x").log_prob(self.encoder(pixels(x)).float())

    def latents(
        self,
        n: int,
        probs: Float[Tensor, " k"],
        *,
        spread: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "n e"]:
        """Draws of z given a distribution over labels: inference from y to z in the joint KDM."""
        with torch.no_grad():
            rho = self.layer.reverse(KDM.from_probs(probs), target="x")
            rho = rho.with_kernel(rho.kernel.scaled(spread))
            drawn: Tensor = rho.sample((n,), generator=generator)
        return drawn


def make_encoder(kind: Encoder, shape: Shape, recipe: Recipe) -> nn.Sequential:
    if kind == "paper":
        return paper_encoder(shape, recipe.latent)
    return residual_encoder(shape, recipe.latent, recipe.width)


def make_layer(recipe: Recipe) -> JointLayer:
    return JointLayer(recipe.latent, CLASSES, recipe.components)


def make_head(recipe: Recipe) -> nn.Sequential:
    like = replace(recipe, components=recipe.dense_components or recipe.components)
    return dense_head(recipe.latent, CLASSES, count_parameters(make_layer(like)))


def make_layout(shape: Shape, recipe: Recipe) -> nn.Linear:
    return nn.Linear(recipe.latent, shape.channels * (shape.size // LAYOUT_FACTOR) ** 2)


def count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def in_parts(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A function of many rows, without gradients, in blocks."""
    with torch.no_grad():
        return torch.cat([function(part) for part in x.split(_ROWS)])


def encode(encoder: nn.Module, x: Tensor) -> Float[Tensor, "n e"]:
    """Latent vectors of images, as in evaluation: without dropout."""
    encoder.eval()
    return in_parts(lambda part: encoder(pixels(part)).float(), x)
