"""The optimizer and its learning rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from kdmkit._core.checks import bad_argument
from kdmkit.training.options import FitOptions

# The share of the steps in which the one-cycle schedule warms up.
_WARM_UP = 0.1


def make_optimizer(objective: nn.Module, options: FitOptions) -> torch.optim.Optimizer:
    groups = _parameter_groups(objective, options)
    # One kernel instead of a dozen for every step; None is torch's own choice.
    fused = True if all(p.is_cuda for group in groups for p in group["params"]) else None
    return torch.optim.AdamW(groups, lr=options.learning_rate, fused=fused)


def _parameter_groups(objective: nn.Module, options: FitOptions) -> list[dict[str, Any]]:
    """Weight decay for matrices of encoders; none where the objective says so, nor for biases."""
    exempt: Callable[[str], bool] = getattr(objective, "exempt_from_decay", lambda name: False)
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for name, parameter in objective.named_parameters():
        if parameter.requires_grad:
            (free if exempt(name) or parameter.ndim < 2 else decayed).append(parameter)
    if not decayed and not free:
        raise ValueError(bad_argument("objective", "at least one trainable parameter", "none"))
    groups = [(decayed, options.weight_decay), (free, 0.0)]
    return [{"params": group, "weight_decay": decay} for group, decay in groups if group]


def make_schedule(
    optimizer: torch.optim.Optimizer, options: FitOptions, steps_per_epoch: int
) -> torch.optim.lr_scheduler.LRScheduler:
    total = steps_per_epoch * options.max_epochs
    schedulers = torch.optim.lr_scheduler
    if options.schedule == "one-cycle":
        # Where the warm-up would be no more than one step torch divides by its length, zero.
        share = _WARM_UP if _WARM_UP * (total + 1) > 1 else 0.0
        rate = options.learning_rate
        return schedulers.OneCycleLR(optimizer, rate, total_steps=total + 1, pct_start=share)
    if options.schedule == "cosine":
        return schedulers.CosineAnnealingLR(optimizer, total)
    return schedulers.ConstantLR(optimizer, factor=1.0)
