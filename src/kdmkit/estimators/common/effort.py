"""Effort: how much computation a fit may take."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from kdmkit._core.checks import check_choice

_MANY_ROWS = 2000
#: The parameter `effort` of estimators.
EffortName = Literal["fast", "default", "best"]


@dataclass(frozen=True)
class Effort:
    """Settings of fits, chosen on development tables: `docs/decisions.md`.

    Args:
        n_members: of an ensemble.
        width: of a member's two hidden layers; `width_of_many` with 2,000 rows and more.
        patience: steps of an ensemble without improvement; None is 40 epochs.
        steps: of an ensemble, at most.
        label_rate: the learning rate of a classifier's ensemble.
        bandwidth_steps, bandwidth_rate: steps of a joint KDM of residuals, and their learning rate.
        has_offsets: whether a classifier learns offsets of the logits about each component.
        most_components: of a non-parametric density; near rows are merged beyond that. None is one for
            every row.
    """

    n_members: int
    width: int
    width_of_many: int
    patience: int | None
    steps: int
    label_rate: float
    bandwidth_steps: int
    bandwidth_rate: float = 0.05
    has_offsets: bool = False
    most_components: int | None = None

    def hidden(self, n: int) -> list[int]:
        """The widths of a member's hidden layers, for n rows."""
        return 2 * [self.width if n < _MANY_ROWS else self.width_of_many]


EFFORTS: dict[EffortName, Effort] = {
    "fast": Effort(6, 32, 32, 40, 600, 6e-3, 30, 0.25, most_components=8192),
    "default": Effort(8, 32, 64, 100, 1500, 3e-3, 120),
    "best": Effort(16, 64, 64, None, 4000, 3e-3, 200, has_offsets=True),
}
# Epochs without improvement, at least, and if no number of steps is given.
_FEWEST_EPOCHS, _EPOCHS = 3, 40


def effort_of(estimator: Any) -> Effort:
    """The settings of an estimator's fit; checks its parameter."""
    return EFFORTS[check_choice("effort", estimator.effort, list(EFFORTS))]


def patience_of(estimator: Any, steps_per_epoch: int) -> int | None:
    """Epochs without improvement after which the fit of an ensemble ends.

    Args:
        estimator: its `patience` is a number of epochs, None or `"auto"`.
        steps_per_epoch: of the ensemble.
    """
    if not isinstance(estimator.patience, str):
        return estimator.patience if estimator.patience is None else int(estimator.patience)
    steps = effort_of(estimator).patience
    return _EPOCHS if steps is None else min(_EPOCHS, max(_FEWEST_EPOCHS, math.ceil(steps / steps_per_epoch)))


def count_members(estimator: Any) -> int:
    """The number of members of an estimator's ensemble."""
    given = estimator.n_members
    return effort_of(estimator).n_members if isinstance(given, str) else int(given)
