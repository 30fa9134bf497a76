"""Likelihoods of rows in bags, for encoders with a dense head or a joint KDM behind them."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from kdmkit.nn import JointLayer
from kdmkit.training import Bags, Rows, log_count_likelihood

# Fewer validation bags than this are too few to choose by.
_FEWEST_VALIDATION = 8


def split_rows(tensors: tuple[Tensor, ...], fraction: float, seed: int) -> tuple[Rows, Rows | None]:
    """Rows to train on and rows to validate on; None if those would be fewer than 8."""
    rows = Rows(tensors)
    if fraction * len(rows) < _FEWEST_VALIDATION:
        return rows, None
    parts = train_test_split(torch.arange(len(rows)).numpy(), test_size=fraction, random_state=seed)
    return tuple(Rows(tuple(tensor[index] for tensor in tensors)) for index in parts)  # type: ignore[return-value]


class MeanOfBag(nn.Module):
    """−Σ_y γ_y log p(y) per bag, where p(y) is the mean of a dense head's probabilities over its rows."""

    def __init__(self, bags: Bags, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.bags, self.encoder, self.head = bags, encoder, head

    def forward(self, first: Tensor, size: Tensor, proportions: Tensor) -> Float[Tensor, " n"]:
        z, weights = self.bags.answers(self.encoder, first, size)
        log_probs = torch.log_softmax(self.head(z), -1)
        inside_bag = (log_probs + weights.log().unsqueeze(-1)).logsumexp(1)
        return -(proportions * inside_bag).sum(-1)


# ---- likelihoods


class Labels(nn.Module):
    """log p(y|x) of an encoder with a dense head or a joint KDM behind it."""

    replayable = True

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, x: Float[Tensor, "n ..."]) -> Float[Tensor, "n c"]:
        z = self.encoder(x).float()
        if not isinstance(self.head, JointLayer):
            return torch.log_softmax(self.head(z), -1)
        log_probs: Tensor = self.head(z).logits
        return log_probs


class RowLikelihood(nn.Module):
    """−log Σ_y γ_y p(y|x)/p(y), per row, with the proportions γ of the row's bag.

    Args:
        labels: log p(y|x).
        prior: p(y), the proportions of the labels in all bags together.
    """

    replayable = True
    log_prior: Tensor

    def __init__(self, labels: Labels, prior: Float[Tensor, " c"]) -> None:
        super().__init__()
        self.labels = labels
        self.register_buffer("log_prior", prior.log())

    def forward(self, x: Tensor, proportions: Float[Tensor, "n c"]) -> Float[Tensor, " n"]:
        return -torch.logsumexp(proportions.log() + self.labels(x) - self.log_prior, -1)


class CountLikelihood(nn.Module):
    """−log p(rows | counts) + log p(rows) of a bag, over the number of its rows: `log_count_likelihood`.

    Args:
        labels: log p(y|x).
        prior: p(y), the proportions of the labels in all bags together.
        bags: the rows of all bags.
    """

    log_prior: Tensor

    def __init__(self, labels: Labels, prior: Float[Tensor, " c"], bags: Bags) -> None:
        super().__init__()
        self.labels, self.bags = labels, bags
        self.register_buffer("log_prior", prior.log())

    def forward(self, first: Tensor, size: Tensor, counts: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
        log_probs, weights = self.bags.answers(self.labels, first, size)
        return -log_count_likelihood(log_probs - self.log_prior, weights > 0, counts) / size


@torch.no_grad()
def predicted_labels(
    proportions: Float[Tensor, "n c"], head: nn.Module, z: Float[Tensor, "n d"]
) -> Float[Tensor, "n c"]:
    """p(y|z, bag) ∝ γ_y p(y|z)/p(y): labels of rows in bags with proportions γ, by a dense head."""
    relative = proportions / proportions.mean(0)
    return (relative.log() + torch.log_softmax(head(z), -1)).softmax(-1)
