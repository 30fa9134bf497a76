"""Bags of rows, and the losses of the paper's Algorithm 4."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument
from kdmkit.distributions import KDM
from kdmkit.nn import JointLayer
from kdmkit.training import cross_entropy


def check_bags(bags: Any, n: int, n_bags: int | None = None) -> Int[Tensor, " n"]:
    """Ids 0 … n_bags − 1, one per row; every bag has a row. Without `n_bags` the largest id says how many."""
    array = np.asarray(bags)
    if array.shape != (n,) or not np.issubdtype(array.dtype, np.integer):
        got = f"{array.dtype} of shape {array.shape}"
        raise ValueError(bad_argument("bags", f"{n} integer ids, one per row", got))
    wanted = "ids of bags that all have a row" if n_bags is None else "ids with proportions"
    n_bags = min(n, int(array.max()) + 1) if n_bags is None else n_bags
    outside = array[(array < 0) | (array >= n_bags)]
    if len(outside):
        raise ValueError(bad_argument("bags", f"{wanted}, 0 … {n_bags - 1}", outside[0]))
    empty = np.flatnonzero(np.bincount(array, minlength=n_bags) == 0)
    if len(empty):
        raise ValueError(bad_argument("bags", "at least one row in every bag", f"none in bag {empty[0]}"))
    return torch.from_numpy(array.astype(np.int64))


class Bags:
    """Rows in the order of their bags. They stay on their device: only those of a batch are moved.

    Args:
        x: rows.
        bags: the bag of every row.

    >>> bags = Bags(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([1, 0, 1]))
    >>> bags.first, bags.size
    (tensor([0, 1]), tensor([1, 2]))
    >>> z, weights = bags.answers(None, bags.first, bags.size)
    >>> z.squeeze(-1), weights
    (tensor([[2., 0.],
            [1., 3.]]), tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]]))
    """

    def __init__(self, x: Tensor, bags: Int[Tensor, " n"]) -> None:
        self.x = x[torch.argsort(bags, stable=True)]
        self.size = torch.bincount(bags)
        self.first = self.size.cumsum(0) - self.size

    def inside(self, ids: Int[Tensor, " k"]) -> Tensor:
        """The rows of some bags, bag after bag."""
        spans = zip(self.first[ids].tolist(), self.size[ids].tolist(), strict=True)
        return torch.cat([self.x[first : first + size] for first, size in spans])

    def answers(
        self, module: nn.Module | None, first: Int[Tensor, " b"], size: Int[Tensor, " b"]
    ) -> tuple[Float[Tensor, "b l d"], Float[Tensor, "b l"]]:
        """A module's outputs for the rows of some bags (None: the rows), one bag per batch element.

        Args:
            module: applied to all rows of the bags at once.
            first, size: `bags.first` and `bags.size` of the bags.

        Returns:
            Outputs, padded with zeros to the length of the largest bag; weights 1/size, 0 for the padding.
        """
        place = torch.arange(int(size.max()), device=size.device)
        present = place < size.unsqueeze(1)
        z = self._answer(module, (first.unsqueeze(1) + place)[present])
        side_by_side = z.new_zeros(*present.shape, z.shape[1])
        side_by_side[present] = z
        return side_by_side, present / size.unsqueeze(1)

    def _answer(self, module: nn.Module | None, index: Int[Tensor, " k"]) -> Float[Tensor, "k d"]:
        inside = self.x[index.cpu()].to(index.device)
        if module is None:
            return inside
        z: Tensor = module(inside)
        return z.float()


class BagLoss(nn.Module):
    """−Σ_y γ_y log p(y) per bag, where p(y) is inferred from the bag as a KDM with one component per row."""

    def __init__(self, bags: Bags, encoder: nn.Module | None, layer: JointLayer) -> None:
        super().__init__()
        self.bags, self.encoder, self.layer = bags, encoder, layer

    def forward(self, first: Tensor, size: Tensor, proportions: Tensor) -> Float[Tensor, " n"]:
        z, weights = self.bags.answers(self.encoder, first, size)
        evidence = KDM(z, weights, self.layer.kernel("x"), validate_args=False)
        return cross_entropy(self.layer(evidence), proportions)


class BagPretraining(nn.Module):
    """−Σ_y γ_y log p(y) per bag, where p(y) is the mean of a dense head's probabilities over its rows."""

    def __init__(self, bags: Bags, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.bags, self.encoder, self.head = bags, encoder, head

    def forward(self, first: Tensor, size: Tensor, proportions: Tensor) -> Float[Tensor, " n"]:
        z, weights = self.bags.answers(self.encoder, first, size)
        log_probs = torch.log_softmax(self.head(z), -1)
        inside_bag = (log_probs + weights.log().unsqueeze(-1)).logsumexp(1)
        return -(proportions * inside_bag).sum(-1)
