"""Codecs: the cells of a column as events of kernels, and back."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.estimators.table.codecs.keys import Keys, keys_from_config
from kdmkit.estimators.table.codecs.parts import Events, NumberPart, Part
from kdmkit.estimators.table.frames.storage import RawColumn
from kdmkit.kernels import Kernel, Region
from kdmkit.kernels.regions import WHOLE


class Cells(NamedTuple):
    """The cells of one column as events.

    Attributes:
        parts: one tensor `(rows, *event)` for each part of the column.
        observed: False if a cell is missing, or outside of what the column was fitted to.
        log_offset: added to the log-density of each row: it converts to the user's units.
    """

    parts: tuple[Tensor, ...]
    observed: Bool[Tensor, " rows"]
    log_offset: Float[Tensor, " rows"]


#: By the place of a part, a region of its kernel.
Box = dict[int, Region]


class Codec(ABC):
    """Turns the cells of one column into events of one or several variables (*parts*), and back.

    Most columns have one part. A date has several, for example the week, the weekday and the time of day.
    A codec is made by `fit` of its class or by `from_config`, and does not change afterwards.
    """

    #: Names the class in `config`.
    codec: ClassVar[str]

    #: The column's name.
    name: str
    #: The kind, as `types={"zip": "category"}` names it.
    kind: str
    #: How every part is an event.
    parts: tuple[Part, ...]
    #: The probability of a value that the column cannot have, by the rows that it was fitted to.
    share: float
    #: Whether values are ordered: they have quantiles, and a pair in a question is a range.
    ordered: bool = False
    #: Whether values are numbers, which have a mean.
    numeric: bool = False
    #: Whether the column takes part in the model: constants, identifiers and texts do not.
    modelled: bool = True
    #: What new keys of an identifier look like; None if draws have none.
    keys: Keys | None = None

    @property
    def part_names(self) -> tuple[str, ...]:
        """A short name for every part, `("",)` if there is only one."""
        return ("",)

    @property
    def levels(self) -> Sequence[Any] | None:
        """The values by code, if a column has finitely many (then its only part holds codes), or None."""
        return None

    def kernels(self, n_components: int | None = None) -> tuple[Kernel, ...]:
        """The kernel of every part.

        Args:
            n_components: the number of components, if each has a bandwidth.
        """
        return tuple(part.kernel(n_components) for part in self.parts)

    @property
    def shapes(self) -> tuple[torch.Size, ...]:
        """The shape of one event of every part."""
        return tuple(part.shape for part in self.parts)

    # ---- rows

    @abstractmethod
    def encode(self, column: RawColumn) -> Cells:
        """The cells of a column as events."""

    def _cells(self, events: Sequence[Events], missing: np.ndarray) -> Cells:
        """Cells of the events of every part. Values that the column cannot have are taken for missing."""
        inside = np.logical_and.reduce([part.inside for part in events])
        offset = np.where(inside, sum(part.log_offset for part in events), 0.0)
        return Cells(
            tuple(part.values for part in events),
            torch.from_numpy(inside & ~missing),
            torch.from_numpy(np.where(missing, 0.0, offset)),
        )

    def log_share(self, cells: Cells, missing: np.ndarray) -> Float[Tensor, " rows"]:
        """The log-probability that a cell has a value of the column, or that it has another one."""
        inside, outside = math.log1p(-self.share), math.log(self.share) if self.share else 0.0
        log_share = torch.where(cells.observed, inside, outside)
        return torch.where(torch.from_numpy(missing), 0.0, log_share).double()

    @abstractmethod
    def decode(self, *parts: Tensor) -> np.ndarray:
        """Values of events `(rows, *event)`: rounded to the column's resolution, inside its support.

        They have the dtype that arrays of `Storage.base` have.
        """

    def numbers(self, *parts: Tensor) -> np.ndarray:
        """Values of events that are not rounded, such as means: floats, or date-times for dates.

        Shapes other than `(rows, *event)` are kept: the result is `(*lead,)`.
        """
        raise TypeError(bad_argument(f"column {self.name!r}", "one of numbers or dates", self.kind))

    def values(self, *parts: Tensor) -> np.ndarray:
        """Values of events as answers give them: `numbers` on the column's grid."""
        return self.numbers(*parts)

    # ---- questions

    @abstractmethod
    def read(self, region: Region) -> Region:
        """A region of values as people write them, as one of outcomes: of numbers whose order is theirs.

        A value of a wrong type, an unknown level and a date that does not parse raise a ValueError that names
        the column. A value that the column cannot have is no outcome.
        """

    def read_part(self, part: str, region: Region) -> Region:
        """The outcomes of which a part of the date, such as the month, lies in a region."""
        raise self._no_value(f"a date, for its {part}", self.kind)

    def trimmed(self, outcomes: Region) -> Region:
        """A region of outcomes; `WHOLE` if it holds all of them, `NOTHING` if it holds none."""
        return self.parts[0].trimmed(outcomes)

    def boxes(self, outcomes: Region) -> list[Box]:
        """Disjoint boxes of regions of the kernels of all parts; a part without a region is free."""
        return [{0: self.parts[0].kernel_region(outcomes)}]

    def read_text(self, text: str) -> Any:
        """A date or a time in the form of ISO 8601, or a number, from one that a person writes."""
        raise self._no_value("a column of dates or times", self.kind)

    def listed(self, low: Any, high: Any, most: int) -> list[Any] | None:
        """The values from `low` to `high`, if the column has a grid and they are at most `most`."""
        return None

    @cached_property
    def seen(self) -> Region:
        """Outcomes from the least to the greatest value of the data."""
        return WHOLE

    def are_outcomes(self, column: RawColumn) -> np.ndarray:
        """Whether cells lie on the grid of the column."""
        return np.ones(len(column.values), dtype=bool)

    def with_points(self, points: Sequence[Any]) -> Codec:
        """The codec, which decodes numbers beside some single values as these."""
        return self

    @property
    def atoms(self) -> tuple[float, ...]:
        """Single numbers with a probability."""
        return ()

    @property
    def number_part(self) -> NumberPart | None:
        """How numbers without levels are events."""
        return None

    @property
    def breaks(self) -> tuple[float, ...]:
        """Numbers at which the distribution function has a step or a kink."""
        return self.atoms

    @abstractmethod
    def outcomes_of(self, values: np.ndarray) -> np.ndarray:
        """The outcomes of decoded values, as numbers."""

    @abstractmethod
    def raw(self, values: Sequence[Any]) -> RawColumn:
        """Values as people write them, as a column that `encode` takes."""

    # ---- description

    @abstractmethod
    def describe(self) -> str:
        """The codec in a few words."""

    def examples(self) -> tuple[str, ...]:
        """Some values as they are written, the least and the greatest of ordered ones."""
        return ()

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """A JSON-ready description from which `codec_from_config` makes an equal codec."""

    @classmethod
    @abstractmethod
    def from_config(cls, config: Mapping[str, Any]) -> Codec:
        """The codec that `config` describes."""

    def _no_value(self, wanted: str, value: Any) -> ValueError:
        return ValueError(bad_argument(f"column {self.name!r}", wanted, repr(value)))


