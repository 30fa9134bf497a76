"""Sums of products over a tree by differentiable operations.

For second derivatives, forward mode, `torch.func`, the compiler, and tables with a batch. `summed` is the
fast twin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.logspace import finite_max, safe_log, safe_logsumexp
from kdmkit.ops.messages.schedule import Step


def collect_plainly(
    steps: Sequence[Step],
    root: int,
    scores: Sequence[Float[Tensor, "..."] | None],
    logs: Sequence[Float[Tensor, "..."]],
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    """β of the root, and what was taken out of the messages to it, a constant for autograd."""
    beta, shift = pass_plainly(steps, scores, logs)
    return beta[root], shift if isinstance(shift, Tensor) else beta[root].new_zeros(1)


def pass_plainly(
    steps: Sequence[Step],
    scores: Sequence[Float[Tensor, "..."] | None],
    logs: Sequence[Float[Tensor, "..."]],
) -> tuple[list[Any], Float[Tensor, "..."] | float]:
    """β of every node, the scores plus all messages to it, and what was taken out of the messages."""
    beta: list[Any] = list(scores)
    shift: Tensor | float = 0.0
    for step in steps:
        for source, target, slot in zip(step.sources, step.targets, step.slots, strict=True):
            table = logs[step.stack][slot]
            top = finite_max(beta[source])
            message = _message(beta[source] - top, table.mT if step.downward else table, step.sharp)
            shift = shift + top
            beta[target] = message if beta[target] is None else beta[target] + message
    return beta, shift


def _message(
    relative: Float[Tensor, "*lead k_source"], table: Float[Tensor, "*batch k_target k_source"], sharp: bool
) -> Float[Tensor, "... k_target"]:
    """log Σ_j exp(relative_j + log M_ij)."""
    if sharp:
        return safe_logsumexp(relative.unsqueeze(-2) + table)
    if table.ndim == 2:
        return safe_log(torch.matmul(relative.exp(), table.exp().mT))
    return safe_log(torch.matmul(table.exp(), relative.exp().unsqueeze(-1)).squeeze(-1))
