"""What a part of a column is: numbers as events of one variable, and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit.kernels import Interval, Kernel, OneOf, Region

# Numbers that differ by less, relative to the units of the model, may be one in single precision.
_TINY = 2.0**-21
#: What is known of one part of a column: a point, a region, or nothing.
Known = Tensor | Region | None


class Events(NamedTuple):
    """Numbers as events.

    Attributes:
        values: `(rows, *event)`, anything valid where a number is outside.
        inside: False where the part cannot have the number.
        log_offset: what the log-density of each number in the user's units has more than that of its event.
    """

    values: Tensor
    inside: np.ndarray
    log_offset: np.ndarray


class Part(ABC):
    """A one-dimensional variable. It reads and gives numbers in the units of the column."""

    kind: ClassVar[str]

    @abstractmethod
    def kernel(self, n_components: int | None) -> Kernel:
        """The variable's kernel; with a number, one bandwidth per component, where it has bandwidths."""

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """The shape of one event."""

    @property
    def values(self) -> tuple[float, ...] | None:
        """The number of every code, where events are codes."""
        return None

    @abstractmethod
    def encode(self, numbers: np.ndarray) -> Events: ...

    @abstractmethod
    def decode(self, events: Tensor, *, rounded: bool = True) -> np.ndarray:
        """Numbers of events `(*lead, *event)`, on the grid of the column where `rounded`."""

    @abstractmethod
    def interval(self, low: float, high: float) -> Known:
        """That a number lies in [low, high]; None where that says nothing. Empty ranges raise."""

    @abstractmethod
    def one_of(self, events: Sequence[Tensor]) -> list[Known]:
        """That an event is one of those given: one set, or one point for each where there are no masses."""

    def beside(self, number: float, up: bool) -> float:
        """The end of a closed range that begins just above a number (`up`), or ends just below it.

        Numbers on a grid are half a step away. Other numbers move by so little that no probability changes,
        but by enough that a frequent value there is left out.
        """
        return number + (1 if up else -1) * self._half_step(number)

    def _half_step(self, number: float) -> float:
        return _TINY * (abs(number) + 1)

    @abstractmethod
    def stack(self, known: Sequence[Known]) -> Tensor | Region:
        """What is known in L cases as one tensor or region with a leading dimension L."""

    @abstractmethod
    def describe(self) -> str:
        """What was found, in a few words."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """A JSON-ready description from which `part_from_config` makes an equal part."""


def stack_codes(known: Sequence[Known], n: int) -> Tensor | Region:
    """Codes and sets of codes of L cases, as one tensor or one `OneOf` of sets of one size."""
    if all(isinstance(case, Tensor) for case in known):
        return torch.stack([case for case in known if isinstance(case, Tensor)])
    sets = [_codes(case, n) for case in known]
    size = max(map(len, sets))
    # A code that is listed twice counts once.
    return OneOf(torch.tensor([codes + codes[:1] * (size - len(codes)) for codes in sets]))


def _codes(case: Known, n: int) -> list[int]:
    if case is None:
        return list(range(n))
    values = case.values if isinstance(case, OneOf) else case
    assert isinstance(values, Tensor)
    return [int(code) for code in values.reshape(-1)]


def stack_numbers(known: Sequence[Known], whole: tuple[float, float]) -> Tensor | Region:
    """Points, sets or intervals of L cases with a leading dimension; `whole` are the ends of all events."""
    if all(isinstance(case, Tensor) for case in known):
        return torch.stack([case for case in known if isinstance(case, Tensor)])
    if all(isinstance(case, OneOf) for case in known):  # one question in L cases: sets of one size
        return OneOf(torch.stack([case.values for case in known if isinstance(case, OneOf)]))
    ends = [_ends(case, whole) for case in known]
    return Interval(*(torch.stack(end) for end in zip(*ends, strict=True)))


def _ends(case: Known, whole: tuple[float, float]) -> tuple[Float[Tensor, " 1"], Float[Tensor, " 1"]]:
    if isinstance(case, Interval):
        return case.low, case.high
    if isinstance(case, Tensor):
        return case.double(), case.double()
    return torch.tensor(whole[:1]).double(), torch.tensor(whole[1:]).double()


def nearest(known: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The place of the known number, of ascending ones, that is nearest to each number."""
    above = np.clip(np.searchsorted(known, numbers), 0, len(known) - 1)
    below = np.maximum(above - 1, 0)
    return np.where(np.abs(known[below] - numbers) < np.abs(known[above] - numbers), below, above)


def listed(texts: Sequence[str], most: int) -> str:
    """Texts with commas; of more than `most` the first ones and the last.

    >>> listed(["a", "b", "c", "d", "e"], 4)
    'a, b, …, e'
    """
    return ", ".join(texts if len(texts) <= most else [*texts[: most - 2], "…", texts[-1]])
