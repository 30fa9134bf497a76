"""Numbers: floats, integers, counts, durations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from decimal import Decimal
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.estimators.table.codecs.analysis import count, fit_numbers
from kdmkit.estimators.table.codecs.base import Cells, Codec
from kdmkit.estimators.table.codecs.parts import NumberPart, Part, part_from_config
from kdmkit.estimators.table.frames.storage import RawColumn, Storage, shortest
from kdmkit.estimators.table.frames.writing import NumberWriting
from kdmkit.estimators.table.literals import read_number
from kdmkit.kernels import Interval, OneOf, Region, Union
from kdmkit.kernels.regions import is_missing

_MICROSECONDS = 1e6
_EXAMPLES = 5


class NumberCodec(Codec):
    """A column of numbers, one part. Durations are in seconds.

    A number that the column cannot have, such as a negative count, is taken for missing, and its row is as
    much less probable as such numbers are rare.

    Args:
        base: what the frame holds, see `Storage`.
        part: how numbers are events.
        share: the probability of a number that the column cannot have.
        writing: how the texts of the column write numbers, None if it holds numbers. Questions may use it.
        digits: how many digits the dtype of the frame holds: numbers are those that it can store.
    """

    codec = "numbers"
    ordered = numeric = True

    def __init__(
        self,
        name: str,
        kind: str,
        base: str,
        part: Part,
        *,
        share: float,
        writing: NumberWriting | None = None,
        digits: int = 15,
    ) -> None:
        self.name, self.kind, self.base, self.share, self.digits = name, kind, base, share, digits
        self.part, self.parts, self.writing = part, (part,), writing

    @classmethod
    def fit(cls, column: RawColumn, kind: str) -> NumberCodec:
        numbers = as_numbers(column)
        numbers = numbers[~np.isnan(numbers)] + 0.0  # −0 is 0
        part = fit_numbers(numbers, column.storage.digits)
        single = int((count(numbers).rows == 1).sum()) if part.values is not None else 0
        writing = column.storage.writing
        return cls(
            column.name,
            kind,
            column.storage.base,
            part,
            share=(single + 0.5) / (len(numbers) + 1),
            writing=writing if isinstance(writing, NumberWriting) else None,
            digits=column.storage.digits,
        )

    @property
    def levels(self) -> Sequence[Any] | None:
        values = self.part.values
        if values is None:
            return None
        return [int(value) for value in values] if self.base in ("integer", "boolean") else list(values)

    # ---- rows

    def encode(self, column: RawColumn) -> Cells:
        numbers = shortest(as_numbers(column), self.digits)
        missing = np.isnan(numbers)
        return self._cells([self.part.encode(np.where(missing, 0.0, numbers))], missing)

    def decode(self, *parts: Tensor) -> np.ndarray:
        return from_numbers(shortest(self.part.decode(parts[0]), self.digits), self.base)

    def numbers(self, *parts: Tensor) -> np.ndarray:
        return self.part.decode(parts[0], rounded=False)

    def values(self, *parts: Tensor) -> np.ndarray:
        numbers = shortest(self.part.decode(parts[0]), self.digits)
        return np.rint(numbers).astype(np.int64) if self.base == "integer" else numbers

    # ---- questions

    def read(self, region: Region) -> Region:
        return self.part.outcomes(self._numbers(region))

    def _numbers(self, region: Region) -> Region:
        """The region with its ends as numbers."""
        if isinstance(region, Interval):
            low = None if region.low is None else self._number(region.low)
            high = None if region.high is None else self._number(region.high)
            if low is not None and high is not None and low > high:
                raise self._no_value("low ≤ high", (region.low, region.high))
            return Interval(low, high, region.closed)
        if isinstance(region, OneOf):
            return OneOf([value if is_missing(value) else self._number(value) for value in region.values])
        return Union(list(map(self._numbers, region.pieces))) if region.spans else region

    def read_text(self, text: str) -> float:
        """The number of a text in the writing of the column, or as people write numbers."""
        number = None if self.writing is None else self.writing.read(text)
        return float(read_number(text)) if number is None else number

    def _number(self, value: Any) -> float:
        if self.writing is not None and isinstance(value, str):
            try:
                return self.read_text(value)
            except ValueError as error:
                raise self._no_value(f"a number such as {self.written(1234.5)}", value) from error
        if hasattr(value, "total_seconds"):
            return float(value.total_seconds())
        if isinstance(value, np.timedelta64):
            return float(value / np.timedelta64(1, "us")) / _MICROSECONDS
        value = value.item() if isinstance(value, np.generic) else value
        try:
            if isinstance(value, Real | Decimal) and math.isfinite(value):
                return float(shortest(np.array(float(value)), self.digits))
        except (OverflowError, ValueError):
            pass
        raise self._no_value("a number", value)

    def listed(self, low: Any, high: Any, most: int) -> list[Any] | None:
        part = self.part
        step = part.step if isinstance(part, NumberPart) else 0.0
        if not isinstance(part, NumberPart) or not step or (high - low) / step >= most:
            return None
        count = round((high - low) / step)
        numbers: list[Any] = part.snapped(low + step * np.arange(count + 1)).tolist()
        return numbers

    @cached_property
    def seen(self) -> Region:
        if not isinstance(self.part, NumberPart):
            return super().seen
        return self.part.outcomes(Interval(*self.part.extremes))

    @property
    def atoms(self) -> tuple[float, ...]:
        return getattr(self.part, "atoms", ())

    def with_points(self, points: Sequence[Any]) -> Codec:
        if not isinstance(self.part, NumberPart) or self.part.step:
            return self
        made = copy(self)
        made.part = replace(self.part, atoms=tuple(sorted({*self.part.atoms, *map(float, points)})))
        made.parts = (made.part,)
        return made

    def are_outcomes(self, column: RawColumn) -> np.ndarray:
        part = self.part
        return (
            part.on_grid(as_numbers(column)) if isinstance(part, NumberPart) else super().are_outcomes(column)
        )

    @property
    def number_part(self) -> NumberPart | None:
        return self.part if isinstance(self.part, NumberPart) else None

    @property
    def breaks(self) -> tuple[float, ...]:
        part = self.part
        knots = [k * part.scale + part.shift for k in part.knots] if isinstance(part, NumberPart) else []
        return (*self.atoms, *map(float, knots))

    def outcomes_of(self, values: np.ndarray) -> np.ndarray:
        numbers = as_numbers(RawColumn(self.name, values, np.zeros(len(values), bool), Storage(self.base)))
        if self.levels is None:
            return numbers
        return self.part.encode(numbers).values.double().flatten().numpy()

    def raw(self, values: Sequence[Any]) -> RawColumn:
        numbers = np.asarray(values)
        if numbers.dtype.kind not in "iuf":
            numbers = np.array([self._number(value) for value in values])
        return RawColumn(self.name, numbers.astype(float), np.zeros(len(numbers), bool), Storage("float"))

    # ---- description

    def written(self, number: float) -> str:
        """A number in the writing of the column."""
        return str(number) if self.writing is None else self.writing.write(number)

    def examples(self) -> tuple[str, ...]:
        values = self.part.values
        ends = self.part.extremes if isinstance(self.part, NumberPart) else (values or ())
        unit = " s" if self.base == "duration" else ""
        return tuple(
            f"{end:g}{unit}" if self.writing is None else self.written(end) for end in ends[:_EXAMPLES]
        )

    def describe(self) -> str:
        return self.part.describe()

    def config(self) -> dict[str, Any]:
        fields = {"name": self.name, "kind": self.kind, "base": self.base, "share": self.share}
        return {"codec": self.codec, **fields, "part": self.part.config()}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], storage: Storage | None = None) -> NumberCodec:
        """The codec that `config` describes, of a column of that storage."""
        part, storage = part_from_config(config["part"]), storage or Storage(config["base"])
        writing = storage.writing if isinstance(storage.writing, NumberWriting) else None
        options = {"share": config["share"], "writing": writing, "digits": storage.digits}
        return cls(config["name"], config["kind"], config["base"], part, **options)


# ---- numbers of columns


def as_numbers(column: RawColumn) -> np.ndarray:
    """The column's numbers in float64, NaN for missing cells. Texts are read as numbers."""
    base = column.storage.base
    if column.missing.all():
        return np.full(len(column.missing), np.nan)
    if base == "string":
        return _parsed(column)
    if base not in ("float", "integer", "boolean", "duration"):
        raise TypeError(bad_argument(f"column {column.name!r}", "numbers", column.example))
    numbers = column.values.astype(np.float64)
    numbers = numbers / _MICROSECONDS if base == "duration" else numbers
    return np.where(column.missing, np.nan, numbers)


def _parsed(column: RawColumn) -> np.ndarray:
    numbers = np.full(len(column.values), np.nan)
    for row in np.flatnonzero(~column.missing):
        text = column.values[row].strip()
        if not text:
            continue
        try:
            numbers[row] = float(text)
        except ValueError as error:
            got = f"{column.values[row]!r} in row {row}"
            raise ValueError(bad_argument(f"column {column.name!r}", "numbers", got)) from error
    return numbers


def from_numbers(numbers: np.ndarray, base: str) -> np.ndarray:
    """Numbers as the frame's type: see `Storage.base`."""
    match base:
        case "integer":
            return np.rint(numbers).astype(np.int64)
        case "boolean":
            return numbers > 0.5
        case "duration":
            return np.rint(numbers * _MICROSECONDS).astype(np.int64)
        case "string":
            return np.array(
                [np.format_float_positional(number, trim="-") for number in numbers], dtype=object
            )
    return numbers
