"""Bags of rows: checks, their members side by side, and what is learned from them."""

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
    """Ids 0 … n_bags − 1, one per row, every bag with at least one row; None: as many as there are."""
    array = np.asarray(bags)
    if array.shape != (n,) or not np.issubdtype(array.dtype, np.integer):
        got = f"{array.dtype} of shape {array.shape}"
        raise ValueError(bad_argument("bags", f"{n} integer ids, one per row", got))
    n_bags = int(array.max()) + 1 if n_bags is None else n_bags
    outside = array[(array < 0) | (array >= n_bags)]
    if len(outside):
        raise ValueError(bad_argument("bags", f"ids with proportions, 0 … {n_bags - 1}", outside[0]))
    empty = np.flatnonzero(np.bincount(array, minlength=n_bags) == 0)
    if len(empty):
        raise ValueError(bad_argument("bags", "at least one row in every bag", f"none in bag {empty[0]}"))
    return torch.from_numpy(array.astype(np.int64))


class Bags:
    """Rows in the order of their bags, kept where they are: only those of a batch travel.

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
        """A module's answers to the rows of some bags (None: the rows), side by side, and weights 1/size.

        Zeros fill up the shorter bags.
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
    """Cross-entropy of a bag's proportions under the labels inferred from its rows, per bag."""

    def __init__(self, bags: Bags, encoder: nn.Module | None, layer: JointLayer) -> None:
        super().__init__()
        self.bags, self.encoder, self.layer = bags, encoder, layer

    def forward(self, first: Tensor, size: Tensor, shares: Tensor) -> Float[Tensor, " n"]:
        z, weights = self.bags.answers(self.encoder, first, size)
        evidence = KDM(z, weights, self.layer.kernel("x"), validate_args=False)
        return cross_entropy(self.layer(evidence), shares)


class BagPretraining(nn.Module):
    """Cross-entropy of a bag's proportions under the mean of a dense head's answers, per bag."""

    def __init__(self, bags: Bags, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.bags, self.encoder, self.head = bags, encoder, head

    def forward(self, first: Tensor, size: Tensor, shares: Tensor) -> Float[Tensor, " n"]:
        z, weights = self.bags.answers(self.encoder, first, size)
        log_probs = torch.log_softmax(self.head(z), -1)
        inside_bag = (log_probs + weights.log().unsqueeze(-1)).logsumexp(1)
        return -(shares * inside_bag).sum(-1)
