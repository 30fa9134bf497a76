"""Regions of events: evidence of a variable that is not a point."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import as_tensor, bad_argument, check_event
from kdmkit._core.tensors import broadcast


class Region(ABC):
    """A set of events, or one for every element of a batch.

    The library moves and reshapes a region as one *packed* tensor `(*lead, p)`, whose last dimension holds
    the numbers that describe one region.

    >>> import kdmkit as kdm
    >>> isinstance(kdm.Interval(0.0, 1.0), Region), isinstance(kdm.OneOf([0, 2]), Region)
    (True, True)
    """

    @abstractmethod
    def packed(self, argument: str, event_shape: torch.Size, like: Tensor) -> Tensor:
        """The region's numbers, `(*lead, p)`, on the device of `like`; bad shapes raise a ValueError."""

    @classmethod
    @abstractmethod
    def unpacked(cls, packed: Tensor, event_shape: torch.Size) -> Self:
        """The region that `packed` describes."""

    @classmethod
    def unchecked(cls, *tensors: Tensor) -> Self:
        """The region of tensors that the library has computed, in the order of the arguments."""
        region = object.__new__(cls)
        for name, tensor in zip(cls.__annotations__, tensors, strict=True):
            object.__setattr__(region, name, tensor)
        return region


@dataclass(frozen=True, eq=False)
class Interval(Region):
    """All events x with low ≤ x ≤ high, in every dimension.

    Args:
        low, high: numbers, or tensors `(*lead, *event)` for a batch. None, −∞ and +∞ are open ends.

    >>> Interval(None, 0.5).low
    tensor(-inf, dtype=torch.float64)
    """

    low: Any
    high: Any

    def __post_init__(self) -> None:
        for name, value, open_end in (("low", self.low, -math.inf), ("high", self.high, math.inf)):
            end = as_tensor(name, open_end if value is None else value, wide=not isinstance(value, Tensor))
            if bool(torch.isnan(end).any()):
                raise ValueError(bad_argument(name, "a number, ±∞ or None", "NaN"))
            object.__setattr__(self, name, end)
        try:
            empty = self.low > self.high.to(self.low.device)
        except RuntimeError as error:
            got = f"{tuple(self.low.shape)} and {tuple(self.high.shape)}"
            raise ValueError(bad_argument("low, high", "shapes that broadcast", got)) from error
        if bool(empty.any()):
            low, high = torch.broadcast_tensors(self.low, self.high.to(self.low.device))
            got = f"{low[empty][0].item():g} > {high[empty][0].item():g}"
            raise ValueError(bad_argument("low, high", "low ≤ high", got))

    def packed(self, argument: str, event_shape: torch.Size, like: Tensor) -> Float[Tensor, "*lead p"]:
        dtype = like.dtype if like.is_floating_point() else torch.float64
        ends = []
        for end in (self.low, self.high):
            end = end.to(like.device, dtype)
            end = end if end.ndim else end.expand(event_shape)
            check_event(argument, end, event_shape)
            ends.append(end)
        shape = broadcast(*(end.shape for end in ends))
        flat = [end.expand(shape).reshape(*shape[: len(shape) - len(event_shape)], -1) for end in ends]
        return torch.cat(flat, -1)

    @classmethod
    def unpacked(cls, packed: Float[Tensor, "*lead p"], event_shape: torch.Size) -> Interval:
        shape = (*packed.shape[:-1], *event_shape)
        low, high = (end.reshape(shape) for end in packed.chunk(2, -1))
        return cls.unchecked(low, high)


@dataclass(frozen=True, eq=False)
class OneOf(Region):
    """One of finitely many events; a value that is listed twice counts once.

    Args:
        values: a sequence or a tensor `(k,)` of codes or numbers, or `(*lead, k)` for a batch of sets.

    >>> OneOf([0, 2]).values
    tensor([0, 2])
    """

    values: Any

    def __post_init__(self) -> None:
        wide = not isinstance(self.values, Tensor)
        values = self.values if not isinstance(self.values, set | frozenset | range) else list(self.values)
        tensor = as_tensor("values", values, wide=wide)
        if tensor.ndim == 0 or tensor.shape[-1] == 0:
            raise ValueError(bad_argument("values", "one or more events in a sequence", repr(self.values)))
        object.__setattr__(self, "values", tensor)

    def packed(self, argument: str, event_shape: torch.Size, like: Tensor) -> Tensor:
        values = self.values.to(like.device)
        if values.is_floating_point() and like.is_floating_point():
            values = values.to(like.dtype)
        return values

    @classmethod
    def unpacked(cls, packed: Tensor, event_shape: torch.Size) -> OneOf:
        return cls.unchecked(packed)


def first_occurrences(values: Tensor) -> tuple[Tensor, Tensor]:
    """Values `(*lead, k)` in ascending order, and which of them differ from the one before."""
    ordered = values.sort(-1).values
    new = torch.ones_like(ordered, dtype=torch.bool)
    new[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    return ordered, new
