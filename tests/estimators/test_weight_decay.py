"""Which parameters of every objective have weight decay."""

import pytest
import torch
from torch import nn

from kdmkit.estimators.common.cross_fit import CrossFitting
from kdmkit.estimators.common.member_losses import target_errors
from kdmkit.estimators.density.maximum_likelihood import Likelihood
from kdmkit.estimators.proportions.bag_likelihood import BagLikelihood, BagLoss, LabelRatio, RowLikelihood
from kdmkit.kernels import RBF
from kdmkit.nn import MLP, DensityLayer, JointLayer, MLPEnsemble
from kdmkit.training import Bags
from kdmkit.training.objectives import ConditionalObjective, DecoderObjective, DenseObjective
from kdmkit.training.steps import decayed_parameters

ENCODER, DENSE = MLP([3, 5, 2]), nn.Linear(2, 3)
BAGS = Bags(torch.zeros(4, 3), torch.tensor([0, 0, 1, 1]))
PRIOR = torch.full((3,), 1 / 3)


def layer(d: int = 2) -> JointLayer:
    """One bandwidth per component has as many dimensions as a weight matrix."""
    return JointLayer(d, 3, 4, in_kernel=RBF(torch.ones(d)), out_kernel=RBF(torch.ones(4, 3)))


OBJECTIVES: dict[str, tuple[nn.Module, set[str]]] = {
    "dense": (DenseObjective(ENCODER, DENSE), {"encoder.0.weight", "encoder.3.weight", "dense.weight"}),
    "conditional": (ConditionalObjective(ENCODER, layer()), {"encoder.0.weight", "encoder.3.weight"}),
    "conditional without an encoder": (ConditionalObjective(None, layer(3)), set()),
    "joint": (ConditionalObjective(None, layer(), generative_weight=1.0), set()),
    "density": (Likelihood(DensityLayer(3, 4, kernel=RBF(torch.ones(3), shear=torch.zeros(3, 3)))), set()),
    "decoder": (DecoderObjective(MLP([2, 5, 3])), {"decoder.0.weight", "decoder.3.weight"}),
    "rows with a dense head": (
        RowLikelihood(LabelRatio(ENCODER, DENSE, 0.0, PRIOR)),
        {"labels.encoder.0.weight", "labels.encoder.3.weight", "labels.head.weight"},
    ),
    "rows": (
        RowLikelihood(LabelRatio(ENCODER, layer(), 0.0, PRIOR)),
        {"labels.encoder.0.weight", "labels.encoder.3.weight"},
    ),
    "bags": (BagLikelihood(LabelRatio(None, layer(3), 0.0, PRIOR), BAGS), set()),
    "proportions with a dense head": (
        BagLoss(BAGS, ENCODER, DENSE),
        {"encoder.0.weight", "encoder.3.weight", "head.weight"},
    ),
    "proportions": (BagLoss(BAGS, ENCODER, layer()), {"encoder.0.weight", "encoder.3.weight"}),
    "cross-fitting": (
        CrossFitting(MLPEnsemble([3, 5, 1], n_members=4), target_errors),
        {"ensemble.weights.0", "ensemble.weights.1", "ensemble.linear"},
    ),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_weight_decay(name: str) -> None:
    objective, wanted = OBJECTIVES[name]
    trainable = {key for key, parameter in objective.named_parameters() if parameter.requires_grad}
    assert decayed_parameters(objective) & trainable == wanted
