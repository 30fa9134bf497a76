"""The likelihood of rows in bags: a bag with proportions γ holds draws from Σ_y γ_y p(x|y)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kdmkit._core.logspace import safe_log
from kdmkit.estimators.proportions.bags import Bags
from kdmkit.estimators.proportions.labels import posterior_proportions
from kdmkit.nn import JointLayer
from kdmkit.training.objectives import NoisyEncoder

# Alternations between the posterior proportions of a batch's bags and their mean.
_ROUNDS = 3


class Labels(NoisyEncoder):
    """p(y|x) of an encoder, if any, with a dense head or a joint KDM behind it.

    Args:
        noise: standard deviation of noise added to inputs in training, where there is no encoder.
    """

    def __init__(self, encoder: nn.Module | None, head: nn.Module, noise: float) -> None:
        super().__init__(encoder, noise)
        self.head = head

    def forward(self, x: Float[Tensor, "n ..."]) -> Float[Tensor, "n c"]:
        z = self.latent(x)
        probs: Tensor = self.head(z).probs if isinstance(self.head, JointLayer) else self.head(z).softmax(-1)
        return probs


class _Likelihood(nn.Module):
    """What both likelihoods share.

    Args:
        labels: p(y|x).
        prior: p(y), the proportions of the labels in all bags together.
    """

    def __init__(self, labels: Labels, prior: Float[Tensor, " c"]) -> None:
        super().__init__()
        self.labels = labels
        self.register_buffer("per_prior", torch.where(prior > 0, 1 / prior, 0.0))

    per_prior: Tensor


class RowLikelihood(_Likelihood):
    """−log Σ_y γ_y p(y|x)/p(y), per row, with the proportions γ of the row's bag.

    This is −log p(x|bag) + log p(x): a loss of single rows, so a batch need not hold whole bags.
    """

    def forward(self, x: Tensor, proportions: Float[Tensor, "n c"]) -> Float[Tensor, " n"]:
        return -safe_log((proportions * self.per_prior * self.labels(x)).sum(-1))


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
        probs, weights = self.bags.answers(self.labels, first, size)
        ratio = probs * self.per_prior
        share = size / size.sum()
        drift = torch.ones_like(mean[0])
        for _ in range(_ROUNDS):
            gamma = posterior_proportions((ratio / drift).detach(), weights, mean, low, high, counted)
            # A label whose proportion grows in every bag explains nothing: γ counts relative to its mean.
            drift = torch.where(share @ mean > 0, (share @ gamma) / (share @ mean), 1.0)
        likelihood = (gamma.unsqueeze(1) * ratio / drift).sum(-1)
        return -(weights * torch.where(weights > 0, safe_log(likelihood), 0.0)).sum(1)


@torch.no_grad()
def predicted_labels(
    proportions: Float[Tensor, "n c"], head: nn.Module | None, z: Float[Tensor, "n d"]
) -> Float[Tensor, "n c"]:
    """p(y|z, bag) ∝ γ_y p(y|z)/p(y): labels of rows in bags with proportions γ, by a dense head (None: γ)."""
    if head is None:
        return proportions
    prior = proportions.mean(0)
    weight = proportions * head(z).softmax(-1) * torch.where(prior > 0, 1 / prior, 0.0)
    return weight / weight.sum(-1, keepdim=True)
