"""How a frame stores a column: what is needed to give it back as it came."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

#: What the values of a column are, whatever the frame: each has one dtype of arrays that codecs read.
BASES = {
    "boolean": np.dtype(bool),
    "integer": np.dtype(np.int64),
    "float": np.dtype(np.float64),
    "string": np.dtype(object),
    "datetime": np.dtype("datetime64[us]"),
    "time": np.dtype(np.int64),  # microseconds since midnight
    "duration": np.dtype(np.int64),  # microseconds
    "other": np.dtype(object),
}


@dataclass(frozen=True)
class Storage:
    """The type of a column in a frame.

    Attributes:
        base: what the values are, one of `BASES`.
        native: the frame's own name of the dtype.
        objects: the Python type of values that a frame keeps as objects: str, bool, date, Decimal, …
        unit: of date-times and durations: s, ms, us, ns; D for dates.
        zone: the time zone of date-times. Values are wall-clock times of that zone.
        scale: the number of decimals of decimal numbers.
        precision: the number of digits of decimal numbers.
        categories: the levels that the dtype declares, also those that no row has.
        ordered: whether the order of the categories means something.
        digits: significant digits that the dtype holds.
    """

    base: str
    native: str = ""
    objects: str = ""
    unit: str = ""
    zone: str = ""
    scale: int | None = None
    precision: int | None = None
    categories: tuple[Any, ...] | None = None
    ordered: bool = False
    digits: int = 15

    def config(self) -> dict[str, Any]:
        """The fields that differ from their defaults, JSON-ready."""
        fields = {name: value for name, value in asdict(self).items() if value != _DEFAULTS.get(name)}
        if self.categories is not None:
            fields["categories"] = to_json(self.categories)
        return fields

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Storage:
        fields = dict(config)
        if fields.get("categories") is not None:
            fields["categories"] = tuple(from_json(fields["categories"], fields["base"]))
        return cls(**fields)


def to_json(values: Iterable[Any]) -> list[Any]:
    """Values of one column in the types of JSON: dates are texts."""
    return [value.isoformat() if isinstance(value, datetime.datetime) else value for value in values]


def from_json(values: Iterable[Any], base: str) -> list[Any]:
    """The values that `to_json` was given."""
    return [datetime.datetime.fromisoformat(value) if base == "datetime" else value for value in values]


_DEFAULTS = {name: value for name, value in asdict(Storage("")).items() if name != "base"}


@dataclass(frozen=True)
class RawColumn:
    """A column as an array.

    Attributes:
        name: the column's name as text.
        values: of the dtype of `BASES[storage.base]`, anything where a cell is missing.
        missing: True where a cell is missing.
        storage: how the frame stores the column.
        rows: numbers of the rows in a larger table of which these are a sample; None: 0, 1, 2, …
    """

    name: str
    values: np.ndarray
    missing: np.ndarray
    storage: Storage
    rows: np.ndarray | None = None

    def take(self, index: np.ndarray) -> RawColumn:
        """Some of the cells."""
        return RawColumn(self.name, self.values[index], self.missing[index], self.storage)

    @property
    def present(self) -> np.ndarray:
        """The values of cells that are not missing."""
        return self.values[~self.missing]

    @property
    def example(self) -> str:
        """The first value as Python writes it."""
        value = self.present[0]
        return repr(value.item() if isinstance(value, np.generic) else value)
