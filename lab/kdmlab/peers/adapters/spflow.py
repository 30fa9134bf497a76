"""SPFlow: an Einsum network, trained by gradient descent; interval evidence for ranges.

Its LearnSPN takes no categorical leaves in this version, and its expectation maximisation leaves hidden
Chow–Liu trees at one component.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from spflow.learn import train_gradient_descent
from spflow.measures import mutual_information
from spflow.meta import Scope
from spflow.meta.data.interval_evidence import IntervalEvidence
from spflow.modules.leaves import Categorical, Normal
from spflow.modules.leaves.leaf import LeafModule
from spflow.zoo.einet import Einet
from torch.utils.data import DataLoader, TensorDataset

from kdmlab.peers.model import Array, Box, Codes, Peer, Rows, one_value

# The defaults of `Einet`, and a training that lasts about as long as the others.
_CHANNELS, _REPETITIONS = 10, 5
_BATCH, _EPOCHS, _RATE = 200, 60, 0.05


class Model(Peer):
    """A circuit over codes of levels and numbers in standard deviations."""

    def fit(self, rows: Rows) -> None:
        torch.manual_seed(self.seed)
        self.codes = Codes(rows)
        matrix = self.codes.matrix(rows)
        is_level = np.array([name in self.codes.levels for name in self.codes.names])
        self.mean = np.where(is_level, 0.0, matrix.mean(0))
        self.scale = np.where(is_level, 1.0, matrix.std(0))
        data = self._tensor(matrix)
        leaves = [self._leaf(i, name) for i, name in enumerate(self.codes.names)]
        self.circuit = Einet(
            leaves, num_leaves=_CHANNELS, num_sums=_CHANNELS, depth=3, num_repetitions=_REPETITIONS
        )
        batches = DataLoader(TensorDataset(data), batch_size=_BATCH, shuffle=True)
        train_gradient_descent(self.circuit, batches, epochs=_EPOCHS, lr=_RATE)

    def log_prob(self, rows: Rows) -> Array:
        matrix = self.codes.matrix(rows)
        if not self.codes.numbers:
            return self._log(self._tensor(matrix))
        is_level = np.array([name in self.codes.levels for name in self.codes.names])
        half = np.where(is_level, 0.0, 0.5)
        return self._log(IntervalEvidence(self._tensor(matrix - half), self._tensor(matrix + half)))

    def draw(self, n: int, given: Box | None = None) -> Rows:
        torch.manual_seed(self.seed)
        evidence = self._tensor(np.tile(self._points(given or {}), (n, 1)))
        drawn = self.circuit.sample_with_evidence(evidence).detach().numpy()
        return self.codes.rows(drawn * self.scale + self.mean)

    def mass(self, box: Box) -> float:
        low, high = self._ends(box)
        if np.array_equal(low, high, equal_nan=True):
            return float(np.exp(self._log(self._tensor(low[None]))[0]))
        evidence = IntervalEvidence(self._tensor(low[None]), self._tensor(high[None]))
        return float(np.exp(self._log(evidence)[0]))

    def impute(self, rows: Rows) -> Rows:
        matrix = np.array(
            [
                [np.nan if _is_missing(v) else self.codes.code(name, v) for v in rows[name]]
                for name in self.codes.names
            ]
        ).T
        drawn = self.circuit.sample_with_evidence(self._tensor(matrix)).detach().numpy()
        return self.codes.rows(drawn * self.scale + self.mean)

    def likeliest(self, given: Box) -> Box:
        evidence = self._tensor(self._points(given)[None])
        best = self.circuit.sample_with_evidence(evidence, is_mpe=True).detach().numpy()
        return {name: c[0] for name, c in self.codes.rows(best * self.scale + self.mean).items()}

    def information(self, first: str, second: str) -> float:
        scopes = [Scope([self.codes.names.index(name)]) for name in (first, second)]
        return float(mutual_information(self.circuit, *scopes))

    def _leaf(self, i: int, name: str) -> LeafModule:
        shape = {"out_channels": _CHANNELS, "num_repetitions": _REPETITIONS}
        if name in self.codes.levels:
            return Categorical(Scope([i]), K=len(self.codes.levels[name]) + 1, **shape)
        return Normal(Scope([i]), **shape)

    def _points(self, box: Box) -> Array:
        return np.array(
            [
                self.codes.code(name, one_value(box[name])) if name in box else np.nan
                for name in self.codes.names
            ]
        )

    def _ends(self, box: Box) -> tuple[Array, Array]:
        """The ends of every column's interval: of levels their code, of numbers half a unit around."""
        ends = [(math.nan, math.nan)] * len(self.codes.names)
        for name, value in box.items():
            low, high = value if isinstance(value, tuple) else (value, value)
            half = 0.0 if name in self.codes.levels else 0.5
            ends[self.codes.names.index(name)] = (
                self.codes.code(name, low) - half,
                self.codes.code(name, high) + half,
            )
        low_ends, high_ends = np.array(ends).T
        return low_ends, high_ends

    def _tensor(self, matrix: Array) -> torch.Tensor:
        return torch.tensor((matrix - self.mean) / self.scale, dtype=torch.float32)

    @torch.no_grad()
    def _log(self, evidence: torch.Tensor | IntervalEvidence) -> Array:
        values = self.circuit.log_likelihood(evidence).flatten(1)
        result: Array = values.logsumexp(1).sub(math.log(values.shape[1])).numpy()
        return result


def _is_missing(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
