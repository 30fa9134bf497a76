"""Codecs: the cells of a column as events of kernels, and back."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.estimators.table.codecs.parts import Events, Part, PartEvidence
from kdmkit.estimators.table.frames.storage import RawColumn
from kdmkit.kernels import Kernel, Region

__all__ = ["Cells", "Codec", "LeftOutCodec", "PartEvidence"]


class Cells(NamedTuple):
    """The cells of one column as events.

    Attributes:
        parts: one tensor `(rows, *event)` for each part of the column.
        observed: False if a cell is missing, or outside of what the column was fitted to.
        log_offset: added to the log-density of each row: it converts to the user's units and counts cells
            outside of the column's levels or support.
    """

    parts: tuple[Tensor, ...]
    observed: Bool[Tensor, " rows"]
    log_offset: Float[Tensor, " rows"]


#: Evidence on every part of a column.
Box = tuple[PartEvidence, ...]


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
        if self.share:
            offset = offset + np.where(inside, math.log1p(-self.share), math.log(self.share))
        return Cells(
            tuple(part.values for part in events),
            torch.from_numpy(inside & ~missing),
            torch.from_numpy(np.where(missing, 0.0, offset)),
        )

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
    def event(self, value: Any) -> tuple[Tensor, ...]:
        """The event of one value: tensors `(*event,)`, one for each part.

        A value that the column cannot have raises a ValueError that names the column: an unknown level (the
        nearest is suggested), a text in place of a number, a date that does not parse.
        """

    def region(self, value: Any) -> list[Box]:
        """Evidence on the column as disjoint boxes.

        Args:
            value: a value; a pair `(low, high)`, a closed range with None for an open end (ordered columns);
                a list or a set, one of these; or None, unknown.

        Returns:
            A list of boxes, each with evidence on every part. The question is their union.
        """
        if value is None:
            return [(None,) * len(self.parts)]
        if isinstance(value, tuple):
            if not self.ordered or len(value) != 2:
                wanted = "a pair (low, high)" if self.ordered else "a list for a set of values"
                raise self._no_value(wanted, value)
            return self._range(value)
        if isinstance(value, list | set | frozenset | np.ndarray):
            if not len(value):
                raise self._no_value("one or more values", value)
            return self._one_of(list(value))
        return self._point(value)

    def _point(self, value: Any) -> list[Box]:
        """Boxes of one value."""
        return [self.event(value)]

    def _one_of(self, values: list[Any]) -> list[Box]:
        """Boxes of a set of one or more values."""
        raise self._no_value("one value", values)

    def _range(self, ends: tuple[Any, Any]) -> list[Box]:
        """Boxes of a closed range of an ordered column; None is an open end."""
        raise self._no_value("one value", ends)

    def stack(self, boxes: Sequence[Box]) -> tuple[Tensor | Region | None, ...]:
        """Evidence on every part in L boxes, with a leading dimension L; None for no evidence."""
        return tuple(
            None if all(box[i] is None for box in boxes) else part.stack([box[i] for box in boxes])
            for i, part in enumerate(self.parts)
        )

    def beside(self, value: Any, up: bool) -> Any:
        """The end of a closed range that begins just above a value (`up`), or ends just below it."""
        return value

    # ---- description

    @abstractmethod
    def describe(self) -> str:
        """The codec in a few words."""

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
    """

    codec = "left out"
    modelled = False

    def __init__(self, name: str, kind: str, constant: Any = None) -> None:
        self.name, self.kind, self.constant = name, kind, constant
        self.parts, self.share = (), 0.0

    @property
    def part_names(self) -> tuple[str, ...]:
        return ()

    def encode(self, column: RawColumn) -> Cells:
        rows = len(column.missing)
        return Cells((), torch.zeros(rows, dtype=torch.bool), torch.zeros(rows, dtype=torch.float64))

    def decode(self, *parts: Tensor) -> np.ndarray:
        raise self._no_value("a column that takes part in the model", self.kind)

    def event(self, value: Any) -> tuple[Tensor, ...]:
        raise self._no_value(f"no question about it: it is left out ({self.kind})", value)

    def region(self, value: Any) -> list[Box]:
        return [()] if value is None else [self.event(value)]

    def describe(self) -> str:
        return f"always {self.constant!r}" if self.kind == "constant" else "left out"

    def config(self) -> dict[str, Any]:
        constant = self.constant.item() if isinstance(self.constant, np.generic) else self.constant
        return {"codec": self.codec, "name": self.name, "kind": self.kind, "constant": constant}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> LeftOutCodec:
        return cls(config["name"], config["kind"], config["constant"])
