"""Parts of a column: each is one variable of the model."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.kernels import (
    RBF,
    Inflated,
    Interval,
    Kernel,
    Levels,
    OneOf,
    QuantileNormal,
    Region,
    Rounded,
    Transformed,
    Truncated,
)

# Numbers that differ by less, relative to the units of the model, may be one in single precision.
_TINY = 2.0**-21
#: Evidence on one part of a column: a point, a region, or None.
PartEvidence = Tensor | Region | None


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

    @abstractmethod
    def interval(self, low: float, high: float) -> PartEvidence:
        """Evidence that a number lies in [low, high]; None if all numbers do. Empty ranges raise."""

    @abstractmethod
    def one_of(self, events: Sequence[Tensor]) -> list[PartEvidence]:
        """Evidence that an event is one of some: one set, or one point for each if there are no masses."""

    def beside(self, number: float, up: bool) -> float:
        """The end of a closed range that begins just above a number (`up`), or ends just below it.

        Numbers on a grid are half a step away. Other numbers move by so little that no probability changes,
        but by enough that a frequent value there is left out.
        """
        return number + (1 if up else -1) * self._half_step(number)

    def _half_step(self, number: float) -> float:
        return _TINY * (abs(number) + 1)

    @abstractmethod
    def stack(self, cases: Sequence[PartEvidence]) -> Tensor | Region:
        """Evidence in L cases as one tensor or region with a leading dimension L."""

    @abstractmethod
    def describe(self) -> str:
        """The part in a few words."""

    def config(self) -> dict[str, Any]:
        """A JSON-ready description from which `part_from_config` makes an equal part."""
        return {"part": self.kind, **asdict(self)}


def stack_codes(cases: Sequence[PartEvidence], n: int) -> Tensor | Region:
    """Codes and sets of codes of L cases, as one tensor or one `OneOf` of sets of one size."""
    if all(isinstance(case, Tensor) for case in cases):
        return torch.stack([case for case in cases if isinstance(case, Tensor)])
    sets = [_codes(case, n) for case in cases]
    size = max(map(len, sets))
    # A code that is listed twice counts once.
    return OneOf(torch.tensor([codes + codes[:1] * (size - len(codes)) for codes in sets]))


def _codes(case: PartEvidence, n: int) -> list[int]:
    if case is None:
        return list(range(n))
    values = case.values if isinstance(case, OneOf) else case
    assert isinstance(values, Tensor)
    return [int(code) for code in values.reshape(-1)]


def stack_numbers(cases: Sequence[PartEvidence], whole: tuple[float, float]) -> Tensor | Region:
    """Points, sets or intervals of L cases with a leading dimension; `whole` are the ends of all events."""
    if all(isinstance(case, Tensor) for case in cases):
        return torch.stack([case for case in cases if isinstance(case, Tensor)])
    if all(isinstance(case, OneOf) for case in cases):  # one question in L cases: sets of one size
        return OneOf(torch.stack([case.values for case in cases if isinstance(case, OneOf)]))
    ends = [_ends(case, whole) for case in cases]
    return Interval(*(torch.stack(end) for end in zip(*ends, strict=True)))


def _ends(case: PartEvidence, whole: tuple[float, float]) -> tuple[Float[Tensor, " 1"], Float[Tensor, " 1"]]:
    if isinstance(case, Interval):
        return case.low, case.high
    if isinstance(case, Tensor):
        return case.double(), case.double()
    return torch.tensor(whole[:1]).double(), torch.tensor(whole[1:]).double()


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


@dataclass(frozen=True)
class CodePart(Part):
    """Few numbers, each a level.

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
        levels = np.array(self.numbers)
        code = nearest(levels, numbers)
        gap = np.min(np.diff(levels)) if len(levels) > 1 else 1.0
        inside = np.abs(levels[code] - numbers) <= 1e-6 * gap
        return Events(torch.from_numpy(code), inside, np.zeros(len(code)))

    def decode(self, events: Tensor, *, rounded: bool = True) -> np.ndarray:
        return np.array(self.numbers)[events.detach().cpu().long().numpy()]

    def interval(self, low: float, high: float) -> PartEvidence:
        levels = np.array(self.numbers)
        codes = np.flatnonzero((levels >= low) & (levels <= high))
        if not len(codes):
            raise ValueError(
                bad_argument("range", f"one that holds a value ({self.describe()})", (low, high))
            )
        if len(codes) == len(levels):
            return None
        return OneOf(codes) if len(codes) != 1 else torch.tensor(int(codes[0]))

    def one_of(self, events: Sequence[Tensor]) -> list[PartEvidence]:
        return [OneOf(torch.stack(list(events)))]

    def stack(self, cases: Sequence[PartEvidence]) -> Tensor | Region:
        return stack_codes(cases, len(self.numbers))

    def describe(self) -> str:
        return f"{len(self.numbers)} values: {listed([f'{number:g}' for number in self.numbers], 6)}"


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

    def interval(self, low: float, high: float) -> PartEvidence:
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

    def one_of(self, events: Sequence[Tensor]) -> list[PartEvidence]:
        return [OneOf(torch.cat(list(events)))] if self.masses else list(events)

    def stack(self, cases: Sequence[PartEvidence]) -> Tensor | Region:
        return stack_numbers(cases, (-math.inf, math.inf))

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
    fields = {name: tuple(v) if isinstance(v, list) else v for name, v in config.items() if name != "part"}
    for end, infinity in (("low", -math.inf), ("high", math.inf)):
        if end in fields and fields[end] is None:
            fields[end] = infinity
    classes: dict[str, Any] = {part.kind: part for part in Part.__subclasses__()}
    part: Part = classes[config["part"]](**fields)
    return part
