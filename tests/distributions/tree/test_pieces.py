"""Evidence that is a KDM: pieces that all rows share are mixed by one product."""

import pytest
import torch

import kdmkit as kdm
from helpers import Operations, close, normal
from kdmkit._core.logspace import safe_logsumexp
from kdmkit.distributions.tree.condition import mix_pieces


@pytest.mark.parametrize("scale", [1.0, 300.0, 3000.0])
def test_shared_pieces_equal_the_logsumexp(scale: float) -> None:
    """Also where sums underflow."""
    values = torch.log_softmax(scale * normal(5, 1, 4, seed=0), -1).requires_grad_()
    weights = torch.log_softmax(scale * normal(6, 5, seed=1), -1).requires_grad_()
    with torch.no_grad():
        values[2, 0, 1] = weights[3, 2] = -torch.inf
    upstream = normal(6, 4, seed=2)
    wanted = safe_logsumexp(values.movedim(0, -1) + weights.unsqueeze(-2))
    got = mix_pieces(values, weights)
    close(got, wanted)
    for a, b in zip(
        *(torch.autograd.grad(x, (values, weights), upstream) for x in (got, wanted)), strict=True
    ):
        close(a, b)


def test_shared_pieces_take_little_memory() -> None:
    values, weights = torch.zeros(300, 1, 300), torch.zeros(2000, 300)
    with Operations() as operations:
        mix_pieces(values, weights)
    assert operations.largest <= 2000 * 300


def test_a_kdm_as_evidence_equals_the_joint() -> None:
    components = {"x": normal(6, 1, seed=3), "y": normal(6, 1, seed=4)}
    joint = kdm.JointKDM(components, None, {"x": kdm.RBF(0.7), "y": kdm.RBF(0.5)})
    rho = kdm.KDM(normal(5, 1, seed=5), torch.softmax(normal(7, 5, seed=6), -1), kdm.RBF(0.3))
    close(kdm.TreeKDM.from_joint(joint).infer(x=rho).mean, joint.infer(x=rho).mean)
