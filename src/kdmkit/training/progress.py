"""The state of a fit between epochs: losses, the best weights, when to stop."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class Progress:
    """The history of losses and the state of early stopping."""

    history: list[dict[str, float]] = field(default_factory=list)
    best_loss: float = math.inf
    best_epoch: int = -1
    best_weights: dict[str, Tensor] = field(default_factory=dict)

    @property
    def epoch(self) -> int:
        """The number of finished epochs."""
        return len(self.history)

    def record(
        self,
        entry: dict[str, float],
        model: nn.Module,
        *,
        min_improvement: float = 0.0,
        tolerance: float = 0.0,
    ) -> None:
        """Adds an epoch, and keeps the model's weights if its validation loss is the best so far.

        After the first epoch a loss l counts only if l < l_first − min_improvement·|l_first|. A loss that is
        less than `tolerance` above the best one counts as well.
        """
        self.history.append(entry)
        loss = entry.get("validation_loss")
        if loss is not None and loss < min(self.best_loss + tolerance, self._ceiling(min_improvement)):
            self.best_loss, self.best_epoch = min(loss, self.best_loss), self.epoch - 1
            self.best_weights = {k: v.detach().clone() for k, v in model.state_dict().items()}

    def _ceiling(self, min_improvement: float) -> float:
        """The value that a validation loss after the first has to stay below."""
        first = self.history[0].get("validation_loss", math.inf)
        if self.epoch == 1 or math.isinf(first):
            return math.inf
        return first - min_improvement * abs(first)

    def should_stop(self, patience: int | None) -> bool:
        """Whether the validation loss has not improved for `patience` epochs."""
        if patience is None or not self.history or "validation_loss" not in self.history[-1]:
            return False
        return self.epoch - 1 - self.best_epoch >= patience

    def state(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def from_state(cls, state: dict[str, Any], device: torch.device) -> Progress:
        weights = {k: v.to(device) for k, v in state["best_weights"].items()}
        return cls(**{**state, "best_weights": weights})
