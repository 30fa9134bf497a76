"""Parts of a column: each is one variable of the model."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from inspect import isabstract
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kdmkit.kernels import (
    RBF,
    Inflated,
    Interval,
    Kernel,
    Missing,
    QuantileNormal,
    Region,
    Rounded,
    Transformed,
    Truncated,
    Union,
)
from kdmkit.kernels.region_forms import by_edges
from kdmkit.kernels.regions import NOTHING, WHOLE, shared_spans

_EPS = 2.0**-52


class Events(NamedTuple):
    """Numbers as events.

    Attributes:
        values: `(rows, *event)`, anything valid if a number is outside.
        inside: False if the part cannot have the number.
        log_offset: log-density of each number in the user's units minus that of its event.
    """

    values: Tensor
    inside: np.ndarray
    log_offset: np.ndarray


@dataclass(frozen=True)
class Part(ABC):
    """A one-dimensional variable. It reads and gives numbers in the units of the column."""

    kind: ClassVar[str]

    @abstractmethod
    def kernel(self, n_components: int | None) -> Kernel:
        """The variable's kernel; a number of components gives each its bandwidth, if there are bandwidths."""

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """The shape of one event."""

    @property
    def values(self) -> tuple[float, ...] | None:
        """The number of every code, if events are codes."""
        return None

    @abstractmethod
    def encode(self, numbers: np.ndarray) -> Events: ...

    @abstractmethod
    def decode(self, events: Tensor, *, rounded: bool = True) -> np.ndarray:
        """Numbers of events `(*lead, *event)`, on the grid of the column if `rounded`."""

    @cached_property
    def support(self) -> Interval:
        """The outcomes that the part can have: cells of numbers, or numbers without a grid."""
        return Interval(-0.5, len(self.values or ()) - 0.5, "left")

    @cached_property
    def support_size(self) -> int:
        """The number of outcomes, if they are finitely many."""
        return round(self.support.high - self.support.low)

    def outcomes(self, numbers: Region) -> Region:
        """The outcomes of a region of numbers; a number that the part cannot have is none."""
        return by_edges(numbers, self.edge)

    @abstractmethod
    def edge(self, number: float, after: bool) -> float:
        """The edge between outcomes before the first one ≥ a number, or > it (`after`)."""

    def trimmed(self, outcomes: Region) -> Region:
        """A region of outcomes; `WHOLE` if it holds all of them, `NOTHING` if it holds none."""
        support = self.support.spans
        inside = shared_spans([support, outcomes.spans])
        return NOTHING if not inside else WHOLE if inside == support else outcomes

    def kernel_region(self, outcomes: Region) -> Region:
        """A region of outcomes as one of events."""
        return outcomes

    @abstractmethod
    def describe(self) -> str:
        """The part in a few words."""

    def config(self) -> dict[str, Any]:
        """A JSON-ready description from which `part_from_config` makes an equal part."""
        return {"part": self.kind, **asdict(self)}


