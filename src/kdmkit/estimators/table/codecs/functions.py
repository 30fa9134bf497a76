"""Columns that are functions of another column: the model holds the finer one only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.estimators.table.codecs.base import Box, Cells, Codec
from kdmkit.estimators.table.frames.storage import RawColumn
from kdmkit.kernels import Interval, Missing, OneOf, Region
from kdmkit.kernels.regions import NOTHING, union

#: The code of a missing cell.
GONE = -1


@dataclass(frozen=True)
class StepFunction:
    """A step function of the outcomes of one column, whose values are codes of another one.

    Attributes:
        cuts: outcomes at which a step ends, ascending.
        codes: the code of every step, one more than there are cuts; `GONE` is a missing cell.
        missing: the code where the finer cell is missing.
    """

    cuts: tuple[float, ...]
    codes: tuple[int, ...]
    missing: int = GONE

    def __call__(self, outcomes: np.ndarray) -> np.ndarray:
        """The code of every outcome."""
        return np.array(self.codes)[np.searchsorted(np.array(self.cuts), outcomes, side="right")]

    def preimage(self, region: Region) -> Region:
        """The outcomes of the finer column whose code, or missing cell, lies in a region."""
        codes = np.array(self.codes)
        inside = np.where(codes == GONE, region.has_missing, region.contains(codes.astype(np.float64)))
        starts = [None, *self.cuts, None]
        # Runs of steps that lie inside.
        ends = np.flatnonzero(np.diff(np.concatenate([[False], inside, [False]]).astype(np.int8)))
        parts: list[Region] = [
            Interval(starts[first], starts[last], "left")
            for first, last in zip(ends[::2].tolist(), ends[1::2].tolist(), strict=True)
        ]
        gone = region.has_missing if self.missing == GONE else self.missing in region
        return union([*parts, *([Missing] if gone else [])]) if parts or gone else NOTHING

    def config(self) -> dict[str, Any]:
        """A JSON-ready description: the arguments."""
        return {"cuts": list(self.cuts), "codes": list(self.codes), "missing": self.missing}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> StepFunction:
        return cls(tuple(config["cuts"]), tuple(config["codes"]), config["missing"])


class DerivedCodec(Codec):
    """A column with levels that is a function of another column.

    Its variables are those of the other column; a region of its levels is a region of the other's outcomes.

    Args:
        inner: the codec of the column's own levels.
        source: the codec of the finer column.
        steps: the function, from outcomes of `source` to codes of `inner`.
        exceptions: the share of rows that break the rule, by the rows of the fit; more than 0.
    """

    codec = "derived"

    def __init__(self, inner: Codec, source: Codec, steps: StepFunction, exceptions: float) -> None:
        self.inner, self.source, self.steps, self.exceptions = inner, source, steps, exceptions
        self.name, self.kind, self.share = inner.name, inner.kind, inner.share
        self.ordered, self.numeric, self.parts = inner.ordered, inner.numeric, inner.parts

    @property
    def levels(self) -> Sequence[Any] | None:
        return self.inner.levels

    def of(self, source: Codec) -> DerivedCodec:
        """The same function of the column with another codec."""
        made = copy(self)
        made.source = source
        made.__dict__.pop("level_regions", None)
        return made

    @cached_property
    def level_regions(self) -> list[Region]:
        """The outcomes of the finer column at every level."""
        codes = range(len(self.levels or ()))
        return [self.source.trimmed(self.steps.preimage(OneOf([code]))) for code in codes]

    # ---- rows

    def encode(self, column: RawColumn) -> Cells:
        """The codes of the cells."""
        return self.inner.encode(column)

    def codes(self, *parts: Tensor) -> np.ndarray:
        """The codes of events of the finer column; `GONE` for missing cells."""
        return self.steps(self.source.outcomes_of(self.source.decode(*parts)))

    def cells(self, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values of codes, and which of them are missing."""
        return self.inner.decode(torch.from_numpy(np.maximum(codes, 0))), codes == GONE

    def decode(self, *parts: Tensor) -> np.ndarray:
        return self.cells(self.codes(*parts))[0]

    # ---- questions

    def read(self, region: Region) -> Region:
        return self.inner.read(region)

    def boxes(self, outcomes: Region) -> list[Box]:
        return self.source.boxes(self.source.trimmed(self.steps.preimage(outcomes)))

    def read_text(self, text: str) -> Any:
        return self.inner.read_text(text)

    def are_outcomes(self, column: RawColumn) -> np.ndarray:
        return self.inner.are_outcomes(column)

    def outcomes_of(self, values: np.ndarray) -> np.ndarray:
        return self.inner.outcomes_of(values)

    def raw(self, values: Sequence[Any]) -> RawColumn:
        return self.inner.raw(values)

    # ---- description

    def describe(self) -> str:
        return self.inner.describe()

    def examples(self) -> tuple[str, ...]:
        return self.inner.examples()

    def config(self) -> dict[str, Any]:
        function = {"steps": self.steps.config(), "exceptions": self.exceptions}
        return {"codec": self.codec, "inner": self.inner.config(), **function}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Codec:
        raise TypeError(bad_argument("config", "that of a codec alone: `unlinked` has another one", config))

    @classmethod
    def unlinked(cls, inner: Codec, config: Mapping[str, Any]) -> DerivedCodec:
        """The codec that `config` describes, before `of` gives it the codec of the finer column."""
        return cls(inner, inner, StepFunction.from_config(config["steps"]), config["exceptions"])


def fit_steps(outcomes: np.ndarray, codes: np.ndarray, edge: Any) -> tuple[StepFunction, np.ndarray]:
    """The step function that most rows keep, and which rows break it.

    Args:
        outcomes: of the finer column, NaN where its cell is missing.
        codes: of the coarser column, `GONE` where its cell is missing.
        edge: the edge between two outcomes nearest to a number, as `Part.edge`.
    """
    here = ~np.isnan(outcomes)
    distinct, place = np.unique(outcomes[here], return_inverse=True)
    best = commonest(place.reshape(-1), codes[here], len(distinct))
    change = np.flatnonzero(np.diff(best)) + 1
    cuts = [edge(0.5 * (distinct[i - 1] + distinct[i])) for i in change.tolist()]
    gone = codes[~here]
    missing = int(commonest(np.zeros(len(gone), np.int64), gone, 1)[0]) if len(gone) else GONE
    steps = StepFunction(tuple(map(float, cuts)), tuple(best[[0, *change.tolist()]].tolist()), missing)
    expected = np.full(len(codes), missing)
    expected[here] = best[place.reshape(-1)]
    return steps, expected != codes


def commonest(groups: np.ndarray, codes: np.ndarray, n_groups: int) -> np.ndarray:
    """The most frequent code of every group."""
    width = int(codes.max(initial=0)) + 2
    pairs, counts = np.unique(groups * width + codes + 1, return_counts=True)
    order = np.argsort(counts, kind="stable")
    best = np.full(n_groups, GONE)
    best[pairs[order] // width] = pairs[order] % width - 1
    return best
