"""A limit on what the construction of a model may allocate."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

# Beyond what is in proportion to the tensors of the file.
_NUMBERS = 1 << 20
_CALLS = 5000
# Functions that make tensors of a size that is given by numbers.
_FACTORIES = {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn}


class Budget(TorchFunctionMode):
    """Raises before tensors are made that are out of proportion to the given ones.

    A model is built before it gets its tensors, from sizes that its description declares.

    >>> with Budget({"x": torch.zeros(3)}):
    ...     torch.zeros(10**12)
    Traceback (most recent call last):
    ...
    ValueError: sizes of more numbers than its tensors hold
    """

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__()
        self.numbers = _NUMBERS + 8 * sum(tensor.numel() for tensor in tensors.values())
        self.calls = _CALLS + 200 * len(tensors)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.calls -= 1
        self.numbers -= _numbers(func, args, kwargs)
        if self.numbers < 0 or self.calls < 0:
            raise ValueError("sizes of more numbers than its tensors hold")
        return func(*args, **kwargs)


def _numbers(func: Any, args: Any, kwargs: dict[str, Any]) -> int:
    """How many numbers a call makes."""
    if func is torch.nn.functional.one_hot:
        return args[0].numel() * max(0, *args[1:])
    if func not in _FACTORIES:
        return 0
    size = kwargs["size"] if "size" in kwargs else args if isinstance(args[0], int) else args[0]
    return max(0, math.prod(size))
