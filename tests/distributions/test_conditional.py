"""Conditional log-probabilities in float32 equal those in float64, however far the evidence lies."""

import math

import pytest
import torch

import kdmkit as kdm
from distributions.random_inference import errors, random_inference
from helpers import close, normal

TOLERANCE = 1e-4


def _far(dtype=torch.float32):
    components = {"x": torch.zeros(1, 1, dtype=dtype), "y": torch.tensor([[0.3, 0.7]], dtype=dtype).sqrt()}
    joint = kdm.JointKDM(components, None, {"x": kdm.RBF(0.1), "y": kdm.Cosine()})
    return joint.infer(x=torch.tensor([[300.0]], dtype=dtype))


def test_one_component_three_thousand_bandwidths_away():
    assert _far().log_prob(0).item() == pytest.approx(math.log(0.3), abs=1e-6)


def test_inferred_weights_of_far_evidence():
    """Differences between scores of 10⁷ count."""
    components = {"x": torch.tensor([[0.0], [1e-5]]), "y": torch.eye(2)}
    joint = kdm.JointKDM(components, None, {"x": kdm.RBF(0.1), "y": kdm.Cosine()})
    rho = joint.infer(x=torch.tensor([300.0]))
    close(rho.weights, rho.probs, rtol=1e-5)
    exact = joint.to(torch.float64).infer(x=torch.tensor([300.0], dtype=torch.float64))
    close(rho.weights, exact.weights.float(), rtol=1e-5)


@pytest.mark.slow
def test_random_configurations():
    """A sample of those below."""
    assert [seed for seed in range(200) if not bool((errors(seed) <= TOLERANCE).all())] == []


@pytest.mark.slow
def test_five_thousand_random_configurations():
    assert [seed for seed in range(5000) if not bool((errors(seed) <= TOLERANCE).all())] == []


def test_random_configurations_in_blocks(monkeypatch):
    """The same where a matrix of scores is too large to be held: blocks have 2,048 components."""
    monkeypatch.setattr("kdmkit.ops.dense.LARGEST_ON_CPU", 0)
    assert [seed for seed in range(40) if not bool((errors(seed, 4500) <= TOLERANCE).all())] == []


def _gradients(far, dtype, target, m):
    """Gradients of the mean log-probability by components, query and bandwidth."""
    shapes = {"x": (m, 3), "y": (m, 4), "z": (m, 1), "query": (20, 3)}
    x, y, z, query = (normal(*shape, seed=i).float() for i, shape in enumerate(shapes.values()))
    leaves = [t.to(dtype).requires_grad_() for t in (x, y, z, far * query)]
    kernel = kdm.RBF(torch.tensor(0.3, dtype=dtype), trainable=True)
    components = dict(zip("xyz", leaves[:3], strict=True))
    joint = kdm.JointKDM(components, None, {"x": kernel, "y": kdm.Cosine(), "z": kdm.RBF(0.7)})
    values = {"y": torch.arange(20) % 4, "z": normal(20, 1, seed=6).float().to(dtype)}
    value = joint.infer(x=leaves[3], target=target).log_prob(values[target]).mean()
    return torch.autograd.grad(value, [*leaves, *kernel.parameters()], materialize_grads=True)


@pytest.mark.parametrize("blocks", [False, True], ids=["whole", "in blocks"])
@pytest.mark.parametrize("target", ["y", "z"])
@pytest.mark.parametrize("far", [1.0, 30.0, 1000.0])
def test_gradients(far, target, blocks, monkeypatch):
    m = 4500 if blocks else 40
    wanted = _gradients(far, torch.float64, target, m)
    if blocks:
        monkeypatch.setattr("kdmkit.ops.dense.LARGEST_ON_CPU", 0)
    for got, exact in zip(_gradients(far, torch.float32, target, m), wanted, strict=True):
        assert (got.double() - exact).norm() <= 1e-4 * exact.norm() + 1e-6


def test_the_oracle_is_inference_in_float64():
    for seed in range(20):
        inference = random_inference(seed)
        wide = inference.joint.to(torch.float64)
        if not isinstance(inference.evidence, kdm.KDM):
            rho = wide.infer(x=inference.evidence.double())
            values = {n: v.double() if v.is_floating_point() else v for n, v in inference.values.items()}
            got = rho.log_prob(**values) if len(values) > 1 else rho.log_prob(*values.values())
            close(got, inference.exact(), rtol=1e-5, atol=1e-4)
