"""Keeping half precision out of sums and products."""

from contextlib import nullcontext

import torch
from torch import Tensor

_WIDE = (torch.float32, torch.float64)


def wide(dtype: torch.dtype) -> torch.dtype:
    """float32 for half precision, any other floating dtype as it is."""
    return dtype if dtype in _WIDE else torch.promote_types(dtype, torch.float32)


def widened(x: Tensor) -> Tensor:
    """Floating tensors in float32 at least; integers and booleans as they are.

    >>> widened(torch.ones(2, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    return x.to(wide(x.dtype)) if x.is_floating_point() else x


def full_precision(device_type: str) -> torch.autocast | nullcontext[None]:
    """A context in which autocast does not run products in half precision."""
    if torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()
