"""Rows that stand for near rows of their class: a budget for classifiers that learn from chunks."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit.estimators.common.chunks import KeptRows
from kdmkit.estimators.common.partners import SIZE, Pairs, partners
from kdmkit.nn import Scaler
from kdmkit.nn.scaler import LARGEST_INPUT
from kdmkit.ops.blocks import block_order

# Added to the uncertainty of labels, so that distances count where all labels are certain.
_LEAST_UNCERTAINTY = 0.02


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
    most = max(most, len(classes))
    # Relative to the largest possible sum, which would overflow for weights near the largest number.
    unit = rows.weights.max() * rows.factors.max()
    weight = torch.from_numpy(rows.weights / unit * rows.factors)
    # Without a limit, all other rows would seem equal beside one that is very far away.
    points = Scaler.from_data(points, weight, LARGEST_INPUT)(points)
    label, stays = torch.from_numpy(labels), torch.ones(len(rows), dtype=torch.bool)
    alive = torch.arange(len(rows))
    while len(alive) > most:
        pairs = _pairs_of_classes(alive, points, label, weight, uncertainty)
        chosen = pairs.cheapest(len(alive) - most)
        i, j = chosen.first, chosen.second
        total = weight[i] + weight[j]
        second_stays = torch.from_numpy(rng.random(len(i))) * total < weight[j]
        weight[torch.where(second_stays, j, i)] = total
        stays[torch.where(second_stays, i, j)] = False
        alive = alive[stays[alive]]
    index = alive.numpy()
    return rows.take(index, weight[alive].numpy() * (unit / rows.weights[index]))


def _pairs_of_classes(
    alive: Int[Tensor, " k"],
    points: Float[Tensor, "n d"],
    label: Int[Tensor, " n"],
    weight: Float[Tensor, " n"],
    uncertainty: Float[Tensor, " n"],
) -> Pairs:
    """Pairs of rows of one class, those first whose merger costs least."""
    labels, order = label[alive].sort(stable=True)
    found = []
    for own in alive[order].split(labels.unique_consecutive(return_counts=True)[1].tolist()):
        ordered = own[block_order(points[own], SIZE)]
        pairs = partners(points[ordered], weight[ordered], torch.zeros(len(own), dtype=torch.bool))
        # Costs are relative to the largest weight of the class.
        found.append((ordered[pairs.first], ordered[pairs.second], pairs.cost * weight[own].max()))
    first, second, cost = (torch.cat(parts) for parts in zip(*found, strict=True))
    cost = cost * (_LEAST_UNCERTAINTY + (uncertainty[first] + uncertainty[second]) / 2)
    order = cost.argsort(stable=True)
    return Pairs(first[order], second[order], cost[order])
