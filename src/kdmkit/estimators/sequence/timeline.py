"""Keys and times of rows: which sequence and which step each row is, and the times of further steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from kdmkit._core.checks import bad_argument, did_you_mean
from kdmkit.estimators.table.frames.read import RawFrame
from kdmkit.estimators.table.frames.storage import BASES, RawColumn, Storage
from kdmkit.training import SequenceLayout

# Steps of equal length are taken for steps if sequences then have at most this many times their rows.
_MOST_STEPS = 4
# Times are uneven if their differences are off a multiple of the step by more than this share of it.
_UNEVEN = 1e-3
_INTEGER = Storage("integer")


def _present(cells: np.ndarray) -> np.ndarray:
    """No cell is missing."""
    return np.zeros(len(cells), dtype=bool)


@dataclass(frozen=True)
class Clock:
    """The unit in which times are counted, and the length of a step.

    Attributes:
        unit: `"rows"`: every row is the next step; `"numbers"`; `"microseconds"`; or `"months"`.
        step: the length of a step in this unit.
        origin: the first time of the first sequence, as a number; of date-times, microseconds.
    """

    unit: str
    step: float = 1.0
    origin: float = 0.0

    @classmethod
    def fit(cls, times: RawColumn | None, sequence: np.ndarray) -> Clock:
        """The longest step of which all differences between times in a sequence are multiples.

        Uneven times count rows.

        Args:
            times: of all rows, sorted within sequences; None if there is no such column.
            sequence: the number of the sequence of every row, ascending.
        """
        if times is None:
            return cls("rows")
        origin = float(cls("numbers").numbers(times.values[:1])[0])
        same = np.diff(sequence) == 0
        n_gaps = max(1, int(same.sum()))
        units: tuple[str, ...] = ("numbers",)
        if times.values.dtype.kind == "M":
            units = ("months", "microseconds") if _are_months(times.values) else ("microseconds",)
        for unit in units:
            gaps = np.diff(cls(unit).numbers(times.values))[same]
            step = _common_step(gaps)
            if step and gaps.sum() / step <= _MOST_STEPS * n_gaps:
                return cls(unit, step, origin)
        return cls("rows", 1.0, origin)

    def numbers(self, values: np.ndarray) -> np.ndarray:
        """Times as numbers in the unit of the clock."""
        if self.unit == "months":
            return values.astype("datetime64[M]").astype(np.int64).astype(float)
        return values.astype(np.int64).astype(float) if values.dtype.kind == "M" else values.astype(float)

    def later(self, times: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """The times that follow the given ones by a number of steps."""
        amount = np.round(steps * self.step).astype(np.int64)
        if self.unit == "months":
            month = times.astype("datetime64[M]")
            days = (times - month.astype(times.dtype)).astype("timedelta64[us]")
            last = ((month + 1 + amount).astype("datetime64[D]") - 1).astype(times.dtype)
            return np.minimum((month + amount).astype(times.dtype) + days, last)
        if times.dtype.kind == "M":
            return times + amount.astype("timedelta64[us]")
        later = times + steps * self.step
        return np.round(later).astype(times.dtype) if times.dtype.kind in "iu" else later


def _are_months(times: np.ndarray) -> bool:
    """Whether all times lie on one day of months, or on their last days."""
    days = times.astype("datetime64[D]")
    months = days.astype("datetime64[M]")
    day = (days - months.astype("datetime64[D]")).astype(int)
    is_last = (days + 1).astype("datetime64[M]") > months
    return len(np.unique(months)) > 1 and (len(np.unique(day)) == 1 or bool(is_last.all()))


def _common_step(gaps: np.ndarray) -> float:
    """The greatest common divisor of positive numbers, up to rounding; 0 if there are none."""
    if not len(gaps):
        return 0.0
    if np.array_equal(gaps, np.round(gaps)) and gaps.max() < 2**62:
        return float(np.gcd.reduce(gaps.astype(np.int64)))
    step = float(gaps.min())
    multiples = gaps / step
    return step if np.abs(multiples - multiples.round()).max() < _UNEVEN else 0.0


@dataclass(frozen=True)
class Timeline:
    """The columns of keys and times of a fitted frame.

    Attributes:
        key, time: names; None if there is no such column.
        storages: how the frame stores them.
        clock: of the times.
    """

    key: str | None
    time: str | None
    storages: Mapping[str, Storage]
    clock: Clock

    @classmethod
    def fit(cls, raw: RawFrame, key: Any, time: Any) -> Timeline:
        """The timeline of a frame."""
        for argument, name in (("key", key), ("time", time)):
            if name is not None and name not in raw.columns:
                wanted = f"a column of X{did_you_mean(name, raw.columns)}"
                raise ValueError(bad_argument(argument, wanted, repr(name)))
        if key is not None and key == time:
            raise ValueError(bad_argument("time", "another column than `key`", repr(time)))
        names = [name for name in (key, time) if name is not None]
        storages = {name: raw.columns[name].storage for name in names}
        bare = cls(key, time, storages, Clock("rows"))
        order, sequence, _ = bare._sorted(raw)
        times = None if time is None else raw.columns[time]
        if times is not None:
            times = replace(times, values=times.values[order], missing=times.missing[order])
        return replace(bare, clock=Clock.fit(times, sequence))

    @property
    def names(self) -> list[str]:
        """The columns of keys and times."""
        return [name for name in (self.key, self.time) if name is not None]

    def without(self, raw: RawFrame) -> RawFrame:
        """A frame without these columns."""
        kept = {name: column for name, column in raw.columns.items() if name not in self.names}
        pairs = zip(raw.columns, raw.labels, strict=True)
        labels = tuple(label for name, label in pairs if name in kept)
        return replace(raw, columns=kept, labels=labels, native=None)

    def _sorted(self, raw: RawFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The order of rows by sequence and time, the sequence of each, and where sequences start in it."""
        n = raw.n_rows
        for name in self.names:
            if name not in raw.columns:
                raise ValueError(bad_argument("X", f"a column {name!r}", ", ".join(raw.columns)))
            if raw.columns[name].missing.any():
                row = int(np.flatnonzero(raw.columns[name].missing)[0])
                raise ValueError(bad_argument(name, "a value in every row", f"a missing cell in row {row}"))
        if not n:
            raise ValueError(bad_argument("X", "one or more rows", "none"))
        numbers = np.zeros(n, dtype=np.int64)
        if self.key is not None:
            first: dict[Any, int] = {}
            keys = raw.columns[self.key].values.tolist()
            numbers = np.array([first.setdefault(value, len(first)) for value in keys])
        if self.time is None:
            order = np.argsort(numbers, kind="stable")
        else:
            times = raw.columns[self.time].values
            if times.dtype.kind not in "Miuf":
                wanted = "a column of numbers or dates"
                raise ValueError(bad_argument("time", wanted, f"{self.time!r} of {times.dtype}"))
            order = np.lexsort((times, numbers))
            again = (np.diff(numbers[order]) == 0) & (times[order][1:] == times[order][:-1])
            if again.any():
                row = int(order[1:][again][0])
                wanted = "one row for each time of a sequence"
                raise ValueError(bad_argument("time", wanted, f"{times[row]} twice (row {row})"))
        return order, numbers[order], np.unique(numbers[order], return_index=True)[1]

    def layout(self, raw: RawFrame) -> SequenceLayout:
        """Sequences and steps of the rows of a frame."""
        order, sequence, first = self._sorted(raw)
        counts = np.diff(np.append(first, len(sequence)))
        step = np.arange(len(sequence)) - first.repeat(counts)
        if self.clock.unit != "rows" and self.time is not None:
            numbers = self.clock.numbers(raw.columns[self.time].values[order])
            places = (numbers - numbers[first].repeat(counts)) / self.clock.step
            step = places.round().astype(np.int64)
            again = (np.diff(sequence) == 0) & (np.diff(step) == 0)
            if np.abs(places - step).max() > 0.5 * (1 - _UNEVEN) or again.any():
                wanted = f"times that are {self.clock.step:g} {self.clock.unit} apart, as in the fit"
                raise ValueError(bad_argument("time", wanted, "times between them"))
            if int(step.max()) > 1000 * len(step) + 1000:
                raise ValueError(bad_argument("time", "fewer missing steps", f"{int(step.max()):,} steps"))
        back = np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order))
        return SequenceLayout(torch.from_numpy(sequence[back]), torch.from_numpy(step[back]))

    def last_rows(self, layout: SequenceLayout) -> np.ndarray:
        """The row of the last step of every sequence."""
        order = np.lexsort((layout.step.numpy(), layout.sequence.numpy()))
        return order[layout.counts.cumsum(0).numpy() - 1]

    def further(self, raw: RawFrame, rows: np.ndarray, n_steps: int) -> list[RawColumn]:
        """Keys and times of the next steps after some rows, the steps of a row beside each other.

        Uneven times count on from 1.
        """
        steps = np.tile(np.arange(1, n_steps + 1), len(rows))
        return [
            self._places(name, raw.columns[name].values[rows].repeat(n_steps), steps) for name in self.names
        ]

    def new(self, n: int, n_steps: int) -> list[RawColumn]:
        """Keys, counted from 0, and times of n new sequences."""
        steps = np.tile(np.arange(n_steps), n)
        columns = [RawColumn(self.key or "sequence", np.arange(n).repeat(n_steps), _present(steps), _INTEGER)]
        if self.time is not None:
            dtype = BASES[self.storages[self.time].base]
            origin = int(self.clock.origin) if dtype.kind == "M" else self.clock.origin
            columns.append(self._places(self.time, np.full(len(steps), origin).astype(dtype), steps))
        return columns

    def _places(self, name: str, start: np.ndarray, steps: np.ndarray) -> RawColumn:
        """The column of keys, or the column of the times that follow `start` by `steps`."""
        if name == self.key:
            return RawColumn(name, start, _present(steps), self.storages[name])
        if self.clock.unit == "rows":
            return RawColumn(name, steps, _present(steps), _INTEGER)
        return RawColumn(name, self.clock.later(start, steps), _present(steps), self.storages[name])

    # ---- description

    def config(self) -> dict[str, Any]:
        """A JSON-ready description from which `from_config` makes an equal timeline."""
        storages = {name: storage.config() for name, storage in self.storages.items()}
        clock = {"unit": self.clock.unit, "step": self.clock.step, "origin": self.clock.origin}
        return {"key": self.key, "time": self.time, "storages": storages, "clock": clock}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Timeline:
        """The timeline that `config` describes."""
        storages = {name: Storage.from_config(fields) for name, fields in config["storages"].items()}
        return cls(config["key"], config["time"], storages, Clock(**config["clock"]))
