"""Bags of rows: whole bags in batches, and the exact likelihood of a bag given the counts of its labels."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

# Bisections of the tilt, from an interval of ±100.
_BISECTIONS, _WIDEST = 40, 100.0


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


def log_count_likelihood(
    log_ratio: Float[Tensor, "b l 2"], present: Bool[Tensor, "b l"], counts: Int[Tensor, " b"]
) -> Float[Tensor, " b"]:
    """log p(x_1 … x_n | k) − Σ_j log p(x_j) of bags in which k of n rows have the second label.

    All assignments with k second labels are equally probable beforehand, so this is the logarithm of

        [t^k] Π_j (r_j0 + t·r_j1) / C(n, k),    r_jy = p(y|x_j)/p(y).

    For every s, [t^k] Π_j (r_j0 + t·r_j1) = e^{−ks} Π_j (r_j0 + e^s·r_j1) · P(Σ_j Y_j = k), where the Y_j are
    independent with log-odds log r_j1 − log r_j0 + s. The s with E[Σ_j Y_j] = k makes k their mode, whose
    probability is at least 1/(n + 1): nothing underflows. Products of polynomials in pairs take O(n²)
    operations on positive numbers.

    Args:
        log_ratio: log r_jy; entries of padding are ignored.
        present: which entries are rows.
        counts: k.

    Returns:
        One number per bag, differentiable in `log_ratio`.

    >>> probs = torch.tensor([[[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]]])
    >>> log_count_likelihood((2 * probs).log(), torch.ones(1, 3, dtype=torch.bool), torch.tensor([1])).exp()
    tensor([1.2267])
    """
    n = present.sum(1)
    inner = (counts > 0) & (counts < n)
    # Bags with one label, and padding, get odds of 1 here: they are selected away below.
    usable = present & inner.unsqueeze(1)
    pair = torch.where(usable.unsqueeze(-1), log_ratio, 0.0)
    odds = pair[..., 1] - pair[..., 0]
    tilt = _tilt(odds.detach(), usable, counts).unsqueeze(1)
    total = torch.where(usable, torch.logaddexp(pair[..., 0], pair[..., 1] + tilt), 0.0).sum(1)
    second = torch.where(usable, torch.sigmoid(odds + tilt), 0.0)
    log_pmf = _log_pmf(second, torch.where(inner, counts, 0))
    mixed = total - counts * tilt.squeeze(1) + log_pmf - _log_binomial(n, counts, total)
    label = (counts == n).long().view(-1, 1, 1).expand(-1, log_ratio.shape[1], 1)
    one = torch.where(present & ~inner.unsqueeze(1), log_ratio.gather(2, label).squeeze(2), 0.0).sum(1)
    return torch.where(inner, mixed, one)


def _tilt(
    odds: Float[Tensor, "b l"], present: Bool[Tensor, "b l"], counts: Int[Tensor, " b"]
) -> Float[Tensor, " b"]:
    """s with Σ_j sigmoid(odds_j + s) = k, by bisection."""
    high = (odds.abs().amax(1) + _WIDEST).clone()
    low = -high
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        expected = torch.where(present, torch.sigmoid(odds + middle.unsqueeze(1)), 0.0).sum(1)
        above = expected > counts
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return (low + high) / 2


def _log_pmf(q: Float[Tensor, "b l"], counts: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
    """log P(Σ_j Y_j = k) of independent Y_j with probabilities q_j: the Poisson binomial distribution."""
    b, length = q.shape
    padded = functional.pad(q, [0, (1 << (length - 1).bit_length()) - length])
    pmf = torch.stack([1 - padded, padded], -1)
    while pmf.shape[1] > 1:
        first, second = pmf[:, 0::2], pmf[:, 1::2]
        width, groups = first.shape[2], first.shape[0] * first.shape[1]
        product = functional.conv1d(
            first.reshape(1, groups, width),
            second.flip(-1).reshape(groups, 1, width),
            padding=width - 1,
            groups=groups,
        )
        pmf = product.reshape(b, first.shape[1], -1)
    mass: Tensor = pmf[:, 0].gather(1, counts.unsqueeze(1)).squeeze(1)
    return mass.clamp_min(torch.finfo(mass.dtype).tiny).log()


def _log_binomial(n: Int[Tensor, " b"], k: Int[Tensor, " b"], like: Tensor) -> Float[Tensor, " b"]:
    n, k = n.double(), k.double()
    return (torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)).to(like.dtype)
