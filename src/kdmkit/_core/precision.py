"""Sums and products in float32 at least."""

from contextlib import nullcontext

import torch
from torch import Tensor

_COMPUTE_DTYPES = (torch.float32, torch.float64)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that sums and products use: float32 for half precision, every other dtype itself."""
    return dtype if dtype in _COMPUTE_DTYPES else torch.promote_types(dtype, torch.float32)


def at_least_float32(x: Tensor) -> Tensor:
    """Half-precision tensors in float32; all others, integers and booleans too, unchanged.

    >>> at_least_float32(torch.ones(2, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    return x.to(compute_dtype(x.dtype)) if x.is_floating_point() else x


def full_precision(device_type: str) -> torch.autocast | nullcontext[None]:
    """A context in which autocast does not run products in half precision."""
    if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()
