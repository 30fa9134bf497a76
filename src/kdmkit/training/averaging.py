"""Exponential moving averages of weights."""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel


class MovingAverage(AveragedModel):
    """The average w̄ of an objective's parameters and buffers, which starts from their present values.

    `update_parameters(objective)` sets w̄ ← w̄ + (w − w̄)/h, without waiting for the device. Integer buffers are
    copied.

    Args:
        objective: the module to average; it is copied.
        horizon: h, about how many updates the average reaches back; at least 1.
    """

    def __init__(self, objective: nn.Module, horizon: float) -> None:
        super().__init__(objective, use_buffers=True)
        decay = 1 - 1 / max(1.0, horizon)
        self.share = 1 - decay
        # A constant may be infinite (an open bound, a smoothing of zero), and ∞ − ∞ is NaN.
        self._infinite = [
            i
            for i, tensor in enumerate(_tensors(objective))
            if tensor.is_floating_point() and not tensor.requires_grad and bool(tensor.isinf().any())
        ]
        self.n_averaged += 1
        self.requires_grad_(False).eval()

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        averages, values = _tensors(self.module), _tensors(model)
        floats: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for average, value in zip(averages, values, strict=True):
            if average.is_floating_point():
                both = floats.setdefault(average.dtype, ([], []))
                both[0].append(average)
                both[1].append(value)
            else:
                average.copy_(value)
        for moving, towards in floats.values():
            torch._foreach_lerp_(moving, towards, self.share)
        for i in self._infinite:
            averages[i].copy_(torch.where(averages[i].isnan(), values[i], averages[i]))
        self.n_averaged += 1


def _tensors(module: nn.Module) -> list[Tensor]:
    return list(chain(module.parameters(), module.buffers()))
