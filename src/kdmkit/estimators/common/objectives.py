"""What the phases of a fit minimise, one loss per row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument
from kdmkit.nn import JointLayer
from kdmkit.training import hybrid_nll, squared_error


class Pretraining(nn.Module):
    """An encoder with a dense head: what makes its latent space worth putting components into.

    Args:
        loss: of the head's outputs and the targets, per row.
    """

    def __init__(self, encoder: nn.Module, head: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.encoder, self.head, self.loss = encoder, head, loss

    def forward(self, x: Tensor, y: Tensor) -> Float[Tensor, " n"]:
        return self.loss(self.head(self.encoder(x).float()), y)


class Conditional(nn.Module):
    """−log p(y|x) − α·log p(x), or the squared error in place of the first term, per row.

    Args:
        generative_weight: α. Behind an encoder its part moves the KDM only.
        noise: standard deviation of noise added to inputs while training, in units of the scaled features:
            components that sit on samples must not win by sitting there.
    """

    def __init__(
        self,
        encoder: nn.Module | None,
        layer: JointLayer,
        *,
        generative_weight: float,
        noise: float,
        loss: Literal["nll", "mse"] = "nll",
    ) -> None:
        super().__init__()
        self.encoder, self.layer = encoder, layer
        self.generative_weight, self.noise, self.loss = generative_weight, noise, loss

    def forward(self, x: Tensor, y: Tensor) -> Float[Tensor, " n"]:
        z = self._latent(x)
        alpha, encodes = self.generative_weight, self.encoder is not None
        if self.loss == "nll":
            return hybrid_nll(self.layer, z, y, generative_weight=alpha, detach_input=encodes)
        losses = squared_error(self.layer(z), y)
        if alpha:
            losses = losses - alpha * self.layer.joint().marginal("x").log_prob(z.detach())
        return losses

    def _latent(self, x: Tensor) -> Tensor:
        if self.encoder is not None:
            z: Tensor = self.encoder(x)
            return z.float()
        return x + self.noise * torch.randn_like(x) if self.training and self.noise else x

    def exempt_from_decay(self, name: str) -> bool:
        """Components, weights and bandwidths have no reason to shrink."""
        return name.startswith("layer.")


class Reconstruction(nn.Module):
    """A decoder's squared error on what the encoder, fixed by now, saw."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, z: Tensor, x: Tensor) -> Float[Tensor, " n"]:
        decoded = self.decoder(z)
        if decoded.shape != x.shape:
            raise ValueError(
                bad_argument("decoder", f"outputs of shape {tuple(x.shape)}", tuple(decoded.shape))
            )
        return (decoded - x).flatten(1).square().mean(-1)
