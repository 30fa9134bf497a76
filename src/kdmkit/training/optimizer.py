"""The optimizer, its weight decay and its learning rate."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from kdmkit._core.checks import bad_argument
from kdmkit.kernels import Kernel
from kdmkit.nn.layer import KDMLayer
from kdmkit.training.options import FitOptions

# The share of the steps in which the one-cycle schedule warms up.
_WARM_UP = 0.1


def make_optimizer(objective: nn.Module, options: FitOptions) -> torch.optim.Optimizer:
    """AdamW over the trainable parameters, with weight decay for `decayed_parameters`."""
    trainable = {name: p for name, p in objective.named_parameters() if p.requires_grad}
    if not trainable:
        raise ValueError(bad_argument("objective", "at least one trainable parameter", "none"))
    decayed = decayed_parameters(objective)
    parts: list[tuple[list[nn.Parameter], float]] = [
        ([p for name, p in trainable.items() if name in decayed], options.weight_decay),
        ([p for name, p in trainable.items() if name not in decayed], 0.0),
    ]
    groups: list[dict[str, Any]] = [{"params": part, "weight_decay": decay} for part, decay in parts if part]
    # Fused: one pass over the parameters in place of a dozen.
    return torch.optim.AdamW(groups, lr=options.learning_rate, fused=True)


def decayed_parameters(objective: nn.Module) -> set[str]:
    """Names of the parameters that have weight decay.

    The rule: weights of linear and convolutional maps decay (parameters with two or more dimensions); biases,
    scales, and all parameters of KDM layers and kernels do not.
    """
    parts = [module for module in objective.modules() if isinstance(module, KDMLayer | Kernel)]
    of_kdm = {parameter for part in parts for parameter in part.parameters()}
    # An ensemble of networks keeps the biases of all its members in one tensor of three dimensions.
    return {
        name
        for name, p in objective.named_parameters()
        if p.ndim >= 2 and p not in of_kdm and not {"bias", "biases"} & set(name.split("."))
    }


def make_schedule(
    optimizer: torch.optim.Optimizer, options: FitOptions, steps_per_epoch: int
) -> torch.optim.lr_scheduler.LRScheduler:
    total = steps_per_epoch * options.max_epochs
    schedulers = torch.optim.lr_scheduler
    if options.schedule == "one-cycle":
        # torch divides by the length of the warm-up, which must not be zero steps.
        share = _WARM_UP if _WARM_UP * (total + 1) > 1 else 0.0
        rate = options.learning_rate
        return schedulers.OneCycleLR(optimizer, rate, total_steps=total + 1, pct_start=share)
    if options.schedule == "cosine":
        return schedulers.CosineAnnealingLR(optimizer, total)
    return schedulers.ConstantLR(optimizer, factor=1.0)
