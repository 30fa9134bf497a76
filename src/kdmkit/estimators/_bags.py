"""Bags of rows: checks, their members side by side, and what is learned from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kdmkit._core.checks import expected
from kdmkit.distributions import KDM
from kdmkit.kernels import Kernel
from kdmkit.nn import JointLayer
from kdmkit.training import cross_entropy

# Proportions are often written with three digits.
_SUM_TOLERANCE = 1e-3


def check_proportions(proportions: Any) -> Float[Tensor, "n_bags n_classes"]:
    """Rows that sum to 1 up to rounding, made to sum to 1."""
    shares = torch.from_numpy(np.array(proportions, dtype=np.float64))
    if shares.ndim != 2 or shares.shape[0] < 1 or shares.shape[1] < 2:
        raise ValueError(expected("proportions", "shape (n_bags, n_classes ≥ 2)", tuple(shares.shape)))
    wanted = "non-negative rows that sum to 1"
    wrong = ~torch.isfinite(shares) | (shares < 0)
    if bool(wrong.any()):
        raise ValueError(expected("proportions", wanted, f"a value of {shares[wrong][0].item():g}"))
    total = shares.sum(1)
    off = (total - 1).abs()
    if bool((off > _SUM_TOLERANCE).any()):
        worst = int(off.argmax())
        raise ValueError(
            expected("proportions", wanted, f"a sum of {total[worst].item():.7g} in row {worst}")
        )
    return shares / total.unsqueeze(1)


def check_bags(bags: Any, n: int, n_bags: int | None = None) -> Int[Tensor, " n"]:
    """Ids 0 … n_bags − 1, one per row, every bag with at least one row; None: as many as there are."""
    array = np.asarray(bags)
    if array.shape != (n,) or not np.issubdtype(array.dtype, np.integer):
        got = f"{array.dtype} of shape {array.shape}"
        raise ValueError(expected("bags", f"{n} integer ids, one per row", got))
    n_bags = int(array.max()) + 1 if n_bags is None else n_bags
    outside = array[(array < 0) | (array >= n_bags)]
    if len(outside):
        raise ValueError(expected("bags", f"ids with proportions, 0 … {n_bags - 1}", outside[0]))
    empty = np.flatnonzero(np.bincount(array, minlength=n_bags) == 0)
    if len(empty):
        raise ValueError(expected("bags", "at least one row in every bag", f"none in bag {empty[0]}"))
    return torch.from_numpy(array.astype(np.int64))


class Bags:
    """Rows in the order of their bags, kept where they are: only those of a batch travel.

    >>> bags = Bags(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([1, 0, 1]))
    >>> bags.first, bags.size
    (tensor([0, 1]), tensor([1, 2]))
    >>> z, weights = bags.encoded(None, bags.first, bags.size)
    >>> z.squeeze(-1), weights
    (tensor([[2., 0.],
            [1., 3.]]), tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]]))
    """

    def __init__(self, x: Tensor, bags: Int[Tensor, " n"]) -> None:
        self.x = x[torch.argsort(bags, stable=True)]
        self.size = torch.bincount(bags)
        self.first = self.size.cumsum(0) - self.size

    def encoded(
        self, encoder: nn.Module | None, first: Int[Tensor, " b"], size: Int[Tensor, " b"]
    ) -> tuple[Float[Tensor, "b l d"], Float[Tensor, "b l"]]:
        """Latent vectors of some bags side by side, and weights 1/size; zeros fill up the shorter ones."""
        place = torch.arange(int(size.max()), device=size.device)
        present = place < size.unsqueeze(1)
        z = self._latent(encoder, (first.unsqueeze(1) + place)[present])
        side_by_side = z.new_zeros(*present.shape, z.shape[1])
        side_by_side[present] = z
        return side_by_side, present / size.unsqueeze(1)

    def _latent(self, encoder: nn.Module | None, index: Int[Tensor, " k"]) -> Float[Tensor, "k d"]:
        inside = self.x[index.cpu()].to(index.device)
        if encoder is None:
            return inside
        z: Tensor = encoder(inside)
        return z.float()


class BagLoss(nn.Module):
    """Cross-entropy of a bag's proportions under the labels inferred from its rows, per bag."""

    def __init__(self, bags: Bags, encoder: nn.Module | None, layer: JointLayer) -> None:
        super().__init__()
        self.bags, self.encoder, self.layer = bags, encoder, layer

    def forward(self, first: Tensor, size: Tensor, shares: Tensor) -> Float[Tensor, " n"]:
        z, weights = self.bags.encoded(self.encoder, first, size)
        kernel = self.layer.kernels["x"]
        assert isinstance(kernel, Kernel)
        return cross_entropy(self.layer(KDM(z, weights, kernel, validate_args=False)), shares)

    def exempt_from_decay(self, name: str) -> bool:
        return name.startswith("layer.")


class BagPretraining(nn.Module):
    """Cross-entropy of a bag's proportions under the mean of a dense head's answers, per bag."""

    def __init__(self, bags: Bags, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.bags, self.encoder, self.head = bags, encoder, head

    def forward(self, first: Tensor, size: Tensor, shares: Tensor) -> Float[Tensor, " n"]:
        z, weights = self.bags.encoded(self.encoder, first, size)
        log_probs = torch.log_softmax(self.head(z), -1)
        inside_bag = (log_probs + weights.log().unsqueeze(-1)).logsumexp(1)
        return -(shares * inside_bag).sum(-1)
