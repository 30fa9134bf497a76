"""Checks of arguments, and arrays as tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kdmkit._core.checks import bad_argument, check_number, check_weights

__all__ = ["Array", "CheckedRows", "check_number", "distribution", "plain", "to_tensor"]

Array = NDArray[Any]


@dataclass(frozen=True)
class CheckedRows:
    """Rows that need no check: as many columns as the model has features, in their order, all finite."""

    array: Array


def to_tensor(X: Array) -> Tensor:
    """A tensor that owns its memory, float32 or float64 as the array is."""
    return torch.from_numpy(np.array(X, order="C"))


def plain(value: Any) -> Any:
    """NumPy's numbers as Python's: grids of parameters are full of them."""
    return value.item() if isinstance(value, np.generic) else value


def distribution(argument: str, values: Any, shape: tuple[int, ...]) -> Tensor:
    """Probabilities over the last dimension, in float64; how exactly they sum to 1 depends on their dtype."""
    array = np.asarray(values)
    probs = to_tensor(array if array.dtype == np.float32 else array.astype(np.float64))
    if probs.shape != shape:
        raise ValueError(bad_argument(argument, f"shape {shape}", tuple(probs.shape)))
    check_weights(argument, probs)
    return probs.double() / probs.double().sum(-1, keepdim=True)
