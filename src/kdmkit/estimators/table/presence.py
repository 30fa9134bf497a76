"""Whether a cell is there: one more variable of every column that has missing cells.

The kernels of a column know present values only. A tree ties the presence of a cell to whatever it depends
on: values of other columns, or the presence of other cells. Where cells are missing completely at random it
is independent, and the other variables learn what they would learn without it.

A number beside a column of texts is there if and only if that column says so, so it has no such variable.
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
from kdmkit.training import Table

# Rules about missing cells have no exceptions: less is spread evenly than among other levels.
_SMOOTHING = 0.1
#: All values of a cell that is there.
PRESENT = ~Missing


@dataclass(frozen=True)
class Presence:
    """The variable that says whether a cell is there: 1, or 0 if it is missing.

    Attributes:
        name: the variable; "" if those of a column of texts say it.
        smoothing: of its `Levels`.
        texts: variables of the column of texts, with their codes where the cell is a number.
    """

    name: str
    smoothing: float
    texts: tuple[tuple[str, int], ...] = ()

    @property
    def there(self) -> dict[str, int]:
        """The codes of variables for a cell that is there; another code of any of them: it is missing."""
        return dict(self.texts) if self.texts else {self.name: 1}

    @classmethod
    def fit(cls, name: str, missing: np.ndarray) -> Presence | None:
        """That of a column with missing cells; None if no cell is missing.

        Args:
            missing: True for missing cells.
        """
        return cls(name, _SMOOTHING * smoothing(2, len(missing))) if missing.any() else None

    @property
    def variables(self) -> list[Variable]:
        """The variable of a layer; none if it has none of its own."""
        return [Variable(self.name, Levels(2, self.smoothing), torch.Size())] if self.name else []

    def encode(self, missing: np.ndarray) -> Int[Tensor, " rows"]:
        """The event of every cell."""
        return torch.from_numpy((~missing).astype(np.int64))

    def is_missing(self, values: Mapping[str, Tensor]) -> Bool[Tensor, " rows"]:
        """The rows whose cell is missing, of events by variable; variables that are absent say nothing."""
        signs = [values[name] != code for name, code in self.there.items() if name in values]
        return torch.stack(signs).any(0)

    def is_known_missing(self, rows: Table) -> Bool[Tensor, " rows"]:
        """The rows of which it is known that the cell is missing."""
        signs = [
            rows.observed[name] & (rows.columns[name] != code)
            for name, code in self.there.items()
            if name in rows.columns
        ]
        return torch.stack(signs).any(0) if signs else torch.zeros(len(rows), dtype=torch.bool)

    def put_there(self, values: dict[str, Tensor], observed: dict[str, Tensor], n: int) -> None:
        """Says of all of n rows that the cell is there."""
        for name, code in self.there.items():
            values[name], observed[name] = torch.full((n,), code), torch.ones(n, dtype=torch.bool)

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
        there: Box = {}
        missing: list[Box] = []
        for name, code in self.there.items():
            other = OneOf([0]) if name == self.name else ~OneOf([code]) & PRESENT
            missing.append({**there, name: other})
            there[name] = OneOf([code])
        return (missing if outcomes.has_missing else []) + [{**there, **box} for box in boxes]

    # ---- description

    def config(self) -> dict[str, Any]:
        """A JSON-ready description: the arguments."""
        texts = {"texts": [list(pair) for pair in self.texts]} if self.texts else {}
        return {"name": self.name, "smoothing": self.smoothing, **texts}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Presence:
        """That which `config` describes."""
        texts = tuple((name, code) for name, code in config.get("texts", ()))
        return cls(config["name"], config["smoothing"], texts)
