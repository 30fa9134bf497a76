"""pomegranate: a mixture of products of categorical and normal distributions, by expectation maximisation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from pomegranate.distributions import Categorical, IndependentComponents, Normal
from pomegranate.gmm import GeneralMixtureModel

from kdmlab.peers.model import COMPONENTS, Array, Box, Condition, NotOffered, Peer, Rows, ends, normal_mass

_STEPS = 30
# Counts that are added to those of every level.
_PSEUDOCOUNT = 0.1
# Numbers with few values are levels: normal distributions end with no variance at frequent values.
_MOST_VALUES = 128
# Other numbers are whole thousandths of the standard deviation: beside levels, numbers have to be whole.
_THOUSANDTHS = 1000
# Rows at which a component starts.
_START_ROWS = 40


class Model(Peer):
    """The mixture. The library's masks for unknown cells fail in mixtures, so marginals leave columns out."""

    def fit(self, rows: Rows) -> None:
        torch.manual_seed(self.seed)
        rng = np.random.default_rng(self.seed)
        values = {name: np.unique(column) for name, column in rows.items()}
        self.levels_of = {
            name: list(some)
            for name, some in values.items()
            if rows[name].dtype == object or len(some) <= _MOST_VALUES
        }
        self.place = {
            name: (column.mean(), column.std()) for name, column in rows.items() if name not in self.levels_of
        }
        data = torch.tensor(self._matrix(rows))
        some = [data[rng.choice(len(data), _START_ROWS, replace=False)] for _ in range(COMPONENTS)]
        self.mixture = GeneralMixtureModel([self._component(part) for part in some], max_iter=_STEPS)
        self.mixture.fit(data)

    def log_prob(self, rows: Rows) -> Array:
        logs = self.mixture.priors.detach().log().double().numpy()[None]
        for name, column in rows.items():
            masses = self._masses(name)
            logs = logs + np.log(np.maximum([masses(value) for value in column], 1e-300))
        return np.logaddexp.reduce(logs, 1)

    def draw(self, n: int, given: Box | None = None) -> Rows:
        if given:
            raise NotOffered
        torch.manual_seed(self.seed)
        drawn = self.mixture.sample(n).detach().numpy().T
        return {name: self._decoded(name, column) for name, column in zip(self.rows, drawn, strict=True)}

    def mass(self, box: Box) -> float:
        weights = self.mixture.priors.detach().double().numpy()
        for name, value in box.items():
            weights = weights * self._masses(name)(value)
        return float(weights.sum())

    def _matrix(self, rows: Rows) -> Array:
        """Codes of levels, of others the thousandths; the number after the last code is for new levels."""
        columns = []
        for name, column in rows.items():
            if name in self.levels_of:
                codes = {value: code for code, value in enumerate(self.levels_of[name])}
                columns.append([codes.get(value, len(codes)) for value in column])
            else:
                mean, scale = self.place[name]
                columns.append(np.round(_THOUSANDTHS * (column - mean) / scale).astype(int).tolist())
        return np.array(columns).T

    def _decoded(self, name: str, column: Array) -> Array:
        if name in self.place:
            mean, scale = self.place[name]
            return np.asarray(np.round(mean + scale * column / _THOUSANDTHS))
        levels = self.levels_of[name]
        values = [levels[min(int(code), len(levels) - 1)] for code in column]
        return np.array(values, dtype=object if isinstance(levels[0], str) else float)

    def _component(self, some: torch.Tensor) -> IndependentComponents:
        """A component that starts at a few random rows."""
        parts = []
        for i, name in enumerate(self.rows):
            if name in self.levels_of:
                k = len(self.levels_of[name]) + 1
                counts = torch.bincount(some[:, i], minlength=k).float() + 1 / k
                parts.append(Categorical(probs=(counts / counts.sum())[None], pseudocount=_PSEUDOCOUNT))
            else:
                column = some[:, i].float()
                parts.append(Normal(column.mean()[None], column.var()[None], "diag"))
        return IndependentComponents(parts)

    def _masses(self, name: str) -> Callable[[Condition], Array]:
        """A function from a value or a range of a column to its probability under each component."""
        i = list(self.rows).index(name)
        parts = [component.distributions[i] for component in self.mixture.distributions]
        if name in self.place:
            mean, scale = self.place[name]
            centre = np.array([float(part.means) for part in parts]) / _THOUSANDTHS * scale + mean
            spread = np.sqrt([float(part.covs) for part in parts]) / _THOUSANDTHS * scale

            def within(value: Condition) -> Array:
                low, high = ends(value)
                return normal_mass(low - 0.5, high + 0.5, centre, spread)

            return within
        table = np.array([part.probs.detach().double().numpy()[0] for part in parts])
        levels = self.levels_of[name]

        def masses(value: Condition) -> Array:
            if isinstance(value, tuple):
                inside = [value[0] <= level <= value[1] for level in levels]
                return np.asarray(table[:, :-1][:, inside].sum(1))
            return np.asarray(table[:, levels.index(value) if value in levels else -1])

        return masses
