"""Answers: distributions of columns and probabilities of events, as people read them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import time
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kdmkit._core.checks import bad_argument, check_count, check_number
from kdmkit.distributions.events import Event, question_text
from kdmkit.estimators.common.arrays import Array
from kdmkit.estimators.table.answering.posterior import Posterior
from kdmkit.estimators.table.display import (
    SHOWN,
    grid_bins,
    listed,
    plain,
    ranges_between,
    readable_end,
    round_edges,
    scalar,
    shown,
)

if TYPE_CHECKING:
    from kdmkit.estimators.table.answering.engine import TableEngine

#: Makes a generator of the model's device from a `random_state`.
Generators = Callable[[Any], torch.Generator]
# Bars of a histogram, and the quantiles between which they lie.
_BARS, _TAIL = 12, 0.005
_VALUES = ("mean", "median", "90 % interval")  # entries of a summary that are values of the column


class BaseAnswer(ABC):
    """The answer to a query.

    Attributes:
        log_evidence: log p(given), a density if values of continuous columns are given; 0 without evidence.
    """

    def __init__(self, asked: str | Event, log_evidence: float, engine: TableEngine, given: Event) -> None:
        self.log_evidence, self._asked, self._engine, self._given = log_evidence, asked, engine, given

    @property
    def question(self) -> str:
        """The query, as text."""
        return question_text(self._asked, self._given)

    @cached_property
    @torch.no_grad()
    def support(self) -> float:
        """How usual the evidence is: the share of rows that are at most as probable, in the same columns.

        0 if it lies outside of the data, 1 without evidence. The rows are 5,000 draws of the model, 20,000 if
        the share is below 1 in 1,000; of a range, the most usual rows in it count.
        """
        return self._engine.support.share(self._given)

    @cached_property
    @torch.no_grad()
    def is_unusual(self) -> bool:
        """Whether the evidence is unlike the data: `support` is below 1 in 10,000."""
        return self._engine.support.is_unusual(self._given, self.log_evidence)

    @property
    @abstractmethod
    def probs(self) -> dict[Any, float]:
        """The probability of every value, the most probable first."""

    @abstractmethod
    def summary(self) -> dict[str, Any]:
        """Numbers that describe the answer, by name."""

    @abstractmethod
    def bars(self) -> dict[str, float]:
        """The bars of a histogram: probabilities of levels or of ranges, by label."""

    def plot(self, ax: Any = None) -> Any:
        """Draws the probabilities of `bars`. Returns matplotlib's Axes."""
        from kdmkit.plotting import plot_bars

        return plot_bars(self.bars(), title=self.question, x=getattr(self, "column", ""), ax=ax)

    def _text(self, name: str, value: Any) -> str:
        """A number of the summary as people read it."""
        return shown(value)

    def to_dict(self) -> dict[str, Any]:
        """The answer in the types of JSON."""
        summary = {name: plain(value) for name, value in self.summary().items()}
        evidence = {"log_evidence": self.log_evidence, "support": self.support}
        return {"query": self.question, **summary, **evidence}

    def __repr__(self) -> str:
        lines = [self.question, *(f"  {n}: {self._text(n, v)}" for n, v in self.summary().items())]
        return "\n".join([*lines, *["  evidence: unlike the data"] * self.is_unusual])

    def __rich__(self) -> Any:
        """The summary and a histogram, for `rich.print` and the command line."""
        from rich.bar import Bar
        from rich.console import Group
        from rich.markup import escape
        from rich.table import Table

        table = Table("", "", title=escape(self.question), title_justify="left", show_header=False)
        for name, value in self.summary().items():
            table.add_row(name, escape(self._text(name, value)))
        if self.is_unusual:
            table.add_row("evidence", "unlike the data")
        bars = self.bars()
        drawn = Table("", "", "", box=None, show_header=False)
        top = max(bars.values(), default=0.0) or 1.0
        for label, share in bars.items():
            drawn.add_row(escape(label), f"{share:.1%}", Bar(top, 0, share, width=30))
        return Group(table, drawn)


