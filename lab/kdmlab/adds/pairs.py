"""Paired differences of two heads: same data, same split or seed, head exchanged."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kdmlab.common import Mean, Row, select

#: A score of a line; None where the line does not have it.
Value = Callable[[Row], float | None]


@dataclass(frozen=True)
class Measure:
    """A score of two heads.

    Args:
        name: of the score.
        ours: its value for the KDM.
        theirs: its value for the other head; None for the same function.
        is_loss: whether less is better.
    """

    name: str
    ours: Value
    theirs: Value | None = None
    is_loss: bool = False


def field(name: str, key: str, *, is_loss: bool = False) -> Measure:
    """The measure that lines hold under a key."""
    return Measure(name, lambda row: row.get(key), is_loss=is_loss)


@dataclass(frozen=True)
class Comparison:
    """Two heads, by the names that lines have for them, and what they are compared by."""

    heads: str
    ours: str
    theirs: str
    measures: tuple[Measure, ...]


@dataclass(frozen=True)
class Experiment:
    """Comparisons of one experiment.

    Args:
        name, title: of its figure and table.
        file: the file of lines.
        head: the field of a line that names its head.
        run: the fields that two lines of a pair share.
        subject: what a pair tells about; None for lines that take no part.
        comparisons: of heads.
        text: what is the same for both heads.
        overall: what all subjects together are called; None where their scores do not compare.
    """

    name: str
    title: str
    file: str
    head: str
    run: tuple[str, ...]
    subject: Callable[[Row], str | None]
    comparisons: tuple[Comparison, ...]
    text: str
    overall: str | None = None


@dataclass(frozen=True)
class Gain:
    """The differences in favour of the KDM, for every pair of runs."""

    subject: str
    heads: str
    measure: str
    values: Sequence[float]

    @property
    def mean(self) -> Mean:
        return Mean.of(self.values)

    @property
    def interval(self) -> tuple[float, float]:
        """The 99 % t-interval of the mean; NaN for a single pair."""
        mean = self.mean
        return mean.mean - mean.half_width, mean.mean + mean.half_width

    @property
    def verdict(self) -> str:
        """Which head is better, where the interval leaves no doubt.

        >>> Gain("data", "heads", "accuracy", [0.01, 0.011, 0.012]).verdict
        'KDM'
        """
        low, high = self.interval
        if math.isnan(low):
            return "one pair"
        return "KDM" if low > 0 else "other" if high < 0 else "neither"

    def cells(self) -> list[str]:
        low, high = self.interval
        ends = "" if math.isnan(low) else f"{_signed(low)} to {_signed(high)}"
        names = [self.subject, self.heads, self.measure]
        return [*names, str(len(self.values)), _signed(self.mean.mean), ends, self.verdict]


def _signed(value: float) -> str:
    return f"{value:+.4f}".replace("-", "−") if abs(value) < 10 else f"{value:+.1f}".replace("-", "−")


def gains(experiment: Experiment, rows: Sequence[Row]) -> list[Gain]:
    """All gains of an experiment, by subject; comparisons without pairs are left out."""
    by_subject: dict[str, list[Row]] = {}
    for row in rows:
        if (subject := experiment.subject(row)) is not None:
            by_subject.setdefault(subject, []).append(row)
    if experiment.overall is not None and by_subject:
        by_subject[experiment.overall] = [row for some in by_subject.values() for row in some]
    return [
        Gain(subject, comparison.heads, measure.name, values)
        for subject, some in by_subject.items()
        for comparison in experiment.comparisons
        for measure in comparison.measures
        if (values := list(_differences(experiment, comparison, measure, some)))
    ]


def _differences(
    experiment: Experiment, comparison: Comparison, measure: Measure, rows: Sequence[Row]
) -> Iterator[float]:
    def by_run(head: str) -> dict[str, Row]:
        some = select(rows, **{experiment.head: head})
        return {str([row[name] for name in experiment.run]): row for row in some}

    ours, theirs = by_run(comparison.ours), by_run(comparison.theirs)
    for run in ours:
        if run in theirs:
            first, second = measure.ours(ours[run]), (measure.theirs or measure.ours)(theirs[run])
            if first is not None and second is not None:
                yield second - first if measure.is_loss else first - second
