"""Lace (`pylace`): Bayesian cross-categorisation, eight chains."""

from __future__ import annotations

from typing import Any

import lace
import numpy as np
import polars as pl

from kdmlab.peers.model import Array, Box, Peer, Rows, one_value

_CHAINS, _STEPS = 8, 1000
# Noise in a unit interval, over which densities of whole numbers are averaged.
_NOISES = 16


class Model(Peer):
    """The engine. Uniform noise, in the fit and in scores, makes densities probabilities of whole numbers."""

    def fit(self, rows: Rows) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.numbers = [name for name, column in rows.items() if column.dtype != object]
        index = {"ID": [str(i) for i in range(len(next(iter(rows.values()))))]}
        cells = {name: column.tolist() for name, column in self._noisy(rows).items()}
        self.engine = lace.Engine.from_df(pl.DataFrame({**index, **cells}), n_states=_CHAINS)
        self.engine.seed(self.seed)
        self.engine.update(_STEPS)

    def log_prob(self, rows: Rows) -> Array:
        logs = [self._log(self._noisy(rows)) for _ in range(_NOISES if self.numbers else 1)]
        result: Array = np.logaddexp.reduce(logs, 0) - np.log(len(logs))
        return result

    def draw(self, n: int, given: Box | None = None) -> Rows:
        given = {name: one_value(value) for name, value in (given or {}).items()}
        others = [name for name in self.rows if name not in given]
        drawn = self.engine.simulate(others, given=given or None, n=n)
        rows = {name: np.array([given[name]] * n, dtype=object) for name in given}
        for name in others:
            column = np.array(drawn[name].to_list(), dtype=None if name in self.numbers else object)
            rows[name] = np.round(column) if name in self.numbers else column
        return {name: rows[name] for name in self.rows}

    def mass(self, box: Box) -> float:
        cells: Rows = {name: np.array([one_value(value)]) for name, value in box.items()}
        return float(np.exp(self._log(cells)[0]))

    def levels(self, target: str, names: Any, given: Box) -> list[float]:
        cells = pl.DataFrame({target: list(names)})
        return list(np.exp(np.asarray(self.engine.logp(cells, given=dict(given)))))

    def impute(self, rows: Rows) -> Rows:
        filled = {name: column.copy() for name, column in rows.items()}
        for i in range(len(next(iter(rows.values())))):
            cells = {name: column[i] for name, column in rows.items() if column[i] == column[i]}
            given = {name: cell for name, cell in cells.items() if cell is not None}
            for name in filled:
                if name not in given:
                    filled[name][i] = self.engine.predict(name, given=given)[0]
        return filled

    def information(self, first: str, second: str) -> float:
        return float(self.engine.mi([[first, second]], mi_type="unnormed"))

    def _noisy(self, rows: Rows) -> Rows:
        noise = {name: self.rng.uniform(-0.5, 0.5, len(rows[name])) for name in self.numbers if name in rows}
        return {name: column + noise[name] if name in noise else column for name, column in rows.items()}

    def _log(self, rows: Rows) -> Array:
        values = self.engine.logp(pl.DataFrame({name: column.tolist() for name, column in rows.items()}))
        return np.atleast_1d(np.asarray(values, float))
