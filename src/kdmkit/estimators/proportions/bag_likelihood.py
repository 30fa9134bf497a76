"""Losses of bags: the likelihood of their rows, and the cross-entropy of their proportions.

A bag with proportions γ holds draws from Σ_y γ_y p(x|y).
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from kdmkit._core.checks import bad_argument
from kdmkit._core.logspace import safe_log, safe_logsumexp
from kdmkit.distributions import KDM
from kdmkit.estimators.proportions.bags import Bags, LabelProportions, log_posterior_proportions
from kdmkit.nn import DrawingModule, JointLayer
from kdmkit.training import cross_entropy

# Alternations between the posterior proportions of a batch's bags and their mean.
_ROUNDS = 3
# How far from a whole number the count of a bag may be, for proportions that were rounded.
_COUNT_TOLERANCE = 0.05
# Bisections of the tilt, from an interval of ±100.
_BISECTIONS, _WIDEST = 40, 100.0


class LabelRatio(DrawingModule):
    """log p(y|x) − log p(y) of an encoder, if any, with a dense head or a joint KDM behind it.

    −∞ for a label that no bag has.

    Args:
        encoder: from rows to latent vectors; None for rows as they are.
        head: gives logits of latent vectors, or is a joint KDM of latent vectors and labels.
        noise: standard deviation of noise added to inputs in training, if there is no encoder.
        prior: p(y), the proportions of the labels in all bags together.
    """

    log_prior: Tensor

    def __init__(
        self, encoder: nn.Module | None, head: nn.Module, noise: float, prior: Float[Tensor, " c"]
    ) -> None:
        super().__init__()
        self.encoder, self.head, self.noise = encoder, head, noise
        self.register_buffer("log_prior", safe_log(prior))

    def forward(self, x: Float[Tensor, "n ..."]) -> Float[Tensor, "n c"]:
        z = self.noisy(x, self.noise) if self.encoder is None else self.encoder(x).float()
        rho = self.head(z)
        log_probs = rho.logits if isinstance(self.head, JointLayer) else torch.log_softmax(rho, -1)
        absent = torch.isneginf(self.log_prior)
        return (log_probs - self.log_prior.masked_fill(absent, 0.0)).masked_fill(absent, -torch.inf)


class RowLikelihood(nn.Module):
    """−log Σ_y γ_y p(y|x)/p(y), per row, with the proportions γ of the row's bag.

    This is −log p(x|bag) + log p(x): a loss of single rows, so a batch need not hold whole bags.
    """

    def __init__(self, labels: LabelRatio) -> None:
        super().__init__()
        self.labels = labels

    def forward(self, x: Tensor, proportions: Float[Tensor, "n c"]) -> Float[Tensor, " n"]:
        return -safe_logsumexp(safe_log(proportions) + self.labels(x))


class BagLikelihood(nn.Module):
    """`RowLikelihood` for proportions that are not known exactly, per bag (the mean over its rows).

    γ are the posterior proportions under the present model, within their bounds.
    """

    def __init__(self, labels: LabelRatio, bags: Bags) -> None:
        super().__init__()
        self.labels, self.bags = labels, bags

    def forward(
        self, first: Tensor, size: Tensor, mean: Tensor, low: Tensor, high: Tensor, counted: Tensor
    ) -> Float[Tensor, " b"]:
        log_ratio, weights = self.bags.answers(self.labels, first, size)
        log_share = (size / size.sum()).log().unsqueeze(-1)
        log_mean = safe_logsumexp((log_share + safe_log(mean)).mT)
        drift = torch.zeros_like(log_mean)
        for _ in range(_ROUNDS):
            relative = log_ratio.detach() - drift
            log_gamma = log_posterior_proportions(relative, weights, mean, low, high, counted)
            # A label whose proportion grows in every bag explains nothing: γ counts relative to its mean.
            drift = safe_logsumexp((log_share + log_gamma).mT) - log_mean
            drift = torch.where(drift.isfinite(), drift, 0.0)
        log_likelihood = safe_logsumexp(log_gamma.unsqueeze(1) + log_ratio - drift)
        return -(weights * torch.where(weights > 0, log_likelihood, 0.0)).sum(1)


class CountLikelihood(nn.Module):
    """−log p(rows | counts) + log p(rows) of a bag, over the number of its rows: `log_count_likelihood`."""

    def __init__(self, labels: LabelRatio, bags: Bags) -> None:
        super().__init__()
        self.labels, self.bags = labels, bags

    def forward(self, first: Tensor, size: Tensor, counts: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
        log_ratio, weights = self.bags.answers(self.labels, first, size)
        return -log_count_likelihood(log_ratio, weights > 0, counts) / size


class BagLoss(nn.Module):
    """−Σ_y γ_y log p(y) per bag, as in the paper's Algorithm 4.

    With a joint KDM, p(y) is inferred from the bag as a KDM with one component per row. With a dense head, it
    is the mean of the head's probabilities over the rows.

    Args:
        bags: the rows of all bags.
        encoder: from rows to latent vectors; None for rows as they are.
        head: gives logits of latent vectors, or is a joint KDM of latent vectors and labels.
    """

    def __init__(self, bags: Bags, encoder: nn.Module | None, head: nn.Module) -> None:
        super().__init__()
        self.bags, self.encoder, self.head = bags, encoder, head

    def forward(self, first: Tensor, size: Tensor, proportions: Tensor) -> Float[Tensor, " n"]:
        z, weights = self.bags.answers(self.encoder, first, size)
        if isinstance(self.head, JointLayer):
            evidence = KDM(z, weights, self.head.kernel("x"), validate_args=False)
            return cross_entropy(self.head(evidence), proportions)
        log_probs = torch.log_softmax(self.head(z), -1)
        inside_bag = (log_probs + weights.log().unsqueeze(-1)).logsumexp(1)
        return -(proportions * inside_bag).sum(-1)


# ---- exact likelihood of a bag of two labels, given their counts


def counts_of(proportions: LabelProportions, size: Int[Tensor, " n_bags"]) -> Int[Tensor, " n_bags"]:
    """The number of rows of each bag with the second of two labels; proportions have to be whole counts."""
    if proportions.n_classes != 2:
        raise ValueError(bad_argument("loss", f"'likelihood' for {proportions.n_classes} labels", "'counts'"))
    counts = proportions.mean[:, 1] * size
    off = (counts - counts.round()).abs()
    if bool((off > _COUNT_TOLERANCE).any()):
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
