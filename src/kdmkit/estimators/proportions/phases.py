"""The phases of a fit to label proportions."""

from __future__ import annotations

from typing import Any

from jaxtyping import Int
from torch import Tensor, nn

from kdmkit.estimators.common.phases import EstimatorFit
from kdmkit.estimators.proportions.bags import BagLoss, BagPretraining, Bags
from kdmkit.estimators.proportions.counts import counts_of
from kdmkit.estimators.proportions.labels import LabelProportions
from kdmkit.estimators.proportions.likelihood import (
    BagLikelihood,
    CountLikelihood,
    Labels,
    RowLikelihood,
    predicted_labels,
)
from kdmkit.nn import JointLayer
from kdmkit.training import Rows

# Bags per step where whole bags are needed.
_BAGS = 16


class ProportionFit(EstimatorFit):
    """Encoder with a dense head, then with a joint KDM, both fitted to the proportions of bags.

    Args:
        estimator: its parameters are the settings.
        bags: the rows of all bags.
        proportions: what is known of their labels.
        train, validation: the ids of the bags to learn from and to validate on.
    """

    def __init__(
        self,
        estimator: Any,
        bags: Bags,
        proportions: LabelProportions,
        train: Int[Tensor, " k"],
        validation: Int[Tensor, " l"] | None,
    ) -> None:
        self.bags, self.proportions, self.criterion = bags, proportions, estimator.loss
        #: The proportions of the bag of every row.
        self.mean = proportions.mean.float()[train].repeat_interleave(bags.size[train], 0)
        #: p(y), the mean over all rows.
        self.prior = self.mean.mean(0)
        automatic = isinstance(estimator.batch_size, str) and estimator.batch_size == "auto"
        super().__init__(
            estimator,
            bags.inside(train),
            self._rows(train),
            None if validation is None else self._rows(validation),
            n_outputs=proportions.n_classes,
            batch_size=_BAGS if automatic and not self._by_row else None,
            noise=float(estimator.noise),
        )

    @property
    def _by_row(self) -> bool:
        """Whether the loss is a sum over single rows, so that a batch need not hold whole bags."""
        return self.criterion == "likelihood" and self.proportions.exact

    def _rows(self, ids: Int[Tensor, " k"]) -> Rows:
        """The objective's tensors for some bags: one entry per row, or one per bag."""
        known, size = self.proportions, self.bags.size[ids]
        mean = known.mean.float()[ids]
        if self._by_row:
            return Rows((self.bags.inside(ids), mean.repeat_interleave(size, 0)))
        if self.criterion == "counts":
            counts = counts_of(known, self.bags.size)[ids]
            return Rows((self.bags.first[ids], size, counts), size.float(), size)
        whole = (self.bags.first[ids], size, mean)
        if self.criterion == "proportions":
            return Rows(whole, None, size)
        bounds = (known.low.float()[ids], known.high.float()[ids], known.counted.float()[ids])
        return Rows((*whole, *bounds), size.float(), size)

    def place_components(self) -> None:
        z = self.encode(self.x)
        self.layer = self.estimator._first_layer(z, predicted_labels(self.mean, self.dense, z).sqrt())

    def dense_objective(self) -> nn.Module:
        assert self.encoder is not None
        assert self.dense is not None
        if self.criterion != "proportions":
            return self._likelihood(self.dense)
        return BagPretraining(self.bags, self.encoder, self.dense)

    def joint_objective(self) -> nn.Module:
        if self.criterion != "proportions":
            return self._likelihood(self.layer)
        return BagLoss(self.bags, self.encoder, self.layer)

    def _likelihood(self, head: nn.Module | JointLayer) -> nn.Module:
        labels = Labels(self.encoder, head, self.noise)
        if self.criterion == "counts":
            return CountLikelihood(labels, self.prior, self.bags)
        if self.proportions.exact:
            return RowLikelihood(labels, self.prior)
        return BagLikelihood(labels, self.prior, self.bags)
