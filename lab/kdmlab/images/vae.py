"""A conditional variational auto-encoder with the paper's encoder and decoder, for comparison."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from kdmlab.images.architectures import Shape, paper_decoder, paper_encoder
from kdmlab.images.data import CLASSES, pixels


class ConditionalVAE(nn.Module):
    """q(z|x, y) from the encoder's output and the label; p(x|z, y) from the decoder of both.

    Args:
        shape: of the images.
        latent: the dimension of z.
    """

    replayable = True

    def __init__(self, shape: Shape, latent: int) -> None:
        super().__init__()
        self.latent = latent
        self.encoder = paper_encoder(shape, latent)
        self.posterior = nn.Linear(latent + CLASSES, 2 * latent)
        self.decoder = paper_decoder(shape, latent + CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of the decoded image of one draw from q, its mean and its log-variance."""
        mean, log_variance = self.moments(x, y)
        z = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
        return self._logits(z, y), mean, log_variance

    def moments(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of q(z|x, y)."""
        label = functional.one_hot(y, CLASSES)
        mean, log_variance = self.posterior(torch.cat([self.encoder(x), label], -1)).float().chunk(2, -1)
        return mean, log_variance

    def _logits(self, z: Float[Tensor, "n e"], y: Tensor) -> Float[Tensor, "n c s s"]:
        """Before the decoder's last layer, the sigmoid."""
        logits: Tensor = self.decoder[:-1](torch.cat([z, functional.one_hot(y, CLASSES)], -1))
        return logits.float()


class NegativeELBO(nn.Module):
    """The negative evidence lower bound per pixel, with the customary Bernoulli likelihood.

    With a Gaussian likelihood of the best variance for the batch (σ-VAE) the latent vector determines the
    image, the label is ignored, and draws from the prior are hardly recognised.
    """

    replayable = True

    def __init__(self, vae: ConditionalVAE) -> None:
        super().__init__()
        self.vae = vae

    def forward(self, x: Tensor, y: Tensor) -> Float[Tensor, " n"]:
        image = pixels(x)
        logits, mean, log_variance = self.vae(image, y)
        loss = functional.binary_cross_entropy_with_logits(logits, image, reduction="none").flatten(1)
        kl = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1)
        return loss.mean(1) + kl / loss.shape[1]
