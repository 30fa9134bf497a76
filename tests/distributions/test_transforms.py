"""`torch.func` sees ordinary functions; for `torch.compile` see tests/compiled."""

import pytest
import torch

import kdmkit as kdm
from helpers import close, normal, simplex

M = 6
COMPONENTS = {"x": normal(M, 2, seed=0), "y": normal(M, 1, seed=1), "z": normal(M, 3, seed=2)}
LOG_WEIGHTS = simplex(M, seed=3).log()


def _joint(x=COMPONENTS["x"], log_weights=LOG_WEIGHTS):
    kernels = {"x": kdm.RBF(0.9), "y": kdm.Epanechnikov(3.0), "z": kdm.Cosine()}
    return kdm.JointKDM(COMPONENTS | {"x": x}, None, kernels, log_weights=log_weights, validate_args=False)


READERS = {
    "probs": lambda joint, x: joint.infer(x=x, target="z").probs,
    "mean": lambda joint, x: joint.infer(x=x, target="y").mean,
    "variance": lambda joint, x: joint.infer(x=x, target="y").variance,
    "weights": lambda joint, x: joint.infer(x=x).weights,
    "log_prob": lambda joint, x: joint.infer(x=x, target="z").log_prob(torch.tensor(1)),
    "density": lambda joint, x: joint.infer(x=x, target="y").log_prob(x[..., :1]),
    "log_evidence": lambda joint, x: joint.infer(x=x).log_evidence,
    "joint": lambda joint, x: joint.log_prob(x=x, y=x[..., :1], z=torch.tensor(2)),
    "masked": lambda joint, x: joint.infer(x=x, observed={"x": x[..., 0] > 0}, target="z").probs,
    "pure": lambda joint, x: joint.infer(
        x=kdm.KDM.pure(x, joint.kernels["x"], validate_args=False), target="z"
    ).log_prob(torch.tensor(1)),
}


@pytest.mark.parametrize("reader", READERS)
def test_vmap_over_evidence_is_a_batch(reader):
    joint, x, read = _joint(), normal(5, 2, seed=4), READERS[reader]
    close(torch.func.vmap(lambda x: read(joint, x))(x), read(joint, x))


@pytest.mark.parametrize("reader", READERS)
def test_vmap_over_models_is_a_loop(reader):
    """An ensemble: components and weights of three joints at once."""
    components, log_weights = normal(3, M, 2, seed=5), simplex(3, M, seed=6).log()
    x, read = normal(4, 2, seed=4), READERS[reader]
    together = torch.func.vmap(lambda c, w: read(_joint(c, w), x))(components, log_weights)
    alone = [read(_joint(c, w), x) for c, w in zip(components, log_weights, strict=True)]
    close(together, torch.stack(alone))


def test_vmap_by_blocks(monkeypatch):
    monkeypatch.setattr("kdmkit.ops.dense.LARGEST_ON_CPU", 0)
    joint, x = _joint(), normal(5, 2, seed=4)
    for read in (READERS["probs"], READERS["density"], READERS["log_evidence"]):
        close(torch.func.vmap(lambda x, read=read: read(joint, x))(x), read(joint, x))


@pytest.mark.parametrize("reader", ["probs", "density", "log_evidence", "masked"])
def test_per_sample_gradients(reader):
    joint, x, read = _joint(), normal(5, 2, seed=4), READERS[reader]

    def first(x):
        return read(joint, x).reshape(-1)[0]

    together = torch.func.vmap(torch.func.grad(first))(x)
    for i in range(5):
        leaf = x[i].clone().requires_grad_()
        close(together[i], *torch.autograd.grad(first(leaf), leaf))


def test_jacobians_of_an_inferred_kdm_made_outside():
    """What an inferred KDM remembers must not outlive the transform it was computed in."""
    rho = _joint().infer(x=normal(2, seed=4), target="y")
    slope = torch.func.grad(lambda y: rho.log_prob(y))
    y = normal(1, seed=5)
    close(slope(y), slope(y))
    leaf = y.clone().requires_grad_()
    close(slope(y), *torch.autograd.grad(rho.log_prob(leaf), leaf))
    close(torch.func.vmap(rho.log_prob)(y.expand(3, 1)), rho.log_prob(y).expand(3))
