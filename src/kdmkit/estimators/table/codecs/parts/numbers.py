"""Numbers of a continuous quantity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.estimators.table.codecs.parts.base import Events, Known, Part, listed, nearest, stack_numbers
from kdmkit.kernels import (
    RBF,
    Inflated,
    Interval,
    Kernel,
    OneOf,
    QuantileNormal,
    Region,
    Rounded,
    Transformed,
    Truncated,
)

# σ of the transformed numbers that learning starts from, where the layer does not set it.
_SIGMA = 0.5


@dataclass(frozen=True)
class NumberPart(Part):
    """Numbers of a continuous quantity, perhaps recorded to a resolution, with frequent values as atoms.

    Events are (number − shift)/scale, which float32 holds without loss where the table needs it.

    Attributes:
        knots, scores: of the quantile-normal transform, in events.
        step, origin: numbers are origin + k·step; 0 where there is no grid.
        masses: whether numbers are learned as masses of their rounding cells; otherwise as densities.
        low, high: the least and the greatest number that the column may have.
        atoms: numbers with a probability of their own.
    """

    kind = "numbers"
    knots: tuple[float, ...]
    scores: tuple[float, ...]
    step: float
    origin: float
    masses: bool
    low: float
    high: float
    atoms: tuple[float, ...]
    shift: float = 0.0
    scale: float = 1.0

    def kernel(self, n_components: int | None) -> Kernel:
        shape = () if n_components is None else (n_components, 1)
        change = QuantileNormal(self.knots, self.scores)
        low, high = (self._image(change, end) for end in self._bounds())
        inner: Kernel = RBF(torch.full(shape, _SIGMA))
        if math.isfinite(low) or math.isfinite(high):
            inner = Truncated(inner, low, high)
        kernel: Kernel = Transformed(inner, change)
        if self.masses:
            step, origin = self.step / self.scale, self._event(self.origin)
            kernel = Rounded(kernel, step, origin=origin - step * round(origin / step))
        return Inflated(kernel, [self._event(atom) for atom in self.atoms]) if self.atoms else kernel

    def _bounds(self) -> tuple[float, float]:
        """The ends of the support: half a cell further out where cells have masses."""
        half = 0.5 * self.step if self.masses else 0.0
        return self.low - half, self.high + half

    def _image(self, change: QuantileNormal, end: float) -> float:
        if math.isinf(end):
            return end
        return float(change(torch.tensor(self._event(end), dtype=torch.float64)))

    def _event(self, number: float) -> float:
        return (number - self.shift) / self.scale

    @property
    def shape(self) -> torch.Size:
        return torch.Size([1])

    def encode(self, numbers: np.ndarray) -> Events:
        numbers = self._snapped(numbers)
        inside = (numbers >= self.low) & (numbers <= self.high)
        filled = np.where(inside, numbers, self.knots[0] * self.scale + self.shift)
        events = torch.from_numpy((filled - self.shift) / self.scale).unsqueeze(-1)
        density = not self.masses and self.scale != 1
        offset = np.where(np.isin(numbers, self.atoms), 0.0, -math.log(self.scale)) if density else 0.0
        return Events(events, inside, np.broadcast_to(offset, numbers.shape))

    def _snapped(self, numbers: np.ndarray) -> np.ndarray:
        if not self.step:
            return numbers
        # Rounded once more: a multiple of .1 is to be the nearest float to its decimal digits.
        multiple = np.round((numbers - self.origin) / self.step)
        return np.round(self.origin + multiple * self.step, self._decimals)

    @property
    def _decimals(self) -> int:
        digits = (max(0, math.ceil(-math.log10(part)) + 3) for part in (self.step, abs(self.origin)) if part)
        return min(15, max(digits, default=0))

    def decode(self, events: Tensor, *, rounded: bool = True) -> np.ndarray:
        numbers = events.detach().cpu().double().squeeze(-1).numpy() * self.scale + self.shift
        if not rounded:
            return numbers
        return np.clip(self._at_atoms(self._snapped(numbers)), self.low, self.high)

    def _at_atoms(self, numbers: np.ndarray) -> np.ndarray:
        """Numbers that differ from an atom by the rounding of float32 are that atom."""
        if not self.atoms:
            return numbers
        atoms = np.array(self.atoms)
        near = atoms[nearest(atoms, numbers)]
        off = np.abs(near - numbers)
        return np.where(off <= 2.0**-22 * (np.abs(numbers - self.shift) + self.step), near, numbers)

    def interval(self, low: float, high: float) -> Known:
        if low <= self.low and high >= self.high:
            return None
        if low > self.high or high < self.low or self._between_points(low, high):
            raise ValueError(
                bad_argument("range", f"one that holds a number ({self.describe()})", (low, high))
            )
        # A density of numbers that were rounded: their cells belong to the range.
        half = 0.5 * self.step if not self.masses else 0.0
        low, high = max(low, self.low) - half, min(high, self.high) + half
        return Interval(torch.tensor([self._event(low)]).double(), torch.tensor([self._event(high)]).double())

    def _between_points(self, low: float, high: float) -> bool:
        """Whether a range lies between two neighbours of the grid."""
        if not self.step or not math.isfinite(low) or not math.isfinite(high):
            return False
        first = math.ceil((low - self.origin) / self.step - 1e-9)
        return first > math.floor((high - self.origin) / self.step + 1e-9)

    def _half_step(self, number: float) -> float:
        return 0.5 * self.step or self.scale * super()._half_step(self._event(number))

    def one_of(self, events: Sequence[Tensor]) -> list[Known]:
        return [OneOf(torch.cat(list(events)))] if self.masses else list(events)

    def stack(self, known: Sequence[Known]) -> Tensor | Region:
        return stack_numbers(known, (-math.inf, math.inf))

    def describe(self) -> str:
        ends = (f"{number:g}" if math.isfinite(number) else "" for number in (self.low, self.high))
        words = ["…".join(ends)] if math.isfinite(self.low) or math.isfinite(self.high) else []
        told = self.masses or self.step > 1e-6 * self.scale * (self.knots[-1] - self.knots[0])
        words += [f"step {self.step:g}"] if self.step and told else []
        if self.atoms:
            shown = listed([f"{atom:g}" for atom in self.atoms], 5)
            words.append(f"{len(self.atoms)} frequent value{'s' if len(self.atoms) > 1 else ''}: {shown}")
        return "; ".join(words)

    def config(self) -> dict[str, Any]:
        """Open ends are None: JSON has no infinity."""
        fields = asdict(self)
        for end in ("low", "high"):
            fields[end] = fields[end] if math.isfinite(fields[end]) else None
        return {"part": self.kind, **fields}
