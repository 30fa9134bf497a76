"""Inference under `torch.compile`."""

import pytest
import torch

import kdmkit as kdm
from helpers import close, normal, simplex


@pytest.mark.slow
def test_inference_is_one_graph():
    """Made, asked and differentiated inside; the constructor's checks stay out of the graph by themselves."""
    kernels = {"x": kdm.RBF(0.9), "y": kdm.Epanechnikov(3.0), "z": kdm.Cosine()}
    others = {"y": normal(6, 1, seed=1), "z": normal(6, 3, seed=2)}

    def everything(components, log_weights, x):
        joint = kdm.JointKDM({"x": components, **others}, None, kernels, log_weights=log_weights)
        rho = joint.infer(x=x)
        y, z = rho.marginal("y"), rho.marginal("z")
        return z.probs, z.log_prob(torch.tensor(1)), y.mean, y.log_prob(x[..., :1]), rho.log_evidence

    leaves = [normal(6, 2, seed=5), simplex(6, seed=6).log(), normal(4, 2, seed=4)]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    got = torch.compile(everything, backend="aot_eager", fullgraph=True, dynamic=False)(*leaves)
    wanted = everything(*leaves)
    seeds = [torch.linspace(0.5, 1, r.numel(), dtype=r.dtype).reshape(r.shape) for r in wanted]
    got += torch.autograd.grad(got, leaves, seeds)
    wanted += torch.autograd.grad(wanted, leaves, seeds)
    for one, other in zip(got, wanted, strict=True):
        close(one, other, atol=1e-10)


@pytest.mark.slow
def test_kdms_as_evidence_are_one_graph():
    kernels = {"x": kdm.RBF(0.9), "z": kdm.Cosine()}
    components = {"x": normal(6, 2, seed=1), "z": normal(6, 3, seed=2)}

    def function(bag, weights, mask):
        joint = kdm.JointKDM(components, None, kernels)
        rho = kdm.KDM(bag, weights, kernels["x"])
        return joint.infer(x=rho, observed={"x": mask}).probs

    arguments = normal(4, 2, seed=3), simplex(5, 4, seed=4), torch.arange(5) % 2 == 0
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=False)
    close(compiled(*arguments), function(*arguments))


@pytest.mark.slow
def test_shifted_and_convolved_kdms_are_one_graph():
    kernels = {"x": kdm.RBF(0.9), "y": kdm.RBF(0.3 + simplex(6, 2, seed=0))}
    components = {"x": normal(6, 2, seed=1), "y": normal(6, 2, seed=2)}
    x, by, y = normal(4, 2, seed=3), normal(4, 2, seed=4), normal(4, 2, seed=5)

    def function(x, by, y):
        rho = kdm.JointKDM(components, None, kernels).infer(x=x).shifted(by).convolved(by.square())
        return rho.log_prob(y), rho.coordinates(1).mean

    got = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=False)(x, by, y)
    for one, other in zip(got, function(x, by, y), strict=True):
        close(one, other)


def test_trees_are_one_graph():
    codes, y = torch.arange(3), torch.tensor([0, 1, 2, 1])
    kernels = {"x": kdm.RBF(0.5), "y": kdm.Categorical(3, 0.1)}

    def log_prob(components, root, edge, x):
        tree = kdm.TreeKDM(
            {"x": components, "y": codes},
            kernels,
            {"x": None, "y": "x"},
            log_root_weights=torch.log_softmax(root, -1),
            log_edge_weights={"y": torch.log_softmax(edge, -1)},
        )
        return tree.log_prob(x=x, y=y)

    leaves = [normal(4, 1, seed=1), normal(4, seed=2), normal(4, 3, seed=3), normal(4, 1, seed=4)]
    got = torch.compile(log_prob, backend="eager", fullgraph=True, dynamic=False)(*leaves)
    close(got, log_prob(*leaves), rtol=1e-6)
