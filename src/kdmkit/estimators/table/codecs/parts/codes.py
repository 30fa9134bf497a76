"""Few numbers, each a level of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.estimators.table.codecs.parts.base import Events, Known, Part, listed, nearest, stack_codes
from kdmkit.kernels import Kernel, Levels, OneOf, Region


@dataclass(frozen=True)
class CodePart(Part):
    """Few numbers, each a level of its own.

    Attributes:
        numbers: the number of every code, ascending.
        smoothing: of `Levels`.
    """

    kind = "codes"
    numbers: tuple[float, ...]
    smoothing: float

    def kernel(self, n_components: int | None) -> Kernel:
        return Levels(len(self.numbers), self.smoothing)

    @property
    def shape(self) -> torch.Size:
        return torch.Size()

    @property
    def values(self) -> tuple[float, ...]:
        return self.numbers

    def encode(self, numbers: np.ndarray) -> Events:
        known = np.array(self.numbers)
        code = nearest(known, numbers)
        gap = np.min(np.diff(known)) if len(known) > 1 else 1.0
        inside = np.abs(known[code] - numbers) <= 1e-6 * gap
        return Events(torch.from_numpy(code), inside, np.zeros(len(code)))

    def decode(self, events: Tensor, *, rounded: bool = True) -> np.ndarray:
        return np.array(self.numbers)[events.detach().cpu().long().numpy()]

    def interval(self, low: float, high: float) -> Known:
        known = np.array(self.numbers)
        codes = np.flatnonzero((known >= low) & (known <= high))
        if not len(codes):
            raise ValueError(
                bad_argument("range", f"one that holds a value ({self.describe()})", (low, high))
            )
        if len(codes) == len(known):
            return None
        return OneOf(codes) if len(codes) != 1 else torch.tensor(int(codes[0]))

    def one_of(self, events: Sequence[Tensor]) -> list[Known]:
        return [OneOf(torch.stack(list(events)))]

    def stack(self, known: Sequence[Known]) -> Tensor | Region:
        return stack_codes(known, len(self.numbers))

    def describe(self) -> str:
        return f"{len(self.numbers)} values: {listed([f'{number:g}' for number in self.numbers], 6)}"

    def config(self) -> dict[str, Any]:
        return {"part": self.kind, **asdict(self)}