class LeftOutCodec(Codec):
    """A column that takes no part in the model: a constant, an identifier, a text, an empty column.

    Args:
        constant: the only value of a constant column; None in other columns.
        keys: what new keys of an identifier look like; None if draws have none.
    """

    codec = "left out"
    modelled = False

    def __init__(self, name: str, kind: str, constant: Any = None, keys: Keys | None = None) -> None:
        self.name, self.kind, self.constant, self.keys = name, kind, constant, keys
        self.parts, self.share = (), 0.0

    @property
    def part_names(self) -> tuple[str, ...]:
        return ()

    def encode(self, column: RawColumn) -> Cells:
        rows = len(column.missing)
        return Cells((), torch.zeros(rows, dtype=torch.bool), torch.zeros(rows, dtype=torch.float64))

    def decode(self, *parts: Tensor) -> np.ndarray:
        raise self._no_value("a column that takes part in the model", self.kind)

    def read(self, region: Region) -> Region:
        raise self._no_value(f"no question about it: it is left out ({self.kind})", region)

    def outcomes_of(self, values: np.ndarray) -> np.ndarray:
        raise self._no_value("a column that takes part in the model", self.kind)

    def raw(self, values: Sequence[Any]) -> RawColumn:
        raise self._no_value("a column that takes part in the model", self.kind)

    def describe(self) -> str:
        if self.kind == "constant":
            return f"always {self.constant!r}"
        return "left out" if self.keys is None else "left out; draws have new keys"

    def config(self) -> dict[str, Any]:
        constant = self.constant.item() if isinstance(self.constant, np.generic) else self.constant
        keys = {} if self.keys is None else {"keys": self.keys.config()}
        return {"codec": self.codec, "name": self.name, "kind": self.kind, "constant": constant, **keys}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> LeftOutCodec:
        return cls(config["name"], config["kind"], config["constant"], keys_from_config(config.get("keys")))
