"""Checked tensors from what users pass to a metric."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit._core.checks import as_tensor, bad_argument, check_event, check_finite, check_label, is_integer
from kdmkit.distributions import KDM
from kdmkit.kernels import LocationScale, check_continuous


def check_kdm(argument: str, rho: object) -> KDM:
    if not isinstance(rho, KDM):
        raise TypeError(bad_argument(argument, "a KDM", type(rho).__name__))
    return rho


def check_univariate(argument: str, rho: object) -> LocationScale:
    """The kernel of a one-dimensional continuous KDM."""
    rho = check_kdm(argument, rho)
    kernel = check_continuous(argument, rho.kernel, "a KDM with a continuous kernel")
    if rho.event_shape != (1,):
        wanted = "a one-dimensional KDM (event shape (1,))"
        raise ValueError(bad_argument(argument, wanted, tuple(rho.event_shape)))
    return kernel


def numbers(argument: str, value: Any, *, like: Tensor | None = None) -> Tensor:
    """A tensor of any array-like: lists keep float64's digits, data frames are read by position."""
    if isinstance(value, Tensor):
        return value
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise TypeError(bad_argument(argument, "a tensor or an array of numbers", "a ragged list")) from error
    return as_tensor(argument, array, like=like)


def as_values(rho: KDM, y: Any) -> Tensor:
    """`y` as `rho.log_prob` takes it.

    Targets of a one-dimensional regression may come without their last dimension, in the batch's own shape;
    integers are as good as floats for a continuous kernel.
    """
    value = numbers("y", y, like=rho.components)
    if not rho.kernel.is_continuous:
        return value
    if rho.event_shape == (1,) and value.shape == rho.batch_shape:
        value = value.unsqueeze(-1)
    check_event("y", value, rho.event_shape)
    check_finite("y", value)
    return value.to(rho.components)


def as_floats(argument: str, value: Any) -> Float[Tensor, "*shape"]:
    """Finite numbers, at least one; integers become floats."""
    tensor = numbers(argument, value)
    if not tensor.is_floating_point():
        tensor = tensor.double()
    if tensor.numel() == 0:
        raise ValueError(bad_argument(argument, "at least one value", f"shape {tuple(tensor.shape)}"))
    check_finite(argument, tensor)
    return tensor.detach()


def as_fractions(argument: str, value: Any) -> Float[Tensor, "*shape"]:
    """Numbers in [0, 1]."""
    tensor = as_floats(argument, value)
    outside = tensor[(tensor < 0) | (tensor > 1)]
    if outside.numel():
        raise ValueError(bad_argument(argument, "values in [0, 1]", outside[0].item()))
    return tensor


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
    labels = numbers(argument, value)
    if not is_integer(labels):
        raise TypeError(bad_argument(argument, f"integer labels in 0 … {k - 1}", labels.dtype))
    if labels.shape != (n,):
        raise ValueError(bad_argument(argument, f"shape ({n},), a label for each row", tuple(labels.shape)))
    check_label(argument, labels, k)
    return labels.to(device=probs.device, dtype=torch.int64)


def check_count(argument: str, value: int) -> None:
    if not value >= 1:
        raise ValueError(bad_argument(argument, "at least 1", value))
