"""Networks that learn from bags, by the loss that suits held-out bags, and KDMs that learn from networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kdmkit.estimators.proportions.bag_likelihood import (
    BagLoss,
    CountLikelihood,
    LabelRatio,
    RowLikelihood,
)
from kdmkit.estimators.proportions.label_proportions import LabelProportions
from kdmkit.nn import DrawingModule, JointLayer, MLPEnsemble
from kdmkit.training import Bags, PhasedFit

# Losses to compare, and the largest mean size of bags that suits the first one if no bags are held out.
_LOSSES, _SMALL_BAGS = ("proportions", "likelihood"), 64
# Networks without an encoder, and their hidden layers.
_MEMBERS, _HIDDEN = 4, (128, 128)


class MeanLogits(DrawingModule):
    """The mean logits of an ensemble; in training, rows have noise of a standard deviation."""

    def __init__(self, d: int, n_classes: int, noise: float, generator: torch.Generator) -> None:
        super().__init__()
        self.noise = noise
        self.ensemble = MLPEnsemble([d, *_HIDDEN, n_classes], n_members=_MEMBERS, generator=generator)

    def forward(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n c"]:
        mean: Tensor = self.ensemble(self.noisy(x, self.noise)).mean(1)
        return mean


class SoftLabels(nn.Module):
    """−Σ_y q_y log p(y|z) per row: the cross-entropy of a KDM with the probabilities of a network."""

    def __init__(self, layer: JointLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, z: Float[Tensor, "n d"], q: Float[Tensor, "n c"]) -> Float[Tensor, " n"]:
        return self.layer(z).cross_entropy(q)


class FittedNetwork(NamedTuple):
    """A network that was fitted to bags.

    Attributes:
        loss: of the fit.
        encoder: from rows to what the head takes.
        head: gives logits.
        phases: of the fit.
    """

    loss: str
    encoder: nn.Module
    head: nn.Module
    phases: PhasedFit


def fit_network(
    start: Callable[[str], FittedNetwork],
    bags: Bags,
    proportions: LabelProportions,
    prior: Float[Tensor, " c"],
    validation: Int[Tensor, " k"] | None,
) -> FittedNetwork:
    """A network by the loss with the larger likelihood of the counts of held-out bags.

    Without held-out bags small ones are compared by their means, others by the likelihood of their rows.

    Args:
        start: a network that is not fitted, and the phases of its fit, for a loss.
        bags, proportions, prior: of the labels.
        validation: ids of held-out bags.
    """
    losses: tuple[str, ...] = _LOSSES
    if validation is None:
        losses = _LOSSES[:1] if float(bags.size.float().mean()) <= _SMALL_BAGS else _LOSSES[1:]
    fitted = []
    for loss in losses:
        network = start(loss)
        labels = LabelRatio(network.encoder, network.head, 0.0, prior)
        by_means = BagLoss(bags, network.encoder, network.head)
        objective = by_means if loss == "proportions" else RowLikelihood(labels)
        # Other losses train an encoder in two phases.
        epochs = network.phases.options.max_epochs * (1 if network.phases.encoder is None else 2)
        network.phases.minimize(f"pretraining by {loss}", objective, max_epochs=epochs)
        network.phases.histories["pretraining"] = network.phases.histories.pop(f"pretraining by {loss}")
        labels.cpu().eval()
        fitted.append((network, 0.0 if validation is None else _error(labels, bags, proportions, validation)))
    return min(fitted, key=lambda pair: pair[1])[0]


@torch.no_grad()
def _error(labels: LabelRatio, bags: Bags, proportions: LabelProportions, ids: Int[Tensor, " k"]) -> float:
    """The mean loss of bags by `CountLikelihood`, whatever the loss of a fit; counts are rounded."""
    size = bags.size[ids]
    counts = (proportions.mean[ids] * size.unsqueeze(1)).round().long()
    losses = CountLikelihood(labels, bags)(bags.first[ids], size, counts)
    return float((losses * size).sum() / size.sum())
