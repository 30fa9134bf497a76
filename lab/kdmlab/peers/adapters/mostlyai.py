"""mostlyai-engine: `TabularARGN`, trained for at most five minutes, with rare values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from mostlyai.engine import TabularARGN

from kdmlab.peers.adapters.frames import as_frame, as_rows
from kdmlab.peers.model import Array, Box, Event, NotOffered, Peer, Rows, one_value

# Of training, by the clock.
_MINUTES = 5


class Model(Peer):
    """An autoregressive network that answers in any order of the columns."""

    def fit(self, rows: Rows) -> None:
        # Digits make the probability of a number that of the recorded number; bins would not.
        kinds = {
            name: "TABULAR_CATEGORICAL" if column.dtype == object else "TABULAR_NUMERIC_DIGIT"
            for name, column in rows.items()
        }
        self.model = TabularARGN(
            value_protection=False,
            tgt_encoding_types=kinds,
            max_training_time=_MINUTES,
            random_state=self.seed,
            device="cpu",
        )
        self.model.fit(as_frame(rows))

    def log_prob(self, rows: Rows) -> Array:
        return np.asarray(self.model.log_prob(as_frame(rows)))

    def draw(self, n: int, given: Box | None = None) -> Rows:
        if not given:
            return as_rows(self.model.sample(n), self.rows)
        return as_rows(self.model.sample(seed_data=_cells(given, n)), self.rows)

    def levels(self, target: str, names: Any, given: Box) -> list[float]:
        table = self.model.predict_proba(_cells(given), target=target)
        return [float(table[name].iloc[0]) for name in names]

    def mass(self, box: Box) -> float:
        return self._share(box, {})

    def probability(self, event: Event, given: Event = ({},)) -> float:
        values = [value for box in (*event, *given) for value in box.values()]
        if len(event) == len(given) == 1 and not any(isinstance(value, list) for value in values):
            return self._share(event[0], given[0])
        return super().probability(event, given)

    def _share(self, box: Box, given: Box) -> float:
        """The probability of levels given cells."""
        if any(self.rows[name].dtype != object for name in box):
            raise NotOffered
        table = self.model.predict_proba(_cells(given), target=list(box))
        column = tuple(box.values())
        return float(table[column if len(column) > 1 else column[0]].iloc[0])

    def impute(self, rows: Rows) -> Rows:
        return as_rows(self.model.impute(pd.DataFrame(rows)), self.rows)


def _cells(given: Box, n: int = 1) -> pd.DataFrame:
    return pd.DataFrame({name: one_value(value) for name, value in given.items()}, index=range(n))
