"""New rows of a fitted table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from kdmkit._core.checks import check_count
from kdmkit.estimators.table.answering.given_rows import GivenRowSampler, held_columns
from kdmkit.estimators.table.answering.whole_rows import RowSampler
from kdmkit.estimators.table.frames.read import RawFrame
from kdmkit.estimators.table.learning import TableEstimator
from kdmkit.estimators.table.outcomes import read_event, warn_of_outside


@dataclass(eq=False, repr=False, kw_only=True)
class SyntheticRows(TableEstimator):
    """New rows of a table; `KDMTable` adds the questions."""

    @torch.no_grad()
    def sample(
        self,
        n_samples: int = 1,
        given: Any = None,
        random_state: Any = None,
        *,
        hold: Sequence[str] | None = None,
        complete: bool = False,
        frame: Literal["pandas", "polars", "arrow"] | None = None,
        first_key: int = 0,
    ) -> Any:
        """New rows as a frame like the one that the table was fitted to; cells are missing as often as there.

        Identifiers are new keys in the form of those of the data, the same ones in every call.

        Args:
            n_samples: the number of rows; with a frame of conditions, for each of its rows.
            given: evidence that holds for all rows, as in `query`; or a frame (or a `pathlib.Path`) of
                conditions: each of its rows is completed. Its cells are repeated as they are, columns that it
                lacks are unknown, and empty cells are missing if the table takes them for outcomes.
            random_state: None: other rows in every call.
            hold: columns of `given` that count, if it is a row or a frame: `sample(100, row, hold=["cut"])`
                draws rows like this one.
            complete: whether all cells have values, those that missing cells would have by other columns.
            frame: the library of the frame; None: that of the fit, and pandas for files if it is installed.
            first_key: the number of the first new key: of the rows drawn before, for keys that go on.
        """
        n = check_count("n_samples", n_samples)
        first_key = check_count("first_key", first_key, least=0)
        engine = self._engine()
        given = held_columns(given, hold)
        if isinstance(given, RawFrame):
            sampler = GivenRowSampler(engine, given, self.missing, complete=complete)
            return sampler.frame(n, self._generator(random_state), frame, first_key)
        condition = read_event(engine.schema, given)
        warn_of_outside(engine, condition)
        rows = RowSampler(engine, condition, complete=complete)
        return rows.frame(n, self._generator(random_state), frame, first_key)
