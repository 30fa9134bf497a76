"""Exact inference over the labels of a bag whose counts of two labels are known."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from kdmkit._core.checks import bad_argument
from kdmkit.estimators.proportions.labels import LabelProportions

# How far from a whole number the count of a bag may be, for proportions that were rounded.
_TOLERANCE = 0.05
# Bisections of the tilt, from an interval of ±100.
_BISECTIONS = 40
_WIDEST = 100.0


def counts_of(known: LabelProportions, size: Int[Tensor, " n_bags"]) -> Int[Tensor, " n_bags"]:
    """How many rows of each bag have the second of two labels; exact proportions have to be whole counts."""
    if known.n_classes != 2:
        raise ValueError(bad_argument("loss", f"'likelihood' for {known.n_classes} labels", "'counts'"))
    counts = known.mean[:, 1] * size
    off = (counts - counts.round()).abs()
    if bool((off > _TOLERANCE).any()):
        worst = int(off.argmax())
        wanted = "whole counts of labels in every bag for loss='counts'"
        got = f"{counts[worst].item():g} of {int(size[worst])} in bag {worst}"
        raise ValueError(bad_argument("proportions", wanted, got))
    return counts.round().long()


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


def posterior_labels(
    log_ratio: Float[Tensor, "b l 2"], present: Bool[Tensor, "b l"], counts: Int[Tensor, " b"]
) -> Float[Tensor, "b l"]:
    """p(y_j = 1 | all rows of the bag, k): the derivative of the log-likelihood by log r_j1.

    >>> probs = torch.tensor([[[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]]])
    >>> posterior_labels((2 * probs).log(), torch.ones(1, 3, dtype=torch.bool), torch.tensor([1]))
    tensor([[0.0217, 0.7826, 0.1957]])
    """
    with torch.enable_grad():
        leaf = log_ratio.detach().requires_grad_()
        (slope,) = torch.autograd.grad(log_count_likelihood(leaf, present, counts).sum(), leaf)
    return slope[..., 1]


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
    found: Tensor = pmf[:, 0].gather(1, counts.unsqueeze(1)).squeeze(1)
    return found.clamp_min(torch.finfo(found.dtype).tiny).log()


def _log_binomial(n: Int[Tensor, " b"], k: Int[Tensor, " b"], like: Tensor) -> Float[Tensor, " b"]:
    n, k = n.double(), k.double()
    return (torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)).to(like.dtype)
