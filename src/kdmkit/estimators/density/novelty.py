"""Novelty: p-values of rows under a density of usual rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.metrics import roc_auc_score
from torch import Tensor

from kdmkit.estimators.common.arrays import Array, merge_rows
from kdmkit.estimators.density.adaptive import (
    automatic_density,
    leave_one_out_scores,
    scaler_without_outliers,
)
from kdmkit.nn import DensityLayer
from kdmkit.nn.mixture_layer import prepare_layers
from kdmkit.nn.predictor import BLOCK
from kdmkit.ops import score_matrix

# Rows that judge units of columns, the largest number of classes, and the least number of rows of each.
_JUDGES, _CLASSES, _FEWEST = 1024, 20, 5
# The share of training rows whose scores give the scale of the tail.
_TAIL = 0.1


def p_values(calibration: Float[Array, "2 k"], scores: Float[Array, " n"]) -> Float[Array, " n"]:
    """The share of calibrating rows with lower scores, (k·F(s) + 1)/(k + 1), linear between their scores.

    Below the lowest score s_1 it is u/(k + 1) with u = τ/(τ + s_1 − s), so that rows keep their order. τ is
    the mean distance of the lowest tenth of the scores from the next one.

    Args:
        calibration: scores in ascending order, and the rows' shares.
        scores: of new rows.

    >>> calibration = np.array([[0.0, 1.0, 2.0, 3.0], [0.25, 0.25, 0.25, 0.25]])
    >>> p_values(calibration, np.array([-9.0, -1.0, 1.0, 5.0]))
    array([0.02, 0.1 , 0.4 , 1.  ])
    """
    typical, share = calibration
    k = len(typical)
    below = np.interp(scores, typical, share.cumsum() - share, right=1.0)
    few = max(1, round(_TAIL * k))
    scale = max(float((typical[min(few, k - 1)] - typical[:few]).mean()), np.finfo(np.float64).tiny)
    tail = 1 / (1 + (typical[0] - scores).clip(0) / scale)
    return np.asarray((k * below.clip(0, 1) + tail) / (k + 1))


@dataclass
class UsualRows:
    """Rows of a fit, for the novelty of other rows.

    Args:
        x: rows, all different.
        weights: of the rows.
        labels: of the rows, from 0; all 0 if there are none.

    >>> x = torch.randn(300, 2, generator=torch.Generator().manual_seed(0)).double()
    >>> rows = UsualRows.of(x, None, torch.zeros(300, dtype=torch.long), 1000)
    >>> bool(rows.novelty(torch.tensor([[9.0, 9.0]]))[0] < 0.01)
    True
    """

    x: Float[Tensor, "k d"]
    weights: Float[Tensor, " k"]
    labels: Int[Tensor, " k"]

    @classmethod
    def of(
        cls,
        x: Float[Tensor, "n ..."],
        weights: Float[Tensor, " n"] | None,
        labels: Int[Tensor, " n"],
        most: int,
        encode: Callable[[Tensor], Tensor] = lambda x: x,
    ) -> UsualRows:
        """At most `most` rows, drawn with the same seed every time, as vectors."""
        chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:most].sort().values
        x, labels = encode(x[chosen]).cpu(), labels[chosen].cpu()
        rows, total = merge_rows(x, None if weights is None else weights[chosen].cpu())
        return cls(x[rows], total, labels[rows])

    @cached_property
    def _density(self) -> tuple[DensityLayer, Array]:
        """The density whose units of columns suit the classes, and the scores that calibrate p-values."""
        x = self.x.double()
        layers = [automatic_density(x, self.weights, unit=unit) for unit in self._units()]
        layer = layers[0] if len(layers) == 1 else max(layers, key=self._separation)
        calibration = leave_one_out_scores(layer, x, self.weights).numpy()
        prepare_layers(layer.requires_grad_(False).eval())
        return layer, calibration

    @property
    def _classes(self) -> list[int]:
        """The largest classes; none if the rows have one class only."""
        values, counts = self.labels.unique(return_counts=True)
        enough = [i for i in counts.argsort(descending=True).tolist() if counts[i] >= _FEWEST][:_CLASSES]
        return [int(values[i]) for i in enough] if len(values) > 1 else []

    def _units(self) -> list[Tensor | None]:
        """Units of columns to compare: standard deviations (None), ranges, and one unit for all.

        Without classes there is nothing that could judge them.
        """
        if not self._classes:
            return [None]
        x = self.x.double()
        scale = scaler_without_outliers(x, self.weights, torch.arange(len(x))).scale
        spread = x.amax(0) - x.amin(0)
        units = torch.where(spread > 0, spread, spread.median()), torch.ones_like(scale)
        varies = spread > 0
        return [None, *[unit * (scale / unit)[varies].square().mean().sqrt() for unit in units]]

    def _separation(self, layer: DensityLayer) -> float:
        """How well the density of the other classes tells rows of each class: the mean area under the ROC
        curve of −log p(x), where p has neither the row nor the class.
        """
        kernel, c = layer.kernel("x"), layer.components["x"].detach()
        judges = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(0))[:_JUDGES]
        with torch.no_grad():
            bias = torch.log_softmax(layer.logits.detach(), -1)
            bias = bias + kernel.log_norm(c).to(bias)
            scores = score_matrix([kernel.term(self.x[judges].double(), c)], bias)
            # Mixtures of bandwidths have several components for a row.
            own = judges.unsqueeze(1) + torch.arange(0, len(c), len(self.x))
            scores.scatter_(1, own, -torch.inf)
            labels = self.labels.repeat(len(c) // len(self.x))
            by_class = torch.stack([scores[:, labels == one].logsumexp(1) for one in labels.unique()], 1)
            areas = []
            for one in self._classes:
                is_new = self.labels[judges] == one
                if 0 < int(is_new.sum()) < len(judges):
                    familiar = by_class[:, labels.unique() != one].logsumexp(1)
                    areas.append(roc_auc_score(is_new, -familiar.nan_to_num(neginf=-1e300)))
        return float(np.mean(areas)) if areas else 0.0

    def novelty(self, x: Float[Tensor, "n d"]) -> Array:
        """p-values of rows."""
        layer, calibration = self._density
        with torch.no_grad():
            scores = torch.cat([layer().log_prob(part.cpu().double()) for part in x.split(BLOCK)])
        return p_values(calibration, scores.numpy())

    def tensors(self) -> dict[str, Tensor]:
        """For files."""
        return {"x": self.x, "weights": self.weights, "labels": self.labels}

    def __getstate__(self) -> dict[str, Any]:
        return self.tensors()
