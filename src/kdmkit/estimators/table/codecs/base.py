"""What a column's cells are as events of kernels, and back."""

from __future__ import annotations

import difflib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.estimators.table.codecs.parts import Known
from kdmkit.estimators.table.frames.storage import RawColumn
from kdmkit.kernels import Kernel, Region

__all__ = ["Cells", "Codec", "Known", "LeftOut", "is_range", "nearest", "unseen_offset"]


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

    #: Names the class in `config`.
    codec: ClassVar[str]

    #: The column's name.
    name: str
    #: The kind, as `types={"zip": "category"}` names it.
    kind: str

    @property
    def ordered(self) -> bool:
        """Whether values are ordered: they have quantiles, and a pair in a question is a range."""
        return False

    @property
    def numeric(self) -> bool:
        """Whether values are numbers, which have a mean."""
        return False

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
    def kernels(self, n_components: int | None = None) -> tuple[Kernel, ...]:
        """The kernel of every part.

        Args:
            n_components: where bandwidths are one per component, the number of components.
        """

    @property
    @abstractmethod
    def shapes(self) -> tuple[torch.Size, ...]:
        """The shape of one event of every part."""

    @abstractmethod
    def encode(self, column: RawColumn) -> Cells:
        """The cells of a column as events."""

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
    def stack(self, boxes: Sequence[tuple[Known, ...]]) -> tuple[Tensor | Region | None, ...]:
        """What is known of every part in L boxes, with a leading dimension L; None where it is nothing."""

    @abstractmethod
    def describe(self) -> str:
        """What was found, in a few words."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """A JSON-ready description from which `codec_from_config` makes an equal codec."""

    @classmethod
    @abstractmethod
    def from_config(cls, config: Mapping[str, Any]) -> Codec:
        """The codec that `config` describes."""

    def _no_value(self, wanted: str, value: Any) -> ValueError:
        return ValueError(bad_argument(f"column {self.name!r}", wanted, repr(value)))


class LeftOut(Codec):
    """A column that takes no part in the model: a constant, an identifier, a text, an empty column.

    Args:
        constant: the only value of a constant column; None in other columns.
    """

    codec = "left out"

    def __init__(self, name: str, kind: str, constant: Any = None) -> None:
        self.name, self.kind, self.constant = name, kind, constant

    @property
    def part_names(self) -> tuple[str, ...]:
        return ()

    @property
    def modelled(self) -> bool:
        return False

    @property
    def shapes(self) -> tuple[torch.Size, ...]:
        return ()

    def kernels(self, n_components: int | None = None) -> tuple[Kernel, ...]:
        return ()

    def encode(self, column: RawColumn) -> Cells:
        rows = len(column.missing)
        return Cells((), torch.zeros(rows, dtype=torch.bool), torch.zeros(rows, dtype=torch.float64))

    def decode(self, *parts: Tensor) -> np.ndarray:
        raise self._no_value("a column that takes part in the model", self.kind)

    def event(self, value: Any) -> tuple[Tensor, ...]:
        raise self._no_value(f"no question about it: it is left out ({self.kind})", value)

    def region(self, value: Any) -> list[tuple[Known, ...]]:
        if value is None:
            return [()]
        raise self._no_value(f"no question about it: it is left out ({self.kind})", value)

    def stack(self, boxes: Sequence[tuple[Known, ...]]) -> tuple[Tensor | Region | None, ...]:
        return ()

    def describe(self) -> str:
        return f"always {self.constant!r}" if self.kind == "constant" else "left out"

    def config(self) -> dict[str, Any]:
        constant = self.constant.item() if isinstance(self.constant, np.generic) else self.constant
        return {"codec": self.codec, "name": self.name, "kind": self.kind, "constant": constant}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> LeftOut:
        return cls(config["name"], config["kind"], config["constant"])


# ---- shared by codecs


def is_range(value: Any) -> bool:
    """Whether a question's value is a pair, a closed range."""
    return isinstance(value, tuple)


def nearest(value: Any, known: Iterable[Any]) -> str:
    """A hint at the known value that is most like an unknown one: " (did you mean 'Good'?)", or nothing."""
    words = {str(word).casefold(): word for word in known}
    close = difflib.get_close_matches(str(value).casefold(), words, n=1)
    return f" (did you mean {words[close[0]]!r}?)" if close else ""


def unseen_offset(outside: np.ndarray, share: float) -> np.ndarray:
    """Log-probabilities of being outside of what was seen, and of not being outside."""
    return np.where(outside, math.log(share), math.log1p(-share)) if share else np.zeros(len(outside))
