"""Whether a cell is there: one more variable of every column that has missing cells.

The kernels of a column know present values only. A tree ties the presence of a cell to whatever it depends
on: values of other columns, or the presence of other cells. Where cells are missing completely at random it
is independent, and the other variables learn what they would learn without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from kdmkit.distributions.events import Box
from kdmkit.estimators.table.codecs.analysis import smoothing
from kdmkit.kernels import Levels, Missing, OneOf, Region
from kdmkit.kernels.regions import NOTHING, WHOLE, region_of
from kdmkit.nn import Variable

# Rules about missing cells have no exceptions: less is spread evenly than among other levels.
_SMOOTHING = 0.1
#: All values of a cell that is there.
PRESENT = ~Missing


@dataclass(frozen=True)
class Presence:
    """The variable that says whether a cell is there: 1, or 0 if it is missing.

    Attributes:
        name: the variable.
        smoothing: of its `Levels`.
    """

    name: str
    smoothing: float

    @classmethod
    def fit(cls, name: str, missing: np.ndarray) -> Presence | None:
        """That of a column with missing cells; None if no cell is missing.

        Args:
            missing: True for missing cells.
        """
        return cls(name, _SMOOTHING * smoothing(2, len(missing))) if missing.any() else None

    @property
    def variable(self) -> Variable:
        """The variable of a layer."""
        return Variable(self.name, Levels(2, self.smoothing), torch.Size())

    def encode(self, missing: np.ndarray) -> Int[Tensor, " rows"]:
        """The event of every cell."""
        return torch.from_numpy((~missing).astype(np.int64))

    def is_missing(self, values: Mapping[str, Tensor]) -> Bool[Tensor, " rows"]:
        """The rows whose cell is missing, of events by variable."""
        return values[self.name] == 0

    # ---- questions

    def trimmed(self, outcomes: Region, values: Region) -> Region:
        """A region of outcomes, of which `values` are those of present cells after trimming."""
        if values.is_whole:
            return WHOLE if outcomes.has_missing else PRESENT
        if values.is_empty:
            return Missing if outcomes.has_missing else NOTHING
        return region_of(values.spans, outcomes.has_missing)

    def boxes(self, outcomes: Region, boxes: list[Box]) -> list[Box]:
        """Disjoint boxes of a region of outcomes, given those of the values in it."""
        missing: list[Box] = [{self.name: OneOf([0])}] if outcomes.has_missing else []
        return missing + [{self.name: OneOf([1]), **box} for box in boxes]

    # ---- description

    def config(self) -> dict[str, Any]:
        """A JSON-ready description: the arguments."""
        return {"name": self.name, "smoothing": self.smoothing}
