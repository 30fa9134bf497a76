"""SDV: its Gaussian copula, with its defaults."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from sdv.metadata import Metadata
from sdv.sampling import Condition
from sdv.single_table import GaussianCopulaSynthesizer

from kdmlab.peers.model import DRAWS, Box, Peer, Rows, one_value

# The single table of the synthesizer.
_TABLE = "rows"


class Model(Peer):
    """A synthesizer: it draws, also given values; frequencies of draws given cells are its probabilities."""

    synthesizer_class: Any = GaussianCopulaSynthesizer

    def fit(self, rows: Rows) -> None:
        kinds = {
            name: {"sdtype": "categorical" if column.dtype == object else "numerical"}
            for name, column in rows.items()
        }
        metadata = Metadata.load_from_dict({"tables": {_TABLE: {"columns": kinds}}, "relationships": []})
        self.synthesizer = self.synthesizer_class(metadata)
        self.synthesizer.fit({_TABLE: _frame(rows)})

    def draw(self, n: int, given: Box | None = None) -> Rows:
        if not given:
            return self._rows(self.synthesizer.sample(n))
        values = {name: one_value(value) for name, value in given.items()}
        condition = Condition(column_values=values, num_rows=n)
        return self._rows(self.synthesizer.sample_from_conditions([condition]))

    def levels(self, target: str, names: Any, given: Box) -> list[float]:
        drawn = self.draw(DRAWS, given)[target]
        counts = np.array([(drawn == name).sum() for name in names]) + 0.5
        return list(counts / counts.sum())

    def impute(self, rows: Rows) -> Rows:
        present = [
            name for name, column in rows.items() if not pd.isna(np.asarray(column, dtype=object)).any()
        ]
        cells = _frame({name: rows[name] for name in present})
        return self._rows(self.synthesizer.sample_remaining_columns(cells))

    def _rows(self, tables: dict[str, pd.DataFrame]) -> Rows:
        frame = tables[_TABLE]
        return {
            name: np.array(frame[name].tolist(), dtype=object if column.dtype == object else float)
            for name, column in self.rows.items()
        }


def _frame(rows: Rows) -> pd.DataFrame:
    return pd.DataFrame(
        {name: column if column.dtype == object else column.astype(int) for name, column in rows.items()}
    )
