"""Losses, one value per row: functions of distributions, and modules that the training loop minimises.

The loop applies sample weights and takes the mean.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kdmkit._core.checks import (
    apply,
    as_tensor,
    bad_argument,
    check_event,
    check_instance,
    check_number,
    check_weights,
)
from kdmkit._core.logspace import safe_log
from kdmkit.distributions import KDM, JointKDM
from kdmkit.nn import DrawingModule, JointLayer
from kdmkit.nn.scaler import soft_clip


def nll(rho: KDM, value: Any) -> Float[Tensor, "*batch"]:
    """−log f̂(value): of a density, or of y given x if `rho` was inferred from x.

    Args:
        rho: distributions of batch shape `(*batch,)`.
        value: events or labels, one per element.

    Returns:
        One loss per element of the batch.

    >>> import kdmkit as kdm
    >>> nll(kdm.KDM.from_probs(torch.tensor([0.5, 0.5])), torch.tensor([0, 1]))
    tensor([0.6931, 0.6931])
    """
    check_instance("rho", rho, KDM, "a KDM")
    return -rho.log_prob(value)


def joint_nll(rho: JointKDM, **values: Any) -> Float[Tensor, "*batch"]:
    """−log f̂(x, y, …): the paper's Algorithm 2.

    Args:
        rho: the joint KDM.
        values: x, y, … by variable, with one batch shape.

    Returns:
        One loss per row.

    >>> import kdmkit as kdm
    >>> kernels = {"x": kdm.RBF(1.0), "y": kdm.Cosine()}
    >>> rho = kdm.JointKDM({"x": torch.zeros(1, 1), "y": torch.eye(2)[:1]}, None, kernels)
    >>> joint_nll(rho, x=torch.zeros(1), y=torch.tensor(0))  # ½·log π
    tensor(0.5724)
    """
    check_instance("rho", rho, JointKDM, "a JointKDM")
    return -rho.log_prob(**values)


def cross_entropy(rho: KDM, probs: Any) -> Float[Tensor, "*batch"]:
    """−Σ_i t_i log π_i against a distribution t over labels; labels with t_i = 0 do not count.

    The π_i are sums of probabilities: if one underflows to 0 the loss is infinite. For hard labels use `nll`,
    which stays in log space.

    Args:
        rho: discrete distributions of batch shape `(*batch,)`.
        probs: t, of shape `(*batch, n)`.

    Returns:
        One loss per element of the batch, ≥ 0.

    >>> import kdmkit as kdm
    >>> cross_entropy(kdm.KDM.from_probs(torch.tensor([0.5, 0.5])), torch.tensor([0.2, 0.8]))
    tensor(0.6931)
    """
    check_instance("rho", rho, KDM, "a KDM")
    predicted = rho.probs
    probs = as_tensor("probs", probs, like=predicted)
    check_event("probs", probs, predicted.shape[-1:])
    if rho._validate_args:
        check_weights("probs", probs)
    log_predicted = torch.where(probs > 0, safe_log(predicted), torch.zeros_like(predicted))
    return -(probs * log_predicted).sum(-1)


def squared_error(rho: KDM, value: Any) -> Float[Tensor, "*batch"]:
    """The mean over dimensions of (E[y] − y)², for values y of shape `(*batch, d)`.

    Args:
        rho: continuous distributions of batch shape `(*batch,)`.
        value: y.

    Returns:
        One loss per element of the batch.

    >>> import kdmkit as kdm
    >>> squared_error(kdm.KDM(torch.zeros(1, 1), None, kdm.RBF(1.0)), torch.tensor([2.0]))
    tensor(4.)
    """
    check_instance("rho", rho, KDM, "a KDM")
    value = as_tensor("value", value, like=rho.components)
    check_event("value", value, rho.event_shape)
    return (rho.mean - value).square().mean(-1)


def hybrid_nll(
    layer: JointLayer, x: Any, y: Any, *, generative_weight: float, detach_input: bool = False
) -> Float[Tensor, "*batch"]:
    """−log p(y|x) − α·log p(x): discriminative at α = 0, maximum likelihood of the joint at α = 1.

    Args:
        layer: the joint KDM.
        x: inputs, `(*batch, d)`.
        y: targets, `(*batch,)` for labels.
        generative_weight: α ≥ 0.
        detach_input: whether log p(x) has no gradient with respect to x. Behind a trainable encoder it must
            be True: by shrinking x the encoder could make log p(x) arbitrarily large.

    Returns:
        One loss per row.

    >>> import kdmkit as kdm
    >>> layer = kdm.nn.JointLayer(2, 3, 5)
    >>> x, y = torch.randn(4, 2), torch.tensor([0, 1, 2, 0])
    >>> together = hybrid_nll(layer, x, y, generative_weight=1.0)
    >>> torch.allclose(together, joint_nll(layer.joint(), x=x, y=y), atol=1e-5)
    True
    """
    check_number("generative_weight", generative_weight, "a finite number ≥ 0")
    # Values are not checked: if training diverges, the loop says so.
    joint = layer.joint(validate_args=False)
    if generative_weight == 1 and not detach_input:
        return -joint.log_prob(x=x, y=y)
    loss = -joint.infer(x=x, target="y").log_prob(y)
    if generative_weight == 0:
        return loss
    if detach_input:
        x = as_tensor("x", x).detach()
    return loss - generative_weight * joint.marginal("x").log_prob(x)


class ConditionalObjective(DrawingModule):
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
        super().__init__()
        self.encoder, self.layer, self.noise = encoder, layer, noise
        self.generative_weight, self.loss = generative_weight, loss

    def forward(self, x: Tensor, y: Tensor) -> Float[Tensor, " n"]:
        alpha, encodes = self.generative_weight, self.encoder is not None
        z = self.noisy(x, self.noise) if self.encoder is None else self.encoder(x).float()
        if self.loss == "nll":
            return hybrid_nll(self.layer, z, y, generative_weight=alpha, detach_input=encodes)
        joint = self.layer.joint(validate_args=False)
        losses = squared_error(joint.infer(x=z, target="y"), y)
        if alpha:
            losses = losses - alpha * joint.marginal("x").log_prob(z.detach())
        return losses


class DenseObjective(DrawingModule):
    """The loss of dense(encoder(x)): cross-entropy for integer targets, else the mean squared error.

    Args:
        encoder: from x to latent vectors.
        dense: from latent vectors to logits or to predicted targets.
        noise: standard deviation of Gaussian noise on x while training.
        reconstruct: from latent vectors back to x, standardised and softly clipped. Its mean squared error is
            added: latent vectors keep information that the targets do not need, and so show novel rows.

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
        z = self.encoder(self.noisy(x, self.noise)).float()
        outputs = self.dense(z)
        if y.is_floating_point():
            losses = (outputs - y).square().mean(-1)
        else:
            losses = nn.functional.cross_entropy(outputs, y, reduction="none")
        if self.reconstruct is not None:
            losses = losses + (self.reconstruct(z) - soft_clip(x)).flatten(1).square().mean(-1)
        return losses


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
            wanted = f"outputs of shape {tuple(x.shape)}"
            raise ValueError(bad_argument("decoder", wanted, tuple(decoded.shape)))
        return (decoded - x).flatten(1).square().mean(-1)
