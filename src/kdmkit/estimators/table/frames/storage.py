"""Columns as arrays, and how a frame stores them: all that is needed to give a column back as it came."""

from __future__ import annotations

import datetime
import decimal
import itertools
import numbers
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kdmkit._core.checks import bad_argument
from kdmkit.estimators.table.frames.writing import Writing, writing_from_config

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
        native: the frame's name of the dtype.
        objects: the Python type of values that a frame keeps as objects: str, bool, date, Decimal, …
        unit: of date-times and durations: s, ms, us, ns; D for dates.
        zone: the time zone of date-times. Values are wall-clock times of that zone.
        scale: the number of decimals of decimal numbers.
        precision: the number of digits of decimal numbers.
        categories: the levels that the dtype declares, also those that no row has.
        ordered: whether the order of the categories means something.
        digits: significant digits that the dtype holds.
        writing: how texts write numbers or times; values are these numbers.
        markers: texts that stand for missing cells.
        texts: the name of the column that holds the texts which are no numbers; "" if there are none.
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
    writing: Writing | None = None
    markers: tuple[str, ...] = ()
    texts: str = ""

    def config(self) -> dict[str, Any]:
        """The fields that differ from their defaults, JSON-ready."""
        fields = {name: value for name, value in asdict(self).items() if value != _DEFAULTS.get(name)}
        if self.categories is not None:
            fields["categories"] = to_json(self.categories)
        if self.writing is not None:
            fields["writing"] = self.writing.config()
        return fields

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Storage:
        fields = dict(config)
        if fields.get("categories") is not None:
            fields["categories"] = tuple(from_json(fields["categories"], fields["base"]))
        if fields.get("writing") is not None:
            fields["writing"] = writing_from_config(fields["writing"])
        fields["markers"] = tuple(fields.get("markers", ()))
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
        values: of the dtype of `BASES[storage.base]`, anything for missing cells.
        missing: True for missing cells.
        storage: how the frame stores the column.
    """

    name: str
    values: np.ndarray
    missing: np.ndarray
    storage: Storage

    @property
    def present(self) -> np.ndarray:
        """The values of cells that are not missing."""
        return self.values[~self.missing]

    @property
    def example(self) -> str:
        """The first value as Python writes it."""
        value = self.present[0]
        return repr(value.item() if isinstance(value, np.generic) else value)


def from_objects(name: str, array: np.ndarray, missing: np.ndarray, native: str) -> RawColumn:
    """A column of objects. None, NaN, NaT and the like are missing; values of several kinds raise."""
    texts = _texts(name, array, missing, native)
    if texts is not None:
        return texts
    missing = missing | np.fromiter(map(is_missing, array), bool, len(array))
    rows = np.flatnonzero(~missing)
    first_of_type = {type(array[row]): int(row) for row in rows[::-1]}
    kinds: dict[str, int] = {}
    for row in sorted(first_of_type.values()):
        kinds.setdefault(_kind(array[row]), row)
    if set(kinds) == {"int", "float"} or (set(kinds) == {"int"} and _are_long(array[rows])):
        kinds = {"float": 0}
    if len(kinds) > 1:
        got = ", ".join(f"{kind} in row {row} ({array[row]!r})" for kind, row in kinds.items())
        raise TypeError(bad_argument(f"column {name!r}", "values of one type", got))
    kind = next(iter(kinds), "str")
    base, read = _READERS.get(kind, ("other", lambda cell: cell))
    values = _filled(name, array, missing, base, read)
    if base == "float":
        check_finite(name, values, missing)
    return RawColumn(name, values, missing, _storage(kind, base, native, array[rows]))


def _texts(name: str, array: np.ndarray, missing: np.ndarray, native: str) -> RawColumn | None:
    """A column of texts and None, of which only distinct texts are read; None for other columns."""
    if not set(map(type, array)) <= {str, type(None)}:
        return None
    missing = missing | np.fromiter(map(operator.is_, array, itertools.repeat(None)), bool, len(array))
    present = array[~missing]
    try:
        for text in set(present):
            valid_text(text)
    except UnicodeEncodeError:
        return None
    return RawColumn(name, array.copy(), missing, _storage("str", "string", native, present))


def _are_long(cells: np.ndarray) -> bool:
    """Whether whole numbers do not fit into 64 bits."""
    return any(not -(2**63) <= cell < 2**63 for cell in cells)


def is_missing(cell: Any) -> bool:
    """Whether a cell is None, NaN, NaT or pandas' NA."""
    if cell is None or isinstance(cell, decimal.Decimal):
        return cell is None or cell.is_nan()
    try:
        return not isinstance(cell, str) and bool(cell != cell)
    except (TypeError, ValueError):  # pandas.NA has no truth; an array in a cell has several
        return type(cell).__name__ == "NAType"


