"""A step of expectation maximisation at the end of the fit of a tree."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit.training.fit_arguments import Rows
from kdmkit.training.tree_objective import TreeObjective

# Rows of one pass of messages.
_BLOCK = 4096
# Logits are finite: no probability is less than this one.
_LEAST = 1e-9


def maximise_expectation(objective: TreeObjective, rows: Rows) -> None:
    """Sets edges and components of levels to their expected shares among the rows; other parameters stay.

    Levels that no row has together keep a small probability after a gradient descent of few steps; here it
    becomes that of the pseudo-counts of the objective and of the smoothing of kernels.

    Args:
        objective: of the fit, without targets; its layer is changed in place.
        rows: the training rows.
    """
    layer, losses = objective.layer, objective.losses
    rows = rows.to(layer.weight_logits.device)
    with torch.no_grad():
        edges, tables = layer.edge_probs(), losses.cells.levels.tables(layer.components)
    inputs = [value.detach().requires_grad_() for value in (edges.log(), *tables)]
    counts = [torch.zeros_like(value) for value in inputs]
    for index in torch.arange(len(rows), device=layer.weight_logits.device).split(_BLOCK):
        (codes, numbers, seen), weights = rows.take(index)
        # Derivatives by log-probabilities are expected counts.
        log_probs = -losses.log_losses(codes, numbers, seen, inputs[0].exp(), inputs[1:])
        total = log_probs.sum() if weights is None else (weights.to(log_probs) * log_probs).sum()
        for count, gradient in zip(counts, torch.autograd.grad(total, inputs), strict=True):
            count += gradient
    with torch.no_grad():
        pseudo = losses.shrinkage.unsqueeze(-1) * layer.state_probs(edges)[1:]
        layer.edge_logits.copy_(_shares(counts[0] + pseudo.unsqueeze(1), edges).log())
        for group, table, count in zip(losses.cells.levels.groups, tables, counts[1:], strict=True):
            for i, name in enumerate(group.names):
                _set_levels(layer.components[name], layer.kernel(name), count[i].mT, table[i].mT.exp())


def _shares(
    counts: Float[Tensor, "*batch n"], before: Float[Tensor, "*batch n"]
) -> Float[Tensor, "*batch n"]:
    """Shares of counts; the ones before where there are no counts."""
    total = counts.sum(-1, keepdim=True)
    return torch.where(total > _LEAST, counts / total.clamp_min(_LEAST), before).clamp_min(_LEAST)


def _set_levels(
    components: Tensor, kernel: Any, counts: Float[Tensor, "k m"], before: Float[Tensor, "k m"]
) -> None:
    n, smoothing = components.shape[-1], kernel.smoothing.to(components)
    probs = _shares(counts[:, :n], before[:, :n])
    components.copy_(((probs - smoothing / n) / (1 - smoothing)).clamp_min(_LEAST).log())
