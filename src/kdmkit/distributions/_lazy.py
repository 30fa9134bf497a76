"""Properties that are computed when they are first read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

T = TypeVar("T")


class cached_per_grad_mode(Generic[T]):
    """`functools.cached_property` with two caches, one of them for `torch.no_grad`.

    A value that was computed without gradients must not be read where gradients are wanted.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function, self.__doc__ = function, function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> T:
        cache = instance.__dict__
        key = f"{self._name} (gradients: {torch.is_grad_enabled()})"
        if key not in cache:
            cache[key] = self._function(instance)
        value: T = cache[key]
        return value