def _kind(cell: Any) -> str:
    for kind, types in _TYPES.items():
        if isinstance(cell, types):
            return kind
    return type(cell).__name__


#: In this order: a bool is a number, a date-time is a date.
_TYPES: dict[str, Any] = {
    "str": str,
    "bool": (bool, np.bool_),
    "int": numbers.Integral,
    "Decimal": decimal.Decimal,
    "float": numbers.Real,
    "datetime": (datetime.datetime, np.datetime64),
    "date": datetime.date,
    "time": datetime.time,
    "timedelta": (datetime.timedelta, np.timedelta64),
}


def _instant(cell: Any) -> np.datetime64:
    wall = cell.replace(tzinfo=None) if isinstance(cell, datetime.datetime) else cell
    return np.datetime64(wall, "us")


def microseconds(time: datetime.time) -> int:
    """Microseconds since midnight."""
    seconds = (time.hour * 60 + time.minute) * 60 + time.second
    return seconds * 1_000_000 + time.microsecond


def time_of_day(microseconds: int) -> datetime.time:
    """The time of day, from microseconds since midnight."""
    return (datetime.datetime.min + datetime.timedelta(microseconds=microseconds)).time()


def _duration(cell: Any) -> int:
    return int(np.timedelta64(cell, "us").astype(np.int64))


def valid_text(text: str) -> str:
    """The text; one that files cannot hold raises a ValueError."""
    if not text.isascii():
        text.encode()
    return str(text)


_READERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "str": ("string", valid_text),
    "bool": ("boolean", bool),
    "int": ("integer", int),
    "Decimal": ("float", float),
    "float": ("float", float),
    "datetime": ("datetime", _instant),
    "date": ("datetime", _instant),
    "time": ("time", microseconds),
    "timedelta": ("duration", _duration),
}


def _filled(
    name: str, array: np.ndarray, missing: np.ndarray, base: str, read: Callable[[Any], Any]
) -> np.ndarray:
    values = np.zeros(len(array), BASES[base]) if base not in ("string", "other") else array.copy()
    for row in np.flatnonzero(~missing):
        try:
            values[row] = read(array[row])
        except (ValueError, ArithmeticError) as error:  # 10**400; half of a pair of surrogates
            wanted = "text in Unicode" if base == "string" else f"values that a {base} can have"
            got = f"{array[row]!r:.40} in row {row}"
            raise ValueError(bad_argument(f"column {name!r}", wanted, got)) from error
    return values


def shortest(numbers: np.ndarray, digits: int) -> np.ndarray:
    """The shortest decimals that a dtype of `digits` digits stores alike: 0.1 of float32 is 0.1.

    >>> shortest(np.array([np.float32(0.1), 20.123456789]), 6).tolist()
    [0.1, 20.123457]
    """
    dtype = {3: np.float16, 6: np.float32}.get(digits)
    if dtype is None:
        return numbers
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        stored = numbers.astype(dtype)
        power = np.floor(np.log10(np.abs(numbers)))
        result = np.where(np.isfinite(stored), stored.astype(np.float64), numbers)
        for n in range(digits + 3, digits - 1, -1):
            factor = 10.0 ** np.abs(n - 1 - power)
            rounded = np.where(
                power < n, np.round(numbers * factor) / factor, np.round(numbers / factor) * factor
            )
            result = np.where(rounded.astype(dtype) == stored, rounded, result)
    return result


def check_finite(name: str, values: np.ndarray, missing: np.ndarray) -> None:
    """Numbers of a column are finite or missing."""
    infinite = np.flatnonzero(np.isinf(values) & ~missing)
    if len(infinite):
        got = f"{values[infinite[0]]} in row {infinite[0]}"
        raise ValueError(bad_argument(f"column {name!r}", "finite numbers or missing cells", got))


def _storage(kind: str, base: str, native: str, present: np.ndarray) -> Storage:
    unit = {"date": "D", "datetime": "us", "time": "us", "timedelta": "us"}.get(kind, "")
    zone = ""
    if kind == "datetime" and getattr(present[0], "tzinfo", None) is not None:
        zone = str(present[0].tzinfo)
    scale = None
    if kind == "Decimal":
        scale = max(0, *(-int(cell.as_tuple().exponent) for cell in present))
    return Storage(base, native, kind, unit=unit, zone=zone, scale=scale)
