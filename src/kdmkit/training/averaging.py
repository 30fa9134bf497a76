"""Exponential moving averages of weights."""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

Tensors = tuple[Tensor, ...] | list[Tensor]


def make_average(objective: nn.Module, horizon: float) -> AveragedModel:
    """The average w̄ of an objective's parameters and buffers, which starts from their present values.

    `update_parameters(objective)` sets w̄ ← w̄ + (w − w̄)/h. Integer buffers are copied.

    Args:
        objective: the module to average; it is copied.
        horizon: h, about how many updates the average reaches back; at least 1.
    """
    move_floats = get_ema_multi_avg_fn(1 - 1 / max(1.0, horizon))
    # A constant may be infinite (an open bound, a smoothing of zero), and ∞ − ∞ is NaN.
    constants = (t for t in chain(objective.parameters(), objective.buffers()) if not t.requires_grad)
    infinite = {t.data_ptr() for t in constants if t.is_floating_point() and bool(t.isinf().any())}

    def move(averages: Tensors, values: Tensors, count: Tensor | int) -> None:
        if averages[0].is_floating_point():
            move_floats(averages, values, count)
            for average, value in zip(averages, values, strict=True):
                if value.data_ptr() in infinite:
                    average.copy_(torch.where(average.isnan(), value, average))
            return
        for average, value in zip(averages, values, strict=True):
            average.copy_(value)

    average = AveragedModel(objective, multi_avg_fn=move, use_buffers=True)
    average.requires_grad_(False).eval()
    # The first call copies.
    average.update_parameters(objective)
    return average
