"""Sums of products over a tree by differentiable operations, and maxima of products.

Sums are for second derivatives, forward mode, `torch.func`, the compiler, and tables with a batch. `summed`
is the fast twin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit._core.logspace import finite_max, safe_log, safe_logsumexp
from kdmkit.ops.blocks import slices
from kdmkit.ops.messages.edge_tables import MessageStep

# Sums of scores and edges that are in memory at once.
_NUMBERS = 1 << 22


def collect_plainly(
    steps: Sequence[MessageStep],
    root: int,
    scores: Sequence[Float[Tensor, "..."] | None],
    logs: Sequence[Float[Tensor, "..."]],
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    """β of the root, and what was taken out of the messages to it, a constant for autograd."""
    beta, shift = pass_plainly(steps, scores, logs)
    return beta[root], shift if isinstance(shift, Tensor) else beta[root].new_zeros(1)


def pass_plainly(
    steps: Sequence[MessageStep],
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


def max_product(
    steps: Sequence[MessageStep],
    scores: Sequence[Float[Tensor, "..."] | None],
    logs: Sequence[Float[Tensor, "..."]],
) -> tuple[Float[Tensor, " r"], list[Int[Tensor, " r"]]]:
    """The largest sum of scores and edges over all states of a tree, and the states that attain it.

    Args:
        steps: to node 0, the root, from all other nodes.
    """
    beta: list[Any] = list(scores)
    best: dict[int, tuple[int, Tensor]] = {}
    for step in steps:
        for source, target, slot in zip(step.sources, step.targets, step.slots, strict=True):
            message, states = _largest(beta[source], logs[step.stack][slot])
            best[source] = target, states
            beta[target] = message if beta[target] is None else beta[target] + message
    value, state = beta[0].max(-1)
    chosen = [state]
    for node in range(1, len(scores)):  # parents come first
        parent, states = best[node]
        row = torch.arange(len(states), device=states.device)
        chosen.append(states[row, chosen[parent]])
    return value, chosen


def _largest(
    b: Float[Tensor, "r k"], table: Float[Tensor, "k_parent k"]
) -> tuple[Float[Tensor, "r k_parent"], Int[Tensor, "r k_parent"]]:
    """max_j(b_j + log M_ij) and its j, for blocks of rows."""
    step = max(1, _NUMBERS // table.numel())
    blocks = [(b[part].unsqueeze(-2) + table).max(-1) for part in slices(len(b), step)]
    values, states = zip(*blocks, strict=True)
    return torch.cat(values), torch.cat(states)
