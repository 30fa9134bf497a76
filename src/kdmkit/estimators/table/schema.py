"""What the columns of a table are, and how rows become events of variables and come back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor

from kdmkit.estimators.table.codecs import Codec
from kdmkit.kernels.regions import Region
from kdmkit.nn import Variable


@dataclass(frozen=True)
class Column:
    """What one column was taken for.

    Attributes:
        name: the column's name.
        kind: float, integer, count, ordinal, category, boolean, date, time, constant, identifier or text.
        why: the reason in a few words.
        details: what the codec found: levels, range, resolution, atoms.
        variables: names of the column's variables in the model, one for each part; () if it is left out.
        codec: turns its cells into events and back.
        missing: the share of missing cells in the rows it was fitted to.
    """

    name: str
    kind: str
    why: str
    details: str
    variables: tuple[str, ...]
    codec: Codec
    missing: float


class Encoded(NamedTuple):
    """Rows as events.

    Attributes:
        values: by variable, tensors `(rows, *event)`; anything valid where a cell is missing.
        observed: by variable, masks `(rows,)`, False where a cell is missing.
        log_offset: what to add to the model's log-density of each row: units of the user, and the probability
            of levels and values that the fitted rows could not have. Zero for most tables.
    """

    values: dict[str, Tensor]
    observed: dict[str, Bool[Tensor, " rows"]]
    log_offset: Float[Tensor, " rows"]


class Schema:
    """The columns of a table.

    Attributes:
        columns: what every column was taken for, by name, in the order of the frame.
    """

    columns: dict[str, Column]

    @classmethod
    def from_frame(cls, frame: Any, types: Mapping[str, str] | None = None) -> Schema:
        """The schema of a frame.

        Args:
            frame: pandas, polars, Arrow or anything else that narwhals reads; a mapping of arrays; a
                two-dimensional array; a path to CSV or Parquet.
            types: kinds that the caller decides, by column.
        """
        raise NotImplementedError

    def variables(self) -> list[Variable]:
        """Variables of a layer for all columns that are modelled: `c0`, `c1`, `c2_day`, `c2_time`, …"""
        raise NotImplementedError

    def encode(self, frame: Any) -> Encoded:
        """Rows as events. Columns that the schema lacks are ignored with one warning; absent ones are missing."""
        raise NotImplementedError

    def decode(self, values: Mapping[str, Tensor], *, columns: Sequence[str] | None = None) -> Any:
        """A frame like the one that came in, for events `(rows, *event)` by variable.

        Constants come back as they are; identifiers and texts are left out.

        Args:
            columns: the columns wanted; None is all of which `values` holds the variables, and constants.
        """
        raise NotImplementedError

    def evidence(self, given: Mapping[str, Any]) -> dict[str, Tensor | Region]:
        """What a question knows, as evidence for `infer`, by variable.

        Every tensor and region has one leading dimension L: the question is a union of L disjoint boxes, and L
        is 1 but for ranges of date-times and sets of numbers. An answer over L boxes is the average of the L
        answers, weighted by softmax(log_evidence). Variables of which nothing is known are absent.

        Args:
            given: by column: a value; a pair, which is a closed range with None for an open end; a list or a
                set; None for unknown.
        """
        raise NotImplementedError

    def config(self) -> dict[str, Any]:
        """A JSON-ready description from which `from_config` makes an equal schema."""
        raise NotImplementedError

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Schema:
        """The schema that `config` describes."""
        raise NotImplementedError
