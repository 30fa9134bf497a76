"""The bases of KDM, JointKDM and TreeKDM: distributions made of tensors and kernels that move and copy."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import bad_argument, check_dtype
from kdmkit.kernels import Kernel

if TYPE_CHECKING:
    from kdmkit.distributions.weights import Weights

T = TypeVar("T")

#: A function of a tensor or of a kernel that returns another of the same kind.
PartMap = Callable[[Any], Any]


class Composite(ABC):
    """A distribution that is made of tensors and kernels."""

    batch_shape: torch.Size
    _set: Callable[..., None]

    @classmethod
    def _made(cls, *parts: Any) -> Self:
        """A distribution from the arguments of `_set`, without checks: for inference and layers."""
        made = cls.__new__(cls)
        made._set(*parts)
        return made

    @abstractmethod
    def _mapped(self, function: PartMap) -> Self:
        """The distribution with `function` applied to every tensor and kernel."""

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """The same on another device or in another dtype; kernels are copied, never moved.

        An inferred distribution moves with its evidence and with the joint it was inferred from: it stays
        uncomputed, and keeps `log_evidence`.
        """
        return self._mapped(_mover(*args, **kwargs))

    def __deepcopy__(self, memo: dict[Any, Any]) -> Self:
        return self._mapped(_copier(memo))


class Mixture(Composite):
    """Components with weights: the base of KDM and JointKDM."""

    _weights: Weights

    @property
    @abstractmethod
    def n_components(self) -> int: ...

    @property
    def weights(self) -> Float[Tensor, "*batch m"]:
        """p, of shape `(*batch, m)`."""
        return self.log_weights.exp()

    @property
    def log_weights(self) -> Float[Tensor, "*batch m"]:
        """ℓ = log p, of shape `(*batch, m)`."""
        return self._weights.log_weights.expand(*self.batch_shape, self.n_components)

    @property
    def log_evidence(self) -> Float[Tensor, "*batch"]:
        """log Σ_l p_l f̂(x_l) of the evidence this was inferred from; −∞ if no component overlaps with it."""
        return self._weights.log_evidence.expand(self.batch_shape)


def _mover(*args: Any, **kwargs: Any) -> PartMap:
    """Does `to(*args, **kwargs)` to a tensor or a kernel; integers and masks keep their dtype."""
    try:
        moved = torch.empty(0).to(*args, **kwargs)
    except (RuntimeError, TypeError, AssertionError) as error:
        got = ", ".join(map(repr, (*args, *kwargs.values())))
        raise ValueError(bad_argument("device, dtype", "a device of this machine or a dtype", got)) from error
    check_dtype("dtype", moved.dtype)

    def move(part: Any) -> Any:
        if isinstance(part, Kernel):
            return copy.deepcopy(part).to(*args, **kwargs)
        moved = part.to(*args, **kwargs)
        return moved if part.is_floating_point() else part.to(moved.device)

    return move


def _copier(memo: dict[Any, Any]) -> PartMap:
    """Does `copy.deepcopy` to a tensor or a kernel.

    torch refuses to copy results of a computation that carry gradients: they are cloned, and their copies
    stay in the graph.
    """

    def copied(part: Any) -> Any:
        is_result = isinstance(part, Tensor) and not part.is_leaf
        return part.clone() if is_result else copy.deepcopy(part, memo)

    return copied


def map_values(function: PartMap, parts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: function(part) for name, part in parts.items()}


class cached_per_grad_mode(Generic[T]):
    """`functools.cached_property` with two caches, one of them for `torch.no_grad`.

    A value that was computed without gradients must not be used by code that needs gradients.
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
