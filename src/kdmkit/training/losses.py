"""Losses, one value per row: the training loop applies sample weights and takes the mean."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import (
    as_tensor,
    bad_argument,
    check_event,
    check_instance,
    check_number,
    check_weights,
)
from kdmkit._core.logspace import safe_log
from kdmkit.distributions import KDM, JointKDM
from kdmkit.nn import JointLayer


def nll(rho: KDM, value: Any) -> Float[Tensor, "*batch"]:
    """−log f̂(value): of a density, or of y given x where `rho` was inferred from x.

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
    return _cross_entropy(predicted, probs)


def _cross_entropy(predicted: Float[Tensor, "*batch n"], probs: Tensor) -> Float[Tensor, "*batch"]:
    log_predicted = torch.where(probs > 0, safe_log(predicted), torch.zeros_like(predicted))
    return -(probs * log_predicted).sum(-1)


def expected_nll(rho: KDM, target: KDM) -> Float[Tensor, "*batch"]:
    """−Σ_l q_l log f̂(y_l) against a KDM as an uncertain target; for discrete kernels its probabilities.

    Args:
        rho: predicted distributions of batch shape `(*batch,)`.
        target: the uncertain targets, weighted components y_l with weights q_l.

    Returns:
        One loss per element of the batch.

    >>> import kdmkit as kdm
    >>> rho = kdm.KDM.from_probs(torch.tensor([0.5, 0.5]))
    >>> expected_nll(rho, kdm.KDM.from_probs(torch.tensor([0.2, 0.8])))
    tensor(0.6931)
    """
    check_instance("rho", rho, KDM, "a KDM")
    check_instance("target", target, KDM, "a KDM")
    if not rho.kernel.same_family(target.kernel):
        raise ValueError(bad_argument("target", f"a KDM with the kernel {rho.kernel}", target.kernel))
    if rho.event_shape != target.event_shape:
        raise ValueError(
            bad_argument("target", f"events of shape {tuple(rho.event_shape)}", tuple(target.event_shape))
        )
    if target.kernel.discrete:
        return _cross_entropy(rho.probs, target.probs)
    points = target.components.movedim(-2, 0)
    rank = max(len(rho.batch_shape), len(target.batch_shape)) + 1
    points = points.reshape(points.shape[0], *([1] * (rank + 1 - points.ndim)), *points.shape[1:])
    weights = target.weights
    log_prob = rho.log_prob(points).movedim(0, -1)
    # Padding components have weight 0 and may have log-density −∞: neither value nor gradient may see it.
    return -(weights * torch.where(weights > 0, log_prob, torch.zeros_like(log_prob))).sum(-1)


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
        generative_weight: α ≥ 0.
        detach_input: whether log p(x) has no gradient with respect to x. Behind a trainable encoder it must
            be True: by shrinking x the encoder could make log p(x) arbitrarily large.
        layer: the joint KDM.
        x: inputs, `(*batch, d)`.
        y: targets, `(*batch,)` for labels.

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
    # Where training diverges, the loop says so: values inside it are not checked.
    joint = layer.joint(validate_args=False)
    if generative_weight == 1 and not detach_input:
        return -joint.log_prob(x=x, y=y)
    loss = -joint.infer(x=x, target="y").log_prob(y)
    if generative_weight == 0:
        return loss
    if detach_input:
        x = as_tensor("x", x).detach()
    return loss - generative_weight * joint.marginal("x").log_prob(x)
