"""Checked tensors from what users pass to a metric or a figure."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit._core.checks import (
    as_tensor,
    bad_argument,
    check_event,
    check_finite,
    check_instance,
    check_label,
    is_integer,
    simplex_tolerance,
)
from kdmkit.distributions import KDM
from kdmkit.kernels import LocationScale
from kdmkit.kernels.location_scale import check_product


def check_density(rho: KDM, d: int = 1, batch: tuple[int, ...] | None = None) -> LocationScale:
    """The kernel of a continuous KDM of `d` dimensions, with the given batch shape (None is any)."""
    check_instance("rho", rho, KDM, "a KDM")
    kernel = check_product("rho", rho.kernel, "a KDM with a continuous kernel")
    if rho.event_shape != (d,):
        raise ValueError(bad_argument("rho", f"events of shape ({d},)", tuple(rho.event_shape)))
    if batch is not None and rho.batch_shape != batch:
        raise ValueError(bad_argument("rho", f"a batch of shape {batch}", tuple(rho.batch_shape)))
    return kernel


def as_values(rho: KDM, y: Any) -> Tensor:
    """`y` as `rho.log_prob` takes it.

    Targets of a one-dimensional regression may have the shape of the batch, without the last dimension.
    Integers become floats under a continuous kernel.
    """
    value = as_tensor("y", y, like=rho.components)
    if not rho.kernel.is_continuous:
        return value
    if rho.event_shape == (1,) and value.shape == rho.batch_shape:
        value = value.unsqueeze(-1)
    check_event("y", value, rho.event_shape)
    check_finite("y", value)
    return value.to(rho.components)


def as_floats(argument: str, value: Any) -> Float[Tensor, "*shape"]:
    """Finite numbers, at least one; integers become floats."""
    tensor = as_tensor(argument, value, wide=True)
    if not tensor.is_floating_point():
        tensor = tensor.double()
    if tensor.numel() == 0:
        raise ValueError(bad_argument(argument, "at least one value", f"shape {tuple(tensor.shape)}"))
    check_finite(argument, tensor)
    return tensor.detach()


def as_fractions(argument: str, value: Any) -> Float[Tensor, "*shape"]:
    """Numbers in [0, 1]; those that are outside by rounding become 0 or 1."""
    tensor = as_floats(argument, value)
    slack = simplex_tolerance(tensor.dtype)
    outside = tensor[(tensor < -slack) | (tensor > 1 + slack)]
    if outside.numel():
        raise ValueError(bad_argument(argument, "values in [0, 1]", outside[0].item()))
    return tensor.clamp(0, 1)


def as_probs(argument: str, value: Any) -> Float[Tensor, "n k"]:
    """Rows of probabilities; their sums are checked loosely, since users may have rounded them."""
    probs = as_fractions(argument, value)
    if probs.ndim != 2 or probs.shape[1] < 2:
        raise ValueError(bad_argument(argument, "shape (n, k) with k ≥ 2 classes", tuple(probs.shape)))
    total = probs.double().sum(-1)
    worst = total[(total - 1).abs().argmax()].item()
    if abs(worst - 1) > 1e-3:
        raise ValueError(bad_argument(argument, "rows that sum to 1", f"a sum of {worst:.7g}"))
    return probs


def as_labels(argument: str, value: Any, probs: Float[Tensor, "n k"]) -> Int[Tensor, " n"]:
    """The true class of every row of `probs`, as the number of its column."""
    n, k = probs.shape
    labels = as_tensor(argument, value, wide=True)
    if not is_integer(labels):
        raise TypeError(bad_argument(argument, f"integer labels in 0 … {k - 1}", labels.dtype))
    if labels.shape != (n,):
        raise ValueError(bad_argument(argument, f"shape ({n},), a label for each row", tuple(labels.shape)))
    check_label(argument, labels, k)
    return labels.to(device=probs.device, dtype=torch.int64)
