"""Classifiers that learn from chunks of rows."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from sklearn.utils.multiclass import _check_partial_fit_first_call, check_classification_targets

from kdmkit._core.checks import bad_argument
from kdmkit.estimators.classification.trend import Earlier
from kdmkit.estimators.common.checks import Array
from kdmkit.estimators.common.chunks import KeptRows, add_chunk
from kdmkit.estimators.common.cross_fit import EarlierEnsemble
from kdmkit.estimators.common.labels import JointClassifier
from kdmkit.estimators.common.rows import checked_rows
from kdmkit.nn import LabelTrend


@dataclass(eq=False, repr=False, kw_only=True)
class ChunkedClassifier(JointClassifier, ABC):
    """Base of classifiers with `partial_fit`."""

    max_rows: int | None = 500_000

    _kept: KeptRows | None = field(init=False, default=None)
    # Of the rows of the last fit: the parts that members of the ensemble hold out.
    _parts: Array | None = field(init=False, default=None)

    @abstractmethod
    def _learn(
        self, X: Array, y: Array, sample_weight: Any, classes: Array | None, earlier: Earlier | None = None
    ) -> int:
        """Fits the model to checked rows; returns how many have a positive weight.

        Args:
            classes: None takes those of the rows.
            earlier: an ensemble to train further; None starts anew.
        """

    @abstractmethod
    def _check_parameters(self) -> None: ...

    @abstractmethod
    def sample(self, n_samples: int = 1, *, y: Any, random_state: Any = None) -> Array:
        """Rows of a class."""

    def _draw_rows(self, n: int) -> tuple[Array, Array]:
        """Rows and labels that stand for those of a fit."""
        probs = self.module_.joint().marginal("y").probs.double().cpu().numpy()
        counts = np.random.default_rng(self._seed).multinomial(n, probs / probs.sum())
        drawn = [(label, count) for label, count in zip(self.classes_, counts, strict=True) if count]
        X = np.concatenate([self.sample(int(k), y=label, random_state=self._seed) for label, k in drawn])
        return X, np.repeat(self.classes_, counts)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Learns from one more chunk of rows.

        Up to `max_rows` rows of all chunks the model is that of `fit` on all of them. Beyond, it learns from
        the chunk and from a uniform sample of `max_rows` earlier rows, which stand for all. The networks of a
        trend are not fitted anew but trained further; labels of the rows that were not kept are replaced by
        what the networks have learned from them. Every call takes about as long as a fit to the sample,
        which stays in memory; `fit` and `kdmkit.save` leave it out, and draws from the model stand for its
        rows then.

        Args:
            X, y: rows and labels.
            classes: all labels, in the first call; later ones may leave it out.
            sample_weight: a number ≥ 0 for every row, in the same unit in all chunks.
        """
        self._check_parameters()
        X, y = checked_rows(self, X, y, allow_nd=self._takes_anything, reset=not hasattr(self, "module_"))
        check_classification_targets(y)
        _check_partial_fit_first_call(self, classes)
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ValueError(bad_argument("y", f"labels of {self.classes_.tolist()}", unknown.tolist()))
        rows = add_chunk(self, X, y, sample_weight, kept=self._kept, most=self.max_rows, of=KeptRows.of)
        assert rows.y is not None
        earlier = None if rows.at_most(self.max_rows).is_complete else self._earlier(rows)
        self._learn(rows.X, rows.y, rows.sample_weight, self.classes_, earlier)
        if self._parts is not None:
            rows = replace(rows, parts=self._parts)
        self._kept, self.n_samples_seen_ = rows.at_most(self.max_rows), rows.n_seen
        return self

    def _earlier(self, rows: KeptRows) -> Earlier | None:
        """The fitted ensemble, to be trained further; None where there is none of as many members."""
        trend = self.module_.trend if hasattr(self, "module_") else None
        if not isinstance(trend, LabelTrend) or trend.ensemble.n_members != self.n_members:
            return None
        # Copies: a fit may move them to another device, and fail.
        scaler, networks = copy.deepcopy((trend.x, trend.ensemble))
        ensemble = EarlierEnsemble(networks, torch.from_numpy(rows.parts))
        return Earlier(scaler, ensemble, trend.inverse_temperature, torch.from_numpy(1 - 1 / rows.factors))
