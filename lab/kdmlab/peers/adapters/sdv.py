"""SDV: its Gaussian copula, with its defaults."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from sdv.metadata import Metadata
from sdv.sampling import Condition
from sdv.single_table import GaussianCopulaSynthesizer

from kdmlab.peers.adapters.frames import as_frame, as_rows
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
        self.synthesizer.fit({_TABLE: as_frame(rows)})

    def draw(self, n: int, given: Box | None = None) -> Rows:
        if not given:
            return as_rows(self.synthesizer.sample(n)[_TABLE], self.rows)
        values = {name: one_value(value) for name, value in given.items()}
        condition = Condition(column_values=values, num_rows=n)
        return as_rows(self.synthesizer.sample_from_conditions([condition])[_TABLE], self.rows)

    def levels(self, target: str, names: Any, given: Box) -> list[float]:
        drawn = self.draw(DRAWS, given)[target]
        counts = np.array([(drawn == name).sum() for name in names]) + 0.5
        return list(counts / counts.sum())

    def impute(self, rows: Rows) -> Rows:
        present = [
            name for name, column in rows.items() if not pd.isna(np.asarray(column, dtype=object)).any()
        ]
        cells = as_frame({name: rows[name] for name in present})
        return as_rows(self.synthesizer.sample_remaining_columns(cells)[_TABLE], self.rows)
