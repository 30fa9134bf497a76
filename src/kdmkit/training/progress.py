"""What a fit remembers from epoch to epoch: losses, the best weights, when to stop."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class Progress:
    """The state of early stopping, and the record of every epoch."""

    history: list[dict[str, float]] = field(default_factory=list)
    best_loss: float = math.inf
    best_epoch: int = -1
    best_weights: dict[str, Tensor] = field(default_factory=dict)

    @property
    def epoch(self) -> int:
        """The number of finished epochs."""
        return len(self.history)

    def record(self, entry: dict[str, float], model: nn.Module, *, least_gain: float = 0.0) -> None:
        """Adds an epoch; keeps the weights if its validation loss is the best so far.

        Unless a later loss is lower than the first by the least gain, a part of it, the first is the best.
        """
        self.history.append(entry)
        loss = entry.get("validation_loss")
        if loss is not None and loss < min(self.best_loss, self._ceiling(least_gain)):
            self.best_loss, self.best_epoch = loss, self.epoch - 1
            self.best_weights = {k: v.detach().clone() for k, v in model.state_dict().items()}

    def _ceiling(self, least_gain: float) -> float:
        """What a loss after the first has to stay below."""
        first = self.history[0].get("validation_loss", math.inf)
        if self.epoch == 1 or math.isinf(first):
            return math.inf
        return first - least_gain * abs(first)

    def exhausted(self, patience: int | None) -> bool:
        """Whether the validation loss has not improved for `patience` epochs."""
        watching = patience is not None and bool(self.history) and "validation_loss" in self.history[-1]
        return watching and self.epoch - 1 - self.best_epoch >= (patience or 0)

    def restore_best(self, model: nn.Module) -> None:
        if self.best_weights:
            model.load_state_dict(self.best_weights)

    def state(self) -> dict[str, Any]:
        return {
            "history": self.history,
            "best_loss": self.best_loss,
            "best_epoch": self.best_epoch,
            "best_weights": self.best_weights,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], device: torch.device) -> Progress:
        weights = {k: v.to(device) for k, v in state["best_weights"].items()}
        return cls(state["history"], state["best_loss"], state["best_epoch"], weights)
