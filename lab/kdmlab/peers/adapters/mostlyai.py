"""mostlyai-engine: `TabularARGN`, trained for at most two minutes, with rare values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from mostlyai.engine import TabularARGN

from kdmlab.peers.model import Array, Box, NotOffered, Peer, Rows, one_value

# Of training, by the clock.
_MINUTES = 2


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
        self.model.fit(_frame(rows))

    def log_prob(self, rows: Rows) -> Array:
        return np.asarray(self.model.log_prob(_frame(rows)))

    def draw(self, n: int, given: Box | None = None) -> Rows:
        if not given:
            return self._rows(self.model.sample(n))
        cells = {name: [one_value(value)] * n for name, value in given.items()}
        return self._rows(self.model.sample(seed_data=pd.DataFrame(cells)))

    def levels(self, target: str, names: Any, given: Box) -> list[float]:
        cells = {name: [one_value(value)] for name, value in given.items()}
        table = self.model.predict_proba(pd.DataFrame(cells), target=target)
        return [float(table[name].iloc[0]) for name in names]

    def probability(self, event: Any, given: Any = ({},)) -> float:
        """One column's level given cells."""
        if len(event) > 1 or len(given) > 1 or len(event[0]) > 1 or not given[0]:
            raise NotOffered
        ((target, name),) = event[0].items()
        return self.levels(target, [one_value(name)], given[0])[0]

    def impute(self, rows: Rows) -> Rows:
        return self._rows(self.model.impute(pd.DataFrame(rows)))

    def _rows(self, frame: pd.DataFrame) -> Rows:
        return {
            name: np.array(frame[name].tolist(), dtype=object if column.dtype == object else float)
            for name, column in self.rows.items()
        }


def _frame(rows: Rows) -> pd.DataFrame:
    return pd.DataFrame(
        {name: column if column.dtype == object else column.astype(int) for name, column in rows.items()}
    )
