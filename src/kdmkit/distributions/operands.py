"""Conditions as expressions of Python: `col("price") > 1000`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kdmkit._core.checks import bad_argument
from kdmkit.distributions.event_text import DatePart, DatePartName, Key, Pair
from kdmkit.distributions.events import Condition, Event, isin
from kdmkit.kernels.regions import Closed, Interval, Missing, OneOf, Region


class Operand:
    """A variable in conditions: `col("price") > 1000`. `kdmkit.col` and `KDMTable.columns` make it.

    Comparisons with values and with other variables are events.

    >>> import kdmkit as kdm
    >>> c = kdm.col("price")
    >>> str(c >= 5), str(c != 3), str(c == kdm.col("cost")), str(kdm.col("day").month == 7)
    ('price >= 5', 'price != 3', 'price = `cost`', 'month(day) = 7')
    """

    __slots__ = ("key",)

    def __init__(self, key: Key) -> None:
        self.key = key

    def _compared(self, other: Any, low: bool, closed: bool) -> Event:
        ends: Closed = "both" if closed else "neither"
        if isinstance(other, Operand):
            key = self._pair(other)
            return Condition(key, Interval(0, None, ends) if low else Interval(None, 0, ends))
        if isinstance(other, Region) or other is None:
            raise TypeError(bad_argument("value", f"one value to compare {self.key!r} with", other))
        return Condition(self.key, Interval(other, None, ends) if low else Interval(None, other, ends))

    def _pair(self, other: Operand) -> Pair:
        if not (isinstance(self.key, str) and isinstance(other.key, str)):
            raise TypeError(bad_argument("event", "two columns, or a column and a value", (self, other)))
        return Pair(self.key, other.key)

    def __lt__(self, other: Any) -> Event:
        return self._compared(other, low=False, closed=False)

    def __le__(self, other: Any) -> Event:
        return self._compared(other, low=False, closed=True)

    def __gt__(self, other: Any) -> Event:
        return self._compared(other, low=True, closed=False)

    def __ge__(self, other: Any) -> Event:
        return self._compared(other, low=True, closed=True)

    def __eq__(self, other: Any) -> Event:  # type: ignore[override]
        if isinstance(other, Operand):
            return Condition(self._pair(other), OneOf([0]))
        return self.is_missing() if other is None else isin(self.key, other)

    def __ne__(self, other: Any) -> Event:  # type: ignore[override]
        return ~(self == other)

    def __hash__(self) -> int:
        return hash(self.key)

    def isin(self, values: Any) -> Event:
        """One of some values, or in a region."""
        return isin(self.key, values if isinstance(values, Region) else OneOf(values))

    def between(self, low: Any, high: Any, closed: Closed = "both") -> Event:
        """Between two ends."""
        return Condition(self.key, Interval(low, high, closed))

    def is_missing(self) -> Event:
        """The cell is empty."""
        return Condition(self.key, Missing)

    def _part(self, part: DatePartName) -> Operand:
        if not isinstance(self.key, str):
            raise TypeError(bad_argument("event", f"a column, for its {part}", self))
        return Operand(DatePart(self.key, part))

    @property
    def year(self) -> Operand:
        """The year of a date."""
        return self._part("year")

    @property
    def month(self) -> Operand:
        """The month of a date, 1 to 12."""
        return self._part("month")

    @property
    def weekday(self) -> Operand:
        """The weekday of a date: Monday is 0."""
        return self._part("weekday")

    @property
    def day(self) -> Operand:
        """The day of the month of a date, 1 to 31."""
        return self._part("day")

    @property
    def hour(self) -> Operand:
        """The hour of a date-time or a time of day, 0 to 23."""
        return self._part("hour")

    def __repr__(self) -> str:
        return f"col({self.key!r})" if isinstance(self.key, str) else str(self.key)


def col(name: str) -> Operand:
    """A variable of a joint or a column of a table, for conditions.

    Args:
        name: of the variable.

    Returns:
        The variable, which comparisons make into events.

    >>> str((col("carat") >= 0.5) & (col("carat") < 1))
    'carat >= 0.5 and carat < 1'
    """
    if not isinstance(name, str):
        raise TypeError(bad_argument("name", "the name of a variable", repr(name)))
    return Operand(name)


class Operands:
    """The columns of a table as operands: `c = table.columns; c.price > 1000`, or `c["hours per week"]`.

    >>> c = Operands(["price"])
    >>> str(c.price <= 2), "price" in c
    ('price <= 2', True)
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)

    def __getitem__(self, name: str) -> Operand:
        if name not in self._names:
            raise KeyError(bad_argument("column", f"one of {list(self._names)}", repr(name)))
        return Operand(name)

    def __getattr__(self, name: str) -> Operand:
        if name.startswith("__") or name not in self._names:
            raise AttributeError(bad_argument("column", f"one of {list(self._names)}", repr(name)))
        return Operand(name)

    def __contains__(self, name: Any) -> bool:
        return name in self._names

    def __iter__(self) -> Any:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __dir__(self) -> list[str]:
        return [*object.__dir__(self), *[name for name in self._names if name.isidentifier()]]

    def __repr__(self) -> str:
        return f"columns {', '.join(map(repr, self._names))}"
