"""Whole numbers that go round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.estimators.table.codecs.parts.base import Events, Known, Part, stack_numbers
from kdmkit.kernels import Interval, Kernel, Periodic, Region

# κ that learning starts from, where the layer does not set it.
_KAPPA = 10.0


@dataclass(frozen=True)
class CirclePart(Part):
    """Whole numbers 0 … period − 1 that go round, such as minutes of the day.

    There are many of them: they have densities, not masses, and a draw is the nearest whole number.
    """

    kind = "circle"
    period: int

    def kernel(self, n_components: int | None) -> Kernel:
        shape = () if n_components is None else (n_components, 1)
        return Periodic(torch.full(shape, _KAPPA), self.period)

    @property
    def shape(self) -> torch.Size:
        return torch.Size([1])

    def encode(self, numbers: np.ndarray) -> Events:
        inside = (numbers >= 0) & (numbers < self.period)
        events = torch.from_numpy(np.where(inside, np.round(numbers), 0.0)).unsqueeze(-1)
        return Events(events, inside, np.zeros(len(numbers)))

    def decode(self, events: Tensor, *, rounded: bool = True) -> np.ndarray:
        numbers = events.detach().cpu().double().squeeze(-1).numpy()
        return np.mod(np.round(numbers), self.period) if rounded else numbers

    def interval(self, low: float, high: float) -> Known:
        low, high = max(low, 0.0), min(high, self.period - 1.0)
        if low > high:
            raise ValueError(bad_argument("range", f"numbers from 0 to {self.period - 1}", (low, high)))
        if (low, high) == (0, self.period - 1):
            return None
        return Interval(torch.tensor([low - 0.5]).double(), torch.tensor([high + 0.5]).double())

    def one_of(self, events: Sequence[Tensor]) -> list[Known]:
        return list(events)

    def stack(self, known: Sequence[Known]) -> Tensor | Region:
        return stack_numbers(known, (-0.5, self.period - 0.5))

    def describe(self) -> str:
        return f"0…{self.period - 1}, periodic"

    def config(self) -> dict[str, Any]:
        return {"part": self.kind, **asdict(self)}
