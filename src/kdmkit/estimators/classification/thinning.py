"""Rows that stand for near rows of their class: a budget for classifiers that learn from chunks."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit.estimators.common.chunks import KeptRows
from kdmkit.estimators.common.partners import SIZE, Pairs, near_pairs
from kdmkit.nn import Scaler
from kdmkit.ops.block_order import block_order

# Added to the uncertainty of labels, so that distances count where all labels are certain.
_CERTAIN = 0.02


def thinned(
    rows: KeptRows,
    most: int,
    points: Float[Tensor, "n d"],
    uncertainty: Float[Tensor, " n"],
    rng: np.random.Generator,
) -> KeptRows:
    """At most so many of the rows, but one of every class at least.

    Near rows of a class form pairs. One row of a pair stays and takes the weight of both; chance decides
    which, in proportion to their weights. So every weighted sum over rows keeps its expected value. Pairs
    are taken in the order of their Ward distance times the uncertainty of the label there: rows are dropped
    first where they are close to others and all of one class.

    Args:
        rows: with labels.
        most: the number of rows.
        points: where each row lies.
        uncertainty: of its label, 0 … 1.
        rng: decides which row of a pair stays.
    """
    assert rows.y is not None
    classes, labels = np.unique(rows.y, return_inverse=True)
    weight = torch.from_numpy(rows.weights * rows.factors)
    points = points / Scaler.from_data(points, weight).scale
    alive, label = torch.arange(len(rows)), torch.from_numpy(labels)
    while len(alive) > max(most, len(classes)):
        pairs = _pairs_of_classes(alive, points, label, weight, uncertainty)
        chosen = pairs.cheapest(len(alive) - max(most, len(classes)))
        i, j = chosen.first, chosen.second
        total = weight[i] + weight[j]
        second_stays = torch.from_numpy(rng.random(len(i))) * total < weight[j]
        weight[torch.where(second_stays, j, i)] = total
        weight[torch.where(second_stays, i, j)] = 0
        alive = alive[weight[alive] > 0]
    index = alive.numpy()
    return rows.take(index, weight[alive].numpy() / rows.weights[index])


def _pairs_of_classes(
    alive: Int[Tensor, " k"],
    points: Float[Tensor, "n d"],
    label: Int[Tensor, " n"],
    weight: Float[Tensor, " n"],
    uncertainty: Float[Tensor, " n"],
) -> Pairs:
    """Pairs of rows of one class, those first whose merger costs least."""
    found = []
    for one in label[alive].unique():
        own = alive[label[alive] == one]
        own = own[block_order(points[own], SIZE)]
        pairs = near_pairs(points[own], weight[own], torch.zeros(len(own), dtype=torch.bool))
        # Weights are relative to the largest of a class.
        cost = pairs.cost * weight[own].max()
        found.append((own[pairs.first], own[pairs.second], cost))
    first, second, cost = (torch.cat(parts) for parts in zip(*found, strict=True))
    cost = cost * (_CERTAIN + (uncertainty[first] + uncertainty[second]) / 2)
    order = cost.argsort(stable=True)
    return Pairs(first[order], second[order], cost[order])
