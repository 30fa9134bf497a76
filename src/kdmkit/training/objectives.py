"""Objectives of the phases of a fit: modules that map the tensors of a batch to one loss per row."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from kdmkit._core.checks import apply, bad_argument
from kdmkit.nn import DrawingModule, JointLayer
from kdmkit.nn.scaler import soft_clip
from kdmkit.training.losses import hybrid_nll, joint_nll, squared_error


class DenseObjective(DrawingModule):
    """The loss of dense(encoder(x)): cross-entropy for integer targets, else the mean squared error.

    Args:
        encoder: from x to latent vectors.
        dense: from latent vectors to logits or to predicted targets.
        noise: standard deviation of Gaussian noise on x while training.
        reconstruct: from latent vectors back to x, standardised and softly clipped. Its mean squared error is
            added: latent vectors keep what the targets do not need, and so tell novel rows.

    >>> import torch
    >>> objective = DenseObjective(nn.Linear(4, 2), nn.Linear(2, 3))
    >>> objective(torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])).shape
    torch.Size([5])
    """

    def __init__(
        self,
        encoder: nn.Module,
        dense: nn.Module,
        *,
        noise: float = 0.0,
        reconstruct: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.encoder, self.dense, self.noise, self.reconstruct = encoder, dense, noise, reconstruct

    def forward(self, x: Tensor, y: Tensor) -> Float[Tensor, " n"]:
        z = self.encoder(x + self.noise * self.normal(x) if self.training and self.noise else x).float()
        outputs = self.dense(z)
        if y.is_floating_point():
            losses = (outputs - y).square().mean(-1)
        else:
            losses = nn.functional.cross_entropy(outputs, y, reduction="none")
        if self.reconstruct is not None:
            losses = losses + (self.reconstruct(z) - soft_clip(x)).flatten(1).square().mean(-1)
        return losses


class NoisyEncoder(DrawingModule):
    """encoder(x) in float32; without an encoder x, in training with Gaussian noise.

    Args:
        encoder: from x to latent vectors, or None.
        noise: the standard deviation of the noise.
    """

    def __init__(self, encoder: nn.Module | None, noise: float) -> None:
        super().__init__()
        self.encoder, self.noise = encoder, noise

    def latent(self, x: Tensor) -> Tensor:
        """z = encoder(x); without an encoder x itself, with noise while training."""
        if self.encoder is not None:
            z: Tensor = self.encoder(x)
            return z.float()
        return x + self.noise * self.normal(x) if self.training and self.noise else x


class ConditionalObjective(NoisyEncoder):
    """−log p(y|z) − α·log p(z) with z = encoder(x), or the squared error in place of the first term.

    Args:
        encoder: from x to z; None means z = x.
        layer: the joint KDM of z and y.
        generative_weight: α. Behind an encoder log p(z) has no gradient with respect to z.
        noise: standard deviation of Gaussian noise on x while training, only without an encoder. It keeps
            components that sit on training rows from fitting these rows alone.
        loss: `"nll"`, or `"mse"` for the squared error.

    >>> import torch, kdmkit as kdm
    >>> layer = kdm.nn.JointLayer(2, 3, n_components=4)
    >>> x, y = torch.randn(5, 2), torch.tensor([0, 1, 2, 0, 1])
    >>> ConditionalObjective(None, layer)(x, y).shape
    torch.Size([5])
    """

    def __init__(
        self,
        encoder: nn.Module | None,
        layer: JointLayer,
        *,
        generative_weight: float = 0.0,
        noise: float = 0.0,
        loss: Literal["nll", "mse"] = "nll",
    ) -> None:
        super().__init__(encoder, noise)
        self.layer, self.generative_weight, self.loss = layer, generative_weight, loss

    def forward(self, x: Tensor, y: Tensor) -> Float[Tensor, " n"]:
        z = self.latent(x)
        alpha, encodes = self.generative_weight, self.encoder is not None
        if self.loss == "nll":
            return hybrid_nll(self.layer, z, y, generative_weight=alpha, detach_input=encodes)
        joint = self.layer.joint(validate_args=False)
        losses = squared_error(joint.infer(x=z, target="y"), y)
        if alpha:
            losses = losses - alpha * joint.marginal("x").log_prob(z.detach())
        return losses


class JointObjective(nn.Module):
    """−log p(z, y) of a joint KDM.

    Args:
        layer: the joint KDM.

    >>> import torch, kdmkit as kdm
    >>> layer = kdm.nn.JointLayer(2, 3, n_components=4)
    >>> x, y = torch.randn(5, 2), torch.tensor([0, 1, 2, 0, 1])
    >>> JointObjective(layer)(x, y).shape
    torch.Size([5])
    """

    def __init__(self, layer: JointLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, z: Tensor, y: Tensor) -> Float[Tensor, " n"]:
        return joint_nll(self.layer.joint(validate_args=False), x=z, y=y)


class DecoderObjective(nn.Module):
    """The squared error of decoded latent vectors, mean over the entries of x.

    Args:
        decoder: from latent vectors to x.

    >>> import torch
    >>> DecoderObjective(nn.Linear(2, 3))(torch.randn(5, 2), torch.randn(5, 3)).shape
    torch.Size([5])
    """

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, z: Tensor, x: Tensor) -> Float[Tensor, " n"]:
        decoded = apply("decoder", self.decoder, z)
        if decoded.shape != x.shape:
            raise ValueError(
                bad_argument("decoder", f"outputs of shape {tuple(x.shape)}", tuple(decoded.shape))
            )
        return (decoded - x).flatten(1).square().mean(-1)