def nearest(grid: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The place in an ascending grid that is nearest to each number."""
    above = np.clip(np.searchsorted(grid, numbers), 0, len(grid) - 1)
    below = np.maximum(above - 1, 0)
    return np.where(np.abs(grid[below] - numbers) < np.abs(grid[above] - numbers), below, above)


def listed(texts: Sequence[str], most: int) -> str:
    """Texts with commas; of more than `most` the first ones and the last.

    >>> listed(["a", "b", "c", "d", "e"], 4)
    'a, b, …, e'
    """
    return ", ".join(texts if len(texts) <= most else [*texts[: most - 2], "…", texts[-1]])


# How far a number of a column with masses may lie beside its grid, in steps.
_SLACK = 0.01
# The initial σ of the transformed numbers, unless the layer sets it.
_SIGMA = 0.5


@dataclass(frozen=True)
class NumberPart(Part):
    """Numbers of a continuous quantity, perhaps recorded to a resolution, with frequent values as atoms.

    Events are (number − shift)/scale: float32 holds them without loss.

    Attributes:
        knots, scores: of the quantile-normal transform, in events.
        step, origin: numbers are origin + k·step; 0 if there is no grid.
        masses: whether numbers are learned as masses of their rounding cells; otherwise as densities.
        low, high: the least and the greatest number that the column may have.
        atoms: numbers with a probability.
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
        """The ends of the support: half a cell further out if cells have masses."""
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

    @cached_property
    def extremes(self) -> tuple[float, float]:
        """The least and the greatest number of the data."""
        knots = (knot * self.scale + self.shift for knot in (self.knots[0], self.knots[-1]))
        every = [*map(float, self.snapped(np.array([*knots]))), *self.atoms]
        return min(every), max(every)

    def encode(self, numbers: np.ndarray) -> Events:
        on_grid = self.on_grid(numbers) if self.masses else True
        numbers = self.snapped(numbers)
        inside = (numbers >= self.low) & (numbers <= self.high) & on_grid
        filled = np.where(inside, numbers, self.knots[0] * self.scale + self.shift)
        events = torch.from_numpy((filled - self.shift) / self.scale).unsqueeze(-1)
        density = not self.masses and self.scale != 1
        offset = np.where(np.isin(numbers, self.atoms), 0.0, -math.log(self.scale)) if density else 0.0
        return Events(events, inside, np.broadcast_to(offset, numbers.shape))

    def snapped(self, numbers: np.ndarray) -> np.ndarray:
        """The nearest points of the grid."""
        if not self.step:
            return numbers
        # Rounded once more: a multiple of .1 is to be the nearest float to its decimal digits.
        multiple = np.round((numbers - self.origin) / self.step)
        return np.round(self.origin + multiple * self.step, self._decimals)

    def on_grid(self, numbers: np.ndarray) -> np.ndarray:
        """Whether numbers are points of the grid, but for rounding."""
        off = np.abs(self.snapped(numbers) - numbers)
        return np.asarray(off <= _SLACK * self.step) if self.step else np.ones(len(numbers), bool)

    def moved_to_grid(self, events: Tensor) -> Tensor:
        """Events of the nearest points of the grid."""
        if not self.step:
            return events
        numbers = self.snapped(events.cpu().numpy() * self.scale + self.shift)
        return torch.from_numpy((numbers - self.shift) / self.scale).to(events)

    @cached_property
    def _decimals(self) -> int:
        digits = (max(0, math.ceil(-math.log10(part)) + 3) for part in (self.step, abs(self.origin)) if part)
        return min(15, max(digits, default=0))

    def decode(self, events: Tensor, *, rounded: bool = True) -> np.ndarray:
        numbers = events.detach().cpu().double().squeeze(-1).numpy() * self.scale + self.shift
        if not rounded:
            return numbers
        return np.clip(self._at_atoms(self.snapped(numbers)), self.low, self.high)

    def _at_atoms(self, numbers: np.ndarray) -> np.ndarray:
        """Numbers that differ from an atom by the rounding of float32 are that atom."""
        if not self.atoms:
            return numbers
        atoms = np.array(self.atoms)
        near = atoms[nearest(atoms, numbers)]
        off = np.abs(near - numbers)
        return np.where(off <= 2.0**-22 * (np.abs(numbers - self.shift) + self.step), near, numbers)

    @cached_property
    def support(self) -> Interval:
        half = 0.5 * self.step
        low, high = self.low - half, self.high + half
        return Interval(low, high, "left" if self.step else "both")

    def outcomes(self, numbers: Region) -> Region:
        """Cells of the grid, whether they have masses or densities; without a grid the numbers themselves."""
        return super().outcomes(numbers) if self.step else numbers

    def edge(self, number: float, after: bool) -> float:
        position = (float(number) - self.origin) / self.step
        if not math.isfinite(position):
            return position
        near = round(position)
        # Rounding of the number; near 0 there is none, unless the grid has another origin.
        largest = (abs(float(number)) + abs(self.origin)) / self.step
        slack = min(max(1e-9, 8 * _EPS * abs(position)), 1e-6 * largest, 0.01)
        first = near + after if abs(position - near) <= slack else math.ceil(position)
        return self.origin + (first - 0.5) * self.step

    def edges(self, numbers: np.ndarray, after: bool) -> np.ndarray:
        """`edge` of many numbers at once."""
        with np.errstate(invalid="ignore", over="ignore"):
            position = (numbers - self.origin) / self.step
            near = np.round(position)
            largest = (np.abs(numbers) + abs(self.origin)) / self.step
            slack = np.minimum(
                np.maximum(1e-9, 8 * _EPS * np.abs(position)), np.minimum(1e-6 * largest, 0.01)
            )
            first = np.where(np.abs(position - near) <= slack, near + after, np.ceil(position))
            return np.where(np.isfinite(position), self.origin + (first - 0.5) * self.step, position)

    def kernel_region(self, outcomes: Region) -> Region:
        if (self.shift, self.scale) == (0.0, 1.0):
            return outcomes
        ends = (
            (None if end is None else self._event(float(end)) for end in (piece.low, piece.high))
            for piece in outcomes.pieces
        )
        pieces = [Interval(low, high, p.closed) for (low, high), p in zip(ends, outcomes.pieces, strict=True)]
        return Union([*pieces, *([Missing] if outcomes.has_missing else [])])

    def describe(self) -> str:
        ends = (f"{number:g}" if math.isfinite(number) else "" for number in (self.low, self.high))
        words = ["…".join(ends)] if math.isfinite(self.low) or math.isfinite(self.high) else []
        is_coarse = self.masses or self.step > 1e-6 * self.scale * (self.knots[-1] - self.knots[0])
        words += [f"step {self.step:g}"] if self.step and is_coarse else []
        if self.atoms:
            shown = listed([f"{atom:g}" for atom in self.atoms], 5)
            words.append(f"{len(self.atoms)} frequent value{'s' if len(self.atoms) > 1 else ''}: {shown}")
        return "; ".join(words)

    def config(self) -> dict[str, Any]:
        """Open ends are None: JSON has no infinity."""
        ends = {"low": self.low, "high": self.high}
        return {**super().config(), **{k: v if math.isfinite(v) else None for k, v in ends.items()}}


def part_from_config(config: Mapping[str, Any]) -> Part:
    """The part that `config` describes."""
    fields: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list) else v for name, v in config.items() if name != "part"
    }
    for end, infinity in (("low", -math.inf), ("high", math.inf)):
        if end in fields and fields[end] is None:
            fields[end] = infinity
    if "places" in fields:
        fields["places"] = part_from_config(fields["places"])
    families = [*Part.__subclasses__()]
    every = [part for family in families for part in (family, *family.__subclasses__())]
    classes: dict[str, Any] = {part.kind: part for part in every if not isabstract(part)}
    part: Part = classes[config["part"]](**fields)
    return part
