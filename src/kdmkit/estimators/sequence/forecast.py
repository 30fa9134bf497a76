"""The distributions of the next steps of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kdmkit._core.checks import check_number
from kdmkit.distributions import JointKDM
from kdmkit.distributions.tree import TreeKDM
from kdmkit.estimators.common.arrays import Array
from kdmkit.estimators.table.answering.engine import TableEngine
from kdmkit.estimators.table.answering.posterior import Posterior
from kdmkit.estimators.table.frames.restore import build_frame
from kdmkit.estimators.table.frames.storage import RawColumn, Storage
from kdmkit.estimators.table.schema import Schema

_FLOAT = Storage("float")


class StepDistributions:
    """The distribution of every column at some steps.

    Args:
        schema: of the columns.
        joint: the distribution of their variables, with a batch of steps, one dimension.
    """

    def __init__(self, schema: Schema, joint: JointKDM) -> None:
        self.schema, self._tree = schema, TreeKDM.from_joint(joint)
        self._engine = TableEngine(schema, self._tree)

    def column(self, name: str) -> Posterior:
        """The distribution of a column at every step."""
        column = self.schema.modelled_column("column", name)
        return self._engine.posterior_of(column, self._tree.marginal(*column.variables))


class Forecast:
    """What `KDMSequence.forecast` returns: distributions of the next steps of every sequence.

    Answers are arrays `(sequences, steps)`. Each step has its distribution by itself; `KDMSequence.sample`
    draws steps together.

    Args:
        steps: the distributions, those of a sequence beside each other.
        n_steps: of every sequence.
        places: keys and times of these steps.
        backend: the library of the frame.

    >>> import numpy as np
    >>> from kdmkit import KDMSequence
    >>> level = 1.0 + np.arange(100) // 10 % 2
    >>> model = KDMSequence(n_states=2, max_epochs=5, random_state=0).fit({"level": level})
    >>> forecast = model.forecast({"level": level}, n_steps=3)
    >>> forecast.probs("level").shape, forecast.levels("level")
    ((1, 3, 2), [1.0, 2.0])
    """

    def __init__(
        self, steps: StepDistributions, n_steps: int, places: Sequence[RawColumn], backend: str
    ) -> None:
        self._steps, self._n_steps, self._places, self._backend = steps, n_steps, list(places), backend

    def _shaped(self, answers: Array) -> Array:
        """Reshapes steps beside each other to `(sequences, steps)`."""
        return answers.reshape(-1, self._n_steps, *answers.shape[1:])

    @property
    def columns(self) -> list[str]:
        """The columns that are forecast."""
        return list(self._steps.schema.modelled)

    def mean(self, column: str) -> Array:
        """Means of a column of numbers."""
        return self._shaped(self._steps.column(column).mean())

    def std(self, column: str) -> Array:
        """Standard deviations of a column of numbers."""
        return self._shaped(self._steps.column(column).std())

    def expected(self, column: str) -> Array:
        """Means of numbers, medians of other ordered values, the most probable levels of others."""
        return self._shaped(self._steps.column(column).expected())

    def quantile(self, column: str, q: float) -> Array:
        """Quantiles of an ordered column."""
        return self._shaped(self._steps.column(column).quantile(q))

    def interval(self, column: str, coverage: float = 0.9) -> Array:
        """Central intervals of an ordered column, `(2, sequences, steps)`."""
        coverage = check_number("coverage", coverage, "0 < coverage < 1", positive=True, below=1)
        return np.stack([self._shaped(end) for end in self._steps.column(column).interval(coverage)])

    def probs(self, column: str) -> Array:
        """Probabilities of the levels of a column, `(sequences, steps, levels)`."""
        return self._shaped(self._steps.column(column).probs())

    def levels(self, column: str) -> list[Any]:
        """The levels of a column, as `probs` has them."""
        return list(self._steps.column(column).levels or ())

    def probability(self, column: str, given: Any) -> Array:
        """The probability of a value, a range `(low, high)`, or one of a list of values."""
        return self._shaped(self._steps.column(column).probability(given))

    def frame(self, coverage: float | None = None) -> Any:
        """A frame of keys, times and the typical value of every column, a row for every step.

        Args:
            coverage: of intervals of columns of numbers, in two more columns each: `x low` and `x high`.
        """
        columns = list(self._places)
        for name, column in self._steps.schema.modelled.items():
            rho = self._steps.column(name)
            columns.append(_cells(name, rho.typical(), column.storage))
            if coverage is not None and column.codec.numeric:
                ends = self.interval(name, coverage)
                for end, values in zip(("low", "high"), ends, strict=True):
                    columns.append(_cells(f"{name} {end}", np.asarray(values, dtype=float), _FLOAT))
        return build_frame(columns, self._backend, [column.name for column in columns])


def _cells(name: str, values: Array, storage: Storage) -> RawColumn:
    flat = np.asarray(values).reshape(-1)
    return RawColumn(name, flat, np.zeros(len(flat), dtype=bool), storage)
