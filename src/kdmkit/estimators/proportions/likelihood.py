"""The likelihood of rows in bags: a bag with proportions γ holds draws from Σ_y γ_y p(x|y)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kdmkit._core.logspace import log_normalize, safe_log, safe_logsumexp
from kdmkit.estimators.proportions.bags import Bags
from kdmkit.estimators.proportions.counts import log_count_likelihood
from kdmkit.estimators.proportions.labels import log_posterior_proportions
from kdmkit.nn import DrawingModule, JointLayer

# Alternations between the posterior proportions of a batch's bags and their mean.
_ROUNDS = 3


class Labels(DrawingModule):
    """log p(y|x) of an encoder, if any, with a dense head or a joint KDM behind it.

    Args:
        noise: standard deviation of noise added to inputs in training, where there is no encoder.
    """

    def __init__(self, encoder: nn.Module | None, head: nn.Module, noise: float) -> None:
        super().__init__()
        self.encoder, self.head, self.noise = encoder, head, noise

    def forward(self, x: Float[Tensor, "n ..."]) -> Float[Tensor, "n c"]:
        z = self.noisy(x, self.noise) if self.encoder is None else self.encoder(x).float()
        if not isinstance(self.head, JointLayer):
            return torch.log_softmax(self.head(z), -1)
        log_probs: Tensor = self.head(z).logits
        return log_probs


class _Likelihood(nn.Module):
    """What both likelihoods share.

    Args:
        labels: log p(y|x).
        prior: p(y), the proportions of the labels in all bags together.
    """

    def __init__(self, labels: Labels, prior: Float[Tensor, " c"]) -> None:
        super().__init__()
        self.labels = labels
        self.register_buffer("log_prior", safe_log(prior))

    log_prior: Tensor

    def log_ratio(self, log_probs: Float[Tensor, "*lead c"]) -> Float[Tensor, "*lead c"]:
        """log p(y|x) − log p(y); −∞ for a label that no bag has."""
        absent = torch.isneginf(self.log_prior)
        return (log_probs - self.log_prior.masked_fill(absent, 0.0)).masked_fill(absent, -torch.inf)


class RowLikelihood(_Likelihood):
    """−log Σ_y γ_y p(y|x)/p(y), per row, with the proportions γ of the row's bag.

    This is −log p(x|bag) + log p(x): a loss of single rows, so a batch need not hold whole bags.
    """

    def forward(self, x: Tensor, proportions: Float[Tensor, "n c"]) -> Float[Tensor, " n"]:
        return -safe_logsumexp(safe_log(proportions) + self.log_ratio(self.labels(x)))


class BagLikelihood(_Likelihood):
    """`RowLikelihood` for proportions that are not known exactly, per bag (the mean over its rows).

    γ are the posterior proportions under the present model, within what is known of them.
    """

    def __init__(self, labels: Labels, prior: Float[Tensor, " c"], bags: Bags) -> None:
        super().__init__(labels, prior)
        self.bags = bags

    def forward(
        self, first: Tensor, size: Tensor, mean: Tensor, low: Tensor, high: Tensor, counted: Tensor
    ) -> Float[Tensor, " b"]:
        log_probs, weights = self.bags.answers(self.labels, first, size)
        log_ratio = self.log_ratio(log_probs)
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


class CountLikelihood(_Likelihood):
    """−log p(rows | counts) + log p(rows) of a bag, over the number of its rows: `log_count_likelihood`."""

    def __init__(self, labels: Labels, prior: Float[Tensor, " c"], bags: Bags) -> None:
        super().__init__(labels, prior)
        self.bags = bags

    def forward(self, first: Tensor, size: Tensor, counts: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
        log_probs, weights = self.bags.answers(self.labels, first, size)
        return -log_count_likelihood(self.log_ratio(log_probs), weights > 0, counts) / size


@torch.no_grad()
def predicted_labels(
    proportions: Float[Tensor, "n c"], head: nn.Module | None, z: Float[Tensor, "n d"]
) -> Float[Tensor, "n c"]:
    """p(y|z, bag) ∝ γ_y p(y|z)/p(y): labels of rows in bags with proportions γ, by a dense head (None: γ)."""
    if head is None:
        return proportions
    relative = torch.where(proportions > 0, proportions / proportions.mean(0), 0.0)
    return log_normalize(safe_log(relative) + torch.log_softmax(head(z), -1)).exp()
