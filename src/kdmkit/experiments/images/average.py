"""A moving average of the weights along a fit."""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class Averaged(nn.Module):
    """An objective whose weights and running statistics are averaged over the steps, w̄ ← d·w̄ + (1−d)·w.

    Every step sees the weights before its update; `adopt` puts the average in place.

    Args:
        objective: maps the tensors of a batch to one loss per row.
        memory: about how many steps the average reaches back, 1/(1−d).
    """

    def __init__(self, objective: nn.Module, memory: float) -> None:
        super().__init__()
        self.objective = objective
        self._advance = get_ema_multi_avg_fn(1 - 1 / max(1.0, memory))
        # In lists, so that neither an optimizer nor a checkpoint takes them for parts of this module.
        self._current: list[Tensor] = []
        self._average: list[Tensor] = []

    def forward(self, *rows: Any) -> Tensor:
        if self.training:
            self._update()
        losses: Tensor = self.objective(*rows)
        return losses

    @torch.no_grad()
    def _update(self) -> None:
        if not self._average:
            # Not before the first step: until then the objective may change its device.
            tensors = chain(self.objective.parameters(), self.objective.buffers())
            self._current = [tensor.detach() for tensor in tensors if tensor.is_floating_point()]
            self._average = [tensor.clone() for tensor in self._current]
            return
        self._advance(self._average, self._current, 0)

    @torch.no_grad()
    def adopt(self) -> None:
        """The average becomes the objective's weights."""
        self._update()
        for tensor, average in zip(self._current, self._average, strict=True):
            tensor.copy_(average)

    def exempt_from_decay(self, name: str) -> bool:
        exempt = getattr(self.objective, "exempt_from_decay", lambda name: False)
        return bool(exempt(name.removeprefix("objective.")))
