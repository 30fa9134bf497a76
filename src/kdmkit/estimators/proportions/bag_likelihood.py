"""Losses of bags: the likelihood of their rows, and the cross-entropy of their proportions.

A bag with proportions γ holds draws from Σ_y γ_y p(x|y).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument
from kdmkit._core.logspace import safe_log, safe_logsumexp
from kdmkit.distributions import KDM
from kdmkit.estimators.proportions.label_proportions import LabelProportions, log_posterior_proportions
from kdmkit.nn import DrawingModule, JointLayer
from kdmkit.training import Bags, cross_entropy, log_count_likelihood

# Alternations between the posterior proportions of a batch's bags and their mean.
_ROUNDS = 3
# How far from a whole number the count of a bag may be, for proportions that were rounded.
_COUNT_TOLERANCE = 0.05


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
    """−log p(rows | counts) + log p(rows) of a bag, over the number of its rows: `log_count_likelihood`.

    With more than two labels it is half the sum over labels, each against all others: a composite likelihood.
    """

    def __init__(self, labels: LabelRatio, bags: Bags) -> None:
        super().__init__()
        self.labels, self.bags = labels, bags

    def forward(self, first: Tensor, size: Tensor, counts: Int[Tensor, "b c"]) -> Float[Tensor, " b"]:
        log_ratio, weights = self.bags.answers(self.labels, first, size)
        present, log_prior = weights > 0, self.labels.log_prior
        if counts.shape[1] == 2:
            return -log_count_likelihood(log_ratio, present, counts[:, 1]) / size
        used = torch.isfinite(log_prior).nonzero().squeeze(1)
        log_ratio, log_prior, counts = log_ratio[..., used], log_prior[used], counts[:, used]
        # log of p(not y|x)/p(not y) for every label y.
        eye = torch.eye(len(used), dtype=torch.bool, device=log_ratio.device)
        others = (log_ratio + log_prior).unsqueeze(-2).masked_fill(eye, -torch.inf).logsumexp(-1)
        others = others - log_prior.masked_fill(eye, -torch.inf).logsumexp(-1)
        pairs = torch.stack([others, log_ratio], -1).movedim(2, 1).flatten(0, 1)
        each = present.unsqueeze(1).expand(-1, len(used), -1).flatten(0, 1)
        total = log_count_likelihood(pairs, each, counts.flatten()).view(counts.shape)
        return -0.5 * total.sum(1) / size


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


# ---- counts


def counts_of(proportions: LabelProportions, size: Int[Tensor, " n_bags"]) -> Int[Tensor, "n_bags c"]:
    """The number of rows of each bag with each label; proportions have to be whole counts."""
    counts = proportions.mean * size.unsqueeze(1)
    off = (counts - counts.round()).abs().amax(1)
    if bool((off > _COUNT_TOLERANCE).any()):
        worst = int(off.argmax())
        wanted = "whole counts of labels in every bag for loss='counts'"
        got = f"{counts[worst].tolist()} of {int(size[worst])} in bag {worst}"
        raise ValueError(bad_argument("proportions", wanted, got))
    return counts.round().long()
