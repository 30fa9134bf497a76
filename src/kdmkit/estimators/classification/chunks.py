"""Classifiers that learn from chunks of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from sklearn.utils.multiclass import _check_partial_fit_first_call, check_classification_targets
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.estimators.classification.thinning import thinned
from kdmkit.estimators.common.arrays import Array, checked_rows, to_tensor
from kdmkit.estimators.common.chunks import KeptRows, add_chunk, generator_of
from kdmkit.estimators.common.labels import JointClassifier


@dataclass(eq=False, repr=False, kw_only=True)
class ChunkedClassifier(JointClassifier, ABC):
    """Base of classifiers with `partial_fit`."""

    max_rows: int | None = 500_000

    _kept: KeptRows | None = field(init=False, default=None)

    @abstractmethod
    def _learn(self, X: Array, y: Array, sample_weight: Any, classes: Array | None) -> int:
        """Fits the model to checked rows; returns how many have a positive weight.

        Args:
            classes: None takes those of the rows.
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

        Up to `max_rows` rows of all chunks the model is that of `fit` on all of them. Beyond, near rows of a
        class are replaced by one of them, which takes their weight, first where the label is certain. The
        model is that of `fit` on the `max_rows` rows that are kept and on the chunk, and every call takes
        about as long as that fit. The rows stay in memory; `fit` and `kdmkit.save` leave them out, and draws
        from the model stand for them then.

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
        self._learn(rows.X, rows.y, rows.sample_weight, self.classes_)
        # All rows first: an encoder may fail on them.
        self._kept, self.n_samples_seen_ = rows, rows.n_seen
        self._kept = self._thinned(rows)
        return self

    def _thinned(self, rows: KeptRows) -> KeptRows:
        """At most `max_rows` of the rows, chosen with the fitted model."""
        most = self.max_rows
        if most is None or len(rows) <= most:
            return rows

        def answer(part: Tensor) -> Tensor:
            probs: Tensor = self.module_(part).probs.double()
            return torch.cat([self.module_.encode(part), 1 - probs.square().sum(1, keepdim=True)], 1)

        answers = torch.from_numpy(self._rowwise(answer, to_tensor(rows.X)))
        rng = generator_of(self, rows.n_seen, 1)
        return thinned(rows, most, answers[:, :-1], answers[:, -1], rng)
