"""A limit on what the construction of a model may allocate."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# Beyond what is in proportion to the tensors of the file.
_NUMBERS = 1 << 20
_CALLS = 5000


class Budget(TorchDispatchMode):
    """Raises before tensors are made that are out of proportion to the given ones.

    A model is built before it gets its tensors, from sizes that its description declares.

    >>> import torch
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

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls -= 1
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.name == "size":
                self.numbers -= max(0, math.prod(value))
        if self.numbers < 0 or self.calls < 0:
            raise ValueError("sizes of more numbers than its tensors hold")
        return func(*args, **(kwargs or {}))
