"""Parts that experiments with the likelihood of whole rows share: scores of a fit, means of log-densities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kdmkit.nn import JointLayer, TreeLayer

# Rows that are scored at once.
_ROWS = 4096

Columns = dict[str, Any]


def likelihoods(
    layer: TreeLayer | JointLayer, history: Sequence[Mapping[str, float]], train: Columns, test: Columns
) -> dict[str, Any]:
    """Mean log-likelihoods of a fitted layer in nats, its best epoch and its size, as fields of a line.

    Args:
        layer: holds the weights that are best on the validation rows.
        history: of its fit, with validation losses.
        train, test: the rows to score.
    """
    best = min(range(len(history)), key=lambda i: history[i]["validation_loss"])
    return {
        "test_log_likelihood": mean_log_prob(layer, test),
        "validation_log_likelihood": -history[best]["validation_loss"],
        "training_log_likelihood": mean_log_prob(layer, train),
        "epochs": len(history),
        "best_epoch": best,
        "parameters": sum(p.numel() for p in layer.parameters() if p.requires_grad),
    }


@torch.no_grad()
def mean_log_prob(layer: TreeLayer | JointLayer, data: Columns) -> float:
    distribution = layer.tree() if isinstance(layer, TreeLayer) else layer.joint()
    starts = range(0, n_rows(data), _ROWS)
    blocks = [{name: column[i : i + _ROWS] for name, column in data.items()} for i in starts]
    return float(torch.cat([distribution.log_prob(**block).double() for block in blocks]).mean())


def n_rows(data: Columns) -> int:
    return len(next(iter(data.values())))
