"""Numbers from a list: levels, or places in the list."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kdmkit.estimators.table.codecs.parts import Events, NumberPart, Part, listed, nearest
from kdmkit.kernels import Kernel, Levels


@dataclass(frozen=True)
class ListPart(Part, ABC):
    """Numbers from a list.

    Attributes:
        numbers: the number of every code, ascending.
    """

    numbers: tuple[float, ...]

    @property
    def values(self) -> tuple[float, ...]:
        return self.numbers

    @abstractmethod
    def event_of(self, codes: Tensor) -> Tensor:
        """The events of codes."""

    def _codes(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The code of every number, and whether the number is in the list."""
        levels = np.array(self.numbers)
        code = nearest(levels, numbers)
        return code, np.abs(levels[code] - numbers) <= 1e-6 * self._gap

    @cached_property
    def _gap(self) -> float:
        return float(np.min(np.diff(self.numbers))) if len(self.numbers) > 1 else 1.0

    def edge(self, number: float, after: bool) -> float:
        # A number that differs from a level by rounding is that level; near 0 nothing is rounded.
        slack = 1e-6 * min(self._gap, abs(float(number)))
        end = float(number) + (slack if after else -slack)
        return float(np.searchsorted(self.numbers, end, side="right" if after else "left")) - 0.5

    def describe(self) -> str:
        return f"{len(self.numbers)} values: {listed([f'{number:g}' for number in self.numbers], 6)}"


@dataclass(frozen=True)
class CodePart(ListPart):
    """Few numbers, each a level.

    Attributes:
        smoothing: of `Levels`.
    """

    kind = "codes"
    smoothing: float

    def kernel(self, n_components: int | None) -> Kernel:
        return Levels(len(self.numbers), self.smoothing)

    @property
    def shape(self) -> torch.Size:
        return torch.Size()

    def encode(self, numbers: np.ndarray) -> Events:
        code, inside = self._codes(numbers)
        return Events(torch.from_numpy(code), inside, np.zeros(len(code)))

    def event_of(self, codes: Tensor) -> Tensor:
        return codes

    def decode(self, events: Tensor, *, rounded: bool = True) -> np.ndarray:
        return np.array(self.numbers)[events.detach().cpu().long().numpy()]


@dataclass(frozen=True)
class RankPart(ListPart):
    """Numbers from a longer list: an event is the place of a number in it, and near places are alike.

    Attributes:
        places: how places are events.
    """

    kind = "ranks"
    places: NumberPart

    def kernel(self, n_components: int | None) -> Kernel:
        return self.places.kernel(n_components)

    @property
    def shape(self) -> torch.Size:
        return self.places.shape

    def encode(self, numbers: np.ndarray) -> Events:
        code, inside = self._codes(numbers)
        return self.places.encode(code.astype(np.float64))._replace(inside=inside)

    def event_of(self, codes: Tensor) -> Tensor:
        return codes.double().unsqueeze(-1)

    def decode(self, events: Tensor, *, rounded: bool = True) -> np.ndarray:
        """Also of codes, `(*lead,)`."""
        places = self.places.decode(events if events.is_floating_point() else self.event_of(events))
        return np.array(self.numbers)[np.rint(places).astype(np.int64)]

    def config(self) -> dict[str, Any]:
        return {**super().config(), "places": self.places.config()}
