"""What a column's cells are as events of kernels, and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

from kdmkit.kernels import Kernel
from kdmkit.kernels.regions import Region

#: What is known of one part of a column: a point, a region, or nothing.
Known = Tensor | Region | None


class Cells(NamedTuple):
    """The cells of one column as events.

    Attributes:
        parts: one tensor `(rows, *event)` for each part of the column.
        observed: False where a cell is missing, or outside of what the column was fitted to.
        log_offset: what to add to the log-density of each row, so that it is in the user's units and counts
            cells outside of the column's levels or support.
    """

    parts: tuple[Tensor, ...]
    observed: Bool[Tensor, " rows"]
    log_offset: Float[Tensor, " rows"]


class Codec(ABC):
    """Turns the cells of one column into events of one or several variables (*parts*), and back.

    Most columns have one part. A date has several, for example the week, the weekday and the time of day.
    A codec is made by `fit` of its class or by `from_config`, and does not change afterwards.
    """

    #: The kind, as `types={"zip": "category"}` names it.
    kind: ClassVar[str]
    #: Whether values are ordered: they have quantiles, and a pair in a question is a range.
    ordered: ClassVar[bool] = False
    #: Whether values have a mean.
    numeric: ClassVar[bool] = False

    name: str

    @property
    def part_names(self) -> tuple[str, ...]:
        """A short name for every part, `("",)` where there is only one."""
        return ("",)

    @property
    def levels(self) -> Sequence[Any] | None:
        """The values by code, where a column has finitely many (then its only part holds codes), or None."""
        return None

    @property
    def modelled(self) -> bool:
        """Whether the column takes part in the model: constants, identifiers and texts do not."""
        return True

    @abstractmethod
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernel of every part."""

    @abstractmethod
    def encode(self, values: np.ndarray, missing: np.ndarray) -> Cells:
        """Events of cells; `missing` is True where there is no value (`values` is anything there)."""

    @abstractmethod
    def decode(self, *parts: Tensor) -> np.ndarray:
        """Values of events `(rows, *event)`: rounded to the column's resolution, inside its support."""

    def numbers(self, *parts: Tensor) -> np.ndarray:
        """Values of events that are not rounded, such as means: floats, or date-times for dates.

        Shapes other than `(rows, *event)` are kept: the result is `(*lead,)`.
        """
        raise TypeError(f"{self.name}: a column of kind {self.kind} has no numbers")

    @abstractmethod
    def event(self, value: Any) -> tuple[Tensor, ...]:
        """The event of one value: tensors `(*event,)`, one for each part.

        Raises a ValueError that names the column where the value is none of it: an unknown level (the nearest
        is suggested), a text where numbers are, a date that does not parse.
        """

    @abstractmethod
    def region(self, value: Any) -> list[tuple[Known, ...]]:
        """What a question says about the column, as disjoint boxes.

        Args:
            value: a value; a pair `(low, high)`, a closed range with None for an open end (ordered columns);
                a list or a set, one of these; or None, unknown.

        Returns:
            A list of boxes; each holds for every part what is known of it. The question is their union.
        """

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """A JSON-ready description from which `codec_from_config` makes an equal codec."""

    @classmethod
    @abstractmethod
    def from_config(cls, config: Mapping[str, Any]) -> Codec:
        """The codec that `config` describes."""