class Answer(BaseAnswer):
    """The distribution of one column given evidence, if its cell is there. `KDMTable.query` returns it.

    With `table` as in the example of `KDMTable`:

    >>> answer = table.query("weight", given={"size": "large"})
    >>> low, high = answer.interval(0.9)
    >>> bool(low < answer.median < high)
    True
    """

    def __init__(
        self,
        posterior: Posterior,
        log_evidence: float,
        generators: Generators,
        engine: TableEngine,
        given: Event,
        p_missing: float | None = None,
    ) -> None:
        super().__init__(posterior.column.name, log_evidence, engine, given)
        self._posterior, self._generators, self._p_missing = posterior, generators, p_missing
        self._intervals: dict[float, tuple[Any, Any]] = {}

    @property
    def column(self) -> str:
        """The name of the column."""
        return self._posterior.column.name

    @property
    def levels(self) -> list[Any] | None:
        """All values in their order, if they are finitely many."""
        return None if self._posterior.levels is None else list(self._posterior.levels)

    @property
    def ordered(self) -> bool:
        """Whether values are ordered: then there are quantiles and ranges."""
        return bool(self._posterior.codec.ordered)

    # ---- summaries

    @cached_property
    @torch.no_grad()
    def p_missing(self) -> float:
        """The probability that the cell is missing; 0 if the column was complete."""
        share = self._engine.share_of_missing
        return share(self._posterior.column, self._given) if self._p_missing is None else self._p_missing

    @cached_property
    def mean(self) -> Any:
        """The mean, of numeric columns."""
        return scalar(self._posterior.mean())

    @cached_property
    def std(self) -> float:
        """The standard deviation, of numeric columns."""
        return float(self._posterior.std())

    @property
    def median(self) -> Any:
        """The median, of ordered columns."""
        return self.quantile(0.5)

    @property
    def mode(self) -> Any:
        """The most probable value."""
        return scalar(self._posterior.mode())

    def quantile(self, q: float) -> Any:
        """The smallest value that is reached with probability q."""
        q = check_number("q", q, "0 < q < 1", positive=True, below=1)
        return scalar(self._posterior.quantile(q))

    def interval(self, coverage: float = 0.9) -> Any:
        """An interval (low, high) that holds a given probability, with about as much below it as above.

        For a density it is the central interval. Single values with probabilities are inside or outside as a
        whole: if one value has 97 %, every interval holds at least that. The result is the interval near the
        central one whose probability is nearest to `coverage`; `probability(interval(coverage))` gives its
        probability. `quantile((1 - coverage) / 2)` and `quantile((1 + coverage) / 2)` hold at least the
        coverage. For levels without an order it is a list of the most probable ones that reach the coverage.

        Args:
            coverage: the probability that the value lies inside.
        """
        coverage = check_number("coverage", coverage, "0 < coverage < 1", positive=True, below=1)
        if self._posterior.codec.ordered:
            if coverage not in self._intervals:
                low, high = self._posterior.interval(coverage)
                self._intervals[coverage] = scalar(low), scalar(high)
            return self._intervals[coverage]
        probs = self.probs
        needed = int(np.searchsorted(np.cumsum(list(probs.values())), coverage)) + 1
        return list(probs)[:needed]

    @cached_property
    def probs(self) -> dict[Any, float]:
        levels = self._posterior.levels
        probs = self._posterior.probs().tolist()
        assert levels is not None
        pairs = [(scalar(level), p) for level, p in zip(levels, probs, strict=True)]
        return dict(sorted(pairs, key=lambda pair: -pair[1]))

    def probability(self, value: Any) -> float:
        """The probability of a value, a range `(low, high)`, a set `[a, b]`, or a region (`kdm.Interval`)."""
        return float(self._posterior.probability(value))

    def histogram(self, bins: Sequence[tuple[Any, Any]]) -> Array:
        """The probabilities of ranges `(low, high)`, for ordered columns.

        Ranges are closed, but one that ends where the next one starts is without its upper end: the
        probabilities of `bins` add up.

        With `table` as in the example of `KDMTable`:

        >>> below, above = table.query("P(weight | size = large)").histogram([(None, 3), (3, None)])
        >>> bool(below < 0.3 < above)
        True
        """
        return self._posterior.histogram(tuple((low, high) for low, high in bins))

    def log_density(self, value: Any) -> Any:
        """log p of a value, or of several: log-densities, or log-probabilities of values that have one."""
        with np.errstate(divide="ignore"):
            return scalar(np.log(self.density(value)))

    def density(self, values: Any) -> Any:
        """p of a value, or of a list or array of values: densities, or probabilities of those that have one.

        With `table` as in the example of `KDMTable`:

        >>> answer = table.query("P(weight | size = large)")
        >>> bool(answer.density(1.0) < answer.density([5.0])[0])
        True
        """
        many, is_one = listed("values", values)
        density = self._posterior.density(many)
        return float(density[0]) if is_one else density

    def sample(self, n: int = 1, random_state: Any = None) -> Array:
        """Independent draws, as values of the column."""
        n = check_count("n", n)
        return self._posterior.sample(n, self._generators(random_state))

    # ---- reading

    def summary(self) -> dict[str, Any]:
        codec = self._posterior.codec
        summary: dict[str, Any] = {}
        if self._posterior.column.can_miss:
            summary["missing"] = self.p_missing
        if codec.numeric:
            summary["mean"] = self.mean
        if codec.ordered:
            summary |= {"median": self.median, "90 % interval": self.interval(0.9)}
        if self._posterior.has_masses:
            summary["probability inside"] = float(self._posterior.interval_mass(0.9))
        if self._posterior.levels is not None and not codec.numeric:
            summary["probs"] = self.probs
        return summary

    def _text(self, name: str, value: Any) -> str:
        """Values of a column of written numbers are in its writing."""
        if name not in _VALUES or self._posterior.column.storage.writing is None:
            return shown(value)
        return (
            f"({', '.join(map(self._written, value))})" if isinstance(value, tuple) else self._written(value)
        )

    def _written(self, value: Any) -> str:
        writing = self._posterior.column.storage.writing
        return shown(value) if writing is None or isinstance(value, time) else writing.write(value)

    def bars(self) -> dict[str, float]:
        if self._posterior.has_levels:
            probs = self.probs
            shown_levels = list(probs)[:SHOWN]
            if self._posterior.codec.ordered:
                shown_levels = sorted(shown_levels, key=list(self._posterior.levels or ()).index)
            return {str(level): probs[level] for level in shown_levels}
        ranges = self.bins()
        masses = self.histogram(ranges).tolist()
        ends = [(low, readable_end(low, high, after)) for (low, high), (after, _) in pairwise(ranges)]
        labels = [f"{self._written(low)} – {self._written(high)}" for low, high in [*ends, ranges[-1]]]
        return dict(zip(labels, masses, strict=True))

    def bins(self, n: int = _BARS, tail: float = _TAIL) -> list[tuple[Any, Any]]:
        """Adjacent ranges, from the quantile `tail` to the quantile 1 − `tail`, of ordered columns.

        They have one width but for the ends. For levels and for numbers on a grid, each range has equally
        many of them. Ranges of other numbers share their ends: see `histogram`.

        Args:
            n: the largest number of ranges.

        With `table` as in the example of `KDMTable`:

        >>> first, second, *_ = table.query("weight").bins(10)
        >>> bool(first[0] < first[1] <= second[0] < second[1])
        True
        """
        n, posterior = check_count("n", n), self._posterior
        if posterior.has_levels:
            levels = list(posterior.levels or ())
            width = -(-len(levels) // n)
            groups = [levels[i : i + width] for i in range(0, len(levels), width)]
            return [(group[0], group[-1]) for group in groups]
        low, high = self.quantile(tail), self.quantile(1 - tail)
        step = getattr(getattr(posterior.codec, "part", None), "step", 0.0)
        if low == high:
            return [(low, high)]
        if step:
            return grid_bins(low, high, step, n)
        return ranges_between(round_edges(low, high, n))


class EventAnswer(BaseAnswer):
    """The probability of an event given evidence: the distribution of a boolean.

    `KDMTable.query` returns it for questions such as `P(price > 1000 | cut = Ideal)`.

    With `table` as in the example of `KDMTable`:

    >>> answer = table.query("P(weight > 4 | size = large)")
    >>> answer.mode, 0.5 < float(answer) <= 1
    (True, True)
    """

    def __init__(
        self,
        probability: float,
        event: Event,
        log_evidence: float,
        generators: Generators,
        engine: TableEngine,
        given: Event,
    ) -> None:
        super().__init__(event, log_evidence, engine, given)
        self._probability, self._generators = probability, generators

    def __float__(self) -> float:
        return self._probability

    @property
    def mean(self) -> float:
        """The probability of the event."""
        return self._probability

    @property
    def mode(self) -> bool:
        """Whether the event is more probable than not."""
        return self._probability >= 0.5

    @property
    def probs(self) -> dict[Any, float]:
        both = [(True, self._probability), (False, 1 - self._probability)]
        return dict(sorted(both, key=lambda pair: -pair[1]))

    def probability(self, value: bool = True) -> float:
        """The probability of the event; for False, the probability that it does not happen."""
        if not isinstance(value, bool | np.bool_):
            raise TypeError(bad_argument("value", "True or False", repr(value)))
        return self._probability if value else 1 - self._probability

    def sample(self, n: int = 1, random_state: Any = None) -> Array:
        """Draws of whether the event happens."""
        generator = self._generators(random_state)
        draws = torch.rand(check_count("n", n), generator=generator, device=generator.device)
        return np.asarray((draws < self._probability).cpu())

    def summary(self) -> dict[str, Any]:
        return {"probability": self._probability}

    def bars(self) -> dict[str, float]:
        return {"yes": self._probability, "no": 1 - self._probability}
