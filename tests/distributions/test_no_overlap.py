"""Evidence that overlaps with no component: the joint's own weights, log_evidence −∞, never NaN."""

import pytest
import torch

import kdmkit as kdm
from helpers import close, normal, real, simplex

# By kernel of the evidence: components, a point that overlaps with some, a point that overlaps with none.
CASES = {
    "epanechnikov": (lambda t: kdm.Epanechnikov(1.0, trainable=t), [[0.0], [1.0], [3.0]], [0.4], [50.0]),
    "tricube": (lambda t: kdm.Tricube(1.0, trainable=t), [[0.0], [1.0], [3.0]], [0.4], [50.0]),
    "cosine": (
        lambda t: kdm.Cosine(),
        [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 2.0, 0.0]],
        [1.0, 0.3, 0.0],
        [0.0, 0.0, 1.0],
    ),
    "label": (lambda t: kdm.Cosine(), [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 2.0, 0.0]], 0, 2),
    "categorical": (lambda t: kdm.Categorical(4), [0, 1, 1], 1, 3),
}


def _case(name, dtype=torch.float64):
    make, components, hit, miss = CASES[name]
    kernel = make(name in ("epanechnikov", "tricube"))
    tensor = torch.tensor(components, dtype=torch.int64 if name == "categorical" else dtype)
    points = torch.tensor([hit, miss])
    if points.is_floating_point():
        points = points.to(dtype)
    y, log_weights = normal(3, 1, seed=1).to(dtype), simplex(3, seed=2).log().to(dtype)
    leaves = [t.requires_grad_() for t in (tensor, points, y, log_weights) if t.is_floating_point()]
    joint = kdm.JointKDM(
        {"x": tensor, "y": y}, None, {"x": kernel, "y": kdm.RBF(0.7)}, log_weights=log_weights
    )
    return joint, points, leaves + [p for p in kernel.parameters() if p.requires_grad]


def _check_gradients(loss, leaves):
    for gradient in torch.autograd.grad(loss, leaves, allow_unused=True):
        assert gradient is None or torch.isfinite(gradient).all()


@pytest.mark.parametrize("name", CASES)
def test_points_without_overlap_leave_the_prior(name):
    joint, points, leaves = _case(name)
    inferred, prior = joint.infer(x=points), joint.marginal("y")
    y = normal(7, 1, 1, seed=3)
    close(inferred.weights[1], prior.weights)
    close(inferred.mean[1], prior.mean)
    close(inferred.variance[1], prior.variance)
    close(inferred.log_prob(y)[:, 1], prior.log_prob(y.squeeze(1)))
    assert inferred.log_evidence[1] == -torch.inf
    # The other row is untouched.
    alone = joint.infer(x=points[0])
    close(inferred.mean[0], alone.mean)
    close(inferred.log_evidence[0], alone.log_evidence)
    assert torch.isfinite(inferred.log_evidence[0])
    for result in (
        inferred.weights,
        inferred.mean,
        inferred.variance,
        inferred.log_prob(y),
        inferred.log_evidence,
    ):
        _check_gradients(result.sum(), leaves)


@pytest.mark.parametrize("name", CASES)
def test_kdms_whose_components_miss_contribute_the_prior(name):
    joint, points, leaves = _case(name)
    if name == "label":
        points = torch.eye(3, dtype=torch.float64)[points]
    p = real([0.3, 0.7])
    rho = kdm.KDM(points, p, joint.kernels["x"])
    inferred = joint.infer(x=rho)
    hit = joint.infer(x=points[0])
    close(inferred.weights, 0.3 * hit.weights + 0.7 * joint.weights)
    close(inferred.mean, 0.3 * hit.mean + 0.7 * joint.marginal("y").mean)
    close(inferred.log_evidence, hit.log_evidence + p[0].log())
    y = normal(7, 1, seed=3)
    density = 0.3 * hit.log_prob(y).exp() + 0.7 * joint.marginal("y").log_prob(y).exp()
    close(inferred.log_prob(y).exp(), density)
    none = joint.infer(x=kdm.KDM(points[1:], None, joint.kernels["x"]))
    close(none.weights, joint.weights)
    assert none.log_evidence == -torch.inf
    for result in (inferred.weights, inferred.mean, inferred.log_prob(y), none.mean, none.log_evidence):
        _check_gradients(result.sum(), leaves)


@pytest.mark.parametrize("name", CASES)
def test_float32_has_no_nan_either(name):
    joint, points, leaves = _case(name, torch.float32)
    inferred = joint.infer(x=points)
    assert torch.isfinite(inferred.mean).all()
    _check_gradients(inferred.mean.sum() + inferred.log_evidence.sum(), leaves)
    _check_gradients(inferred.rsample((5,), generator=torch.Generator().manual_seed(0)).sum(), leaves)


def test_evidence_that_contradicts_itself():
    """Each variable overlaps with some component, but none with both."""
    components = {"x": real([[0.0], [5.0]]), "k": torch.tensor([0, 1]), "y": real([[-1.0], [1.0]])}
    kernels = {"x": kdm.Epanechnikov(1.0), "k": kdm.Categorical(2), "y": kdm.RBF(1.0)}
    joint = kdm.JointKDM(components, [0.8, 0.2], kernels)
    inferred = joint.infer(x=real([0.2]), k=torch.tensor(1))
    close(inferred.weights, real([0.8, 0.2]))
    assert inferred.log_evidence == -torch.inf


def test_a_density_is_minus_infinity_outside_the_support_with_zero_gradient():
    c = real([[0.0], [1.0]]).requires_grad_()
    for kernel in (kdm.Epanechnikov(1.0, trainable=True), kdm.Tricube(1.0, trainable=True)):
        log_prob = kdm.KDM(c, None, kernel).log_prob(real([[9.0], [0.5]]))
        assert log_prob[0] == -torch.inf
        close(*torch.autograd.grad(log_prob[0], c, retain_graph=True), torch.zeros_like(c))
        _check_gradients(log_prob.sum(), [c, *kernel.parameters()])


def test_rbf_far_from_everything_is_still_exact():
    """A thousand bandwidths away the nearest component decides, and gradients pull towards it."""
    components = {"x": torch.tensor([[0.0], [1.0]]), "y": torch.eye(2)}
    joint = kdm.JointKDM(components, None, {"x": kdm.RBF(1.0), "y": kdm.Cosine()})
    x = torch.tensor([[1000.0], [0.5]], requires_grad=True)
    inferred = joint.infer(x=x)
    close(inferred.probs[0], torch.tensor([0.0, 1.0]))
    assert inferred.log_evidence[0].item() == pytest.approx(-(999.0**2) - 0.5 * 1.1447 - 0.6931, rel=1e-6)
    inferred.log_evidence.sum().backward()
    assert x.grad[0].item() == pytest.approx(-2 * 999, rel=1e-5)
