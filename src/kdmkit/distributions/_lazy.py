"""Properties that are computed when somebody asks, and remembered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

T = TypeVar("T")


class once_per_grad_mode(Generic[T]):
    """`functools.cached_property`, with a memory of its own for `torch.no_grad`.

    A value first asked for without gradients must not stand in for one that carries them.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function, self.__doc__ = function, function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> T:
        memory = instance.__dict__
        key = f"{self._name} (gradients: {torch.is_grad_enabled()})"
        if key not in memory:
            memory[key] = self._function(instance)
        value: T = memory[key]
        return value
