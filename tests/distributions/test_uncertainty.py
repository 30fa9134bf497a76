"""Entropy, cross-entropy and mode."""

import math

import pytest
import torch

import kdmkit as kdm
from helpers import close, grid, normal, real, seeded, simplex

LABELS = {
    "cosine": lambda w: kdm.KDM(normal(4, 3, seed=0), w, kdm.Cosine()),
    "categorical": lambda w: kdm.KDM(torch.tensor([0, 2, 2, 1]), w, kdm.Categorical(3, 0.1)),
    "levels": lambda w: kdm.KDM(normal(4, 3, seed=0), w, kdm.Levels(3)),
}


@pytest.mark.parametrize("batch", [(), (5,), (2, 3)])
@pytest.mark.parametrize("name", LABELS)
def test_entropy_of_labels(name: str, batch: tuple[int, ...]) -> None:
    rho = LABELS[name](simplex(*batch, 4, seed=1))
    close(rho.entropy(), torch.distributions.Categorical(rho.probs).entropy(), rtol=1e-6)


def test_entropy_of_certain_labels_is_zero_with_finite_gradients() -> None:
    logits = real([0.0, -1000.0, -math.inf]).requires_grad_()
    rho = kdm.KDM(torch.eye(3, dtype=torch.float64), None, kdm.Cosine(), log_weights=logits.log_softmax(-1))
    assert rho.entropy().item() == 0
    rho.entropy().backward()
    assert logits.grad is not None
    assert logits.grad[:2].isfinite().all()


@pytest.mark.parametrize("name", LABELS)
def test_cross_entropy_is_that_of_torch(name: str) -> None:
    rho, q = LABELS[name](simplex(7, 4, seed=1)), simplex(7, 3, seed=2)
    close(rho.cross_entropy(q), torch.nn.functional.cross_entropy(rho.logits, q, reduction="none"), rtol=1e-6)
    labels = torch.tensor([0, 1, 2, 2, 1, 0, 0])
    one_hot = torch.nn.functional.one_hot(labels, 3).double()
    close(rho.cross_entropy(one_hot), -rho.log_prob(labels), rtol=1e-6)
    assert bool((rho.cross_entropy(q) >= torch.distributions.Categorical(q).entropy()).all())


def test_cross_entropy_is_linear_in_soft_labels_and_amplitudes_are_not() -> None:
    # The example of users: log_prob of probabilities takes them for amplitudes.
    layer = kdm.nn.JointLayer(2, 3, 6, generator=seeded(0))
    rho, q = layer(torch.zeros(2)), torch.tensor([0.7, 0.3, 0.0])
    expected = -(0.7 * rho.log_prob(torch.tensor(0)) + 0.3 * rho.log_prob(torch.tensor(1)))
    close(rho.cross_entropy(q), expected, rtol=1e-5)
    assert torch.autograd.grad(rho.cross_entropy(q), layer.logits)[0].abs().sum() > 0


def test_cross_entropy_of_bad_targets() -> None:
    rho = LABELS["cosine"](None)
    for target, message in (
        (torch.tensor([0.5, 0.5]), r"target: expected probabilities of shape \(\.\.\., 3\)"),
        (torch.tensor([0, 1, 0]), "target: expected probabilities"),
        (torch.tensor([0.5, 0.4, 0.3]), "target"),
        (torch.tensor([1.5, -0.5, 0.0]), "target"),
    ):
        with pytest.raises(ValueError, match=message):
            rho.cross_entropy(target)


def test_entropy_of_numbers_names_the_estimate() -> None:
    with pytest.raises(TypeError, match=r"entropy: expected a discrete kernel.*estimate_entropy"):
        kdm.KDM(torch.zeros(2, 1), None, kdm.RBF(1.0)).entropy()


def test_estimated_entropies_are_within_their_errors() -> None:
    rho = kdm.KDM(3 * normal(4, 1, seed=0), simplex(2, 4, seed=1), kdm.RBF(0.8))
    x, cell = grid(-12, 12, 6001)
    log_prob = rho.log_prob(x.unsqueeze(1))
    exact = -(log_prob.exp() * log_prob).sum(0) * cell
    errors = []
    for seed in range(50):
        value, error = rho.estimate_entropy(400, generator=seeded(seed))
        assert value.shape == error.shape == (2,)
        errors.append((value - exact) / error)
    z = torch.stack(errors)
    assert float(z.abs().max()) < 5
    assert 0.7 < float(z.std()) < 1.3


def test_estimates_of_joints_and_trees_agree_with_the_exact_entropy() -> None:
    codes = {"a": torch.arange(3), "b": torch.tensor([0, 1, 1])}
    kernels = {"a": kdm.Categorical(3, 0.2), "b": kdm.Categorical(2, 0.1)}
    joint = kdm.JointKDM(codes, simplex(3, seed=0), kernels)
    a, b = torch.cartesian_prod(torch.arange(3), torch.arange(2)).unbind(-1)
    log_prob = joint.log_prob(a=a, b=b)
    exact = -(log_prob.exp() * log_prob).sum()
    for rho in (joint, kdm.TreeKDM.from_joint(joint)):
        value, error = rho.estimate_entropy(4000, generator=seeded(1))
        assert abs(float(value - exact)) < 4 * float(error)


@pytest.mark.parametrize("name", LABELS)
def test_the_mode_of_labels_is_the_likeliest(name: str) -> None:
    rho = LABELS[name](simplex(6, 4, seed=1))
    mode = rho.mode
    assert mode.shape == (6, *rho.event_shape)
    best = mode if rho.event_shape == () else mode.argmax(-1)
    assert torch.equal(best, rho.probs.argmax(-1))


@pytest.mark.parametrize("sigma", [0.8, [0.5, 1.2], "each"])
def test_the_mode_of_numbers_is_a_maximum(sigma: object) -> None:
    kernel = kdm.RBF((0.3 * normal(6, 2, seed=4)).exp()) if sigma == "each" else kdm.RBF(sigma)
    rho = kdm.KDM(2 * normal(6, 2, seed=0), simplex(3, 6, seed=1), kernel)
    x, _ = grid(-6, 6, 601, 2)
    on_grid = rho.log_prob(x.unsqueeze(1)).amax(0)
    at_mode = rho.log_prob(rho.mode)
    assert bool((at_mode >= on_grid - 1e-6).all())
    mode = rho.mode.requires_grad_()
    (gradient,) = torch.autograd.grad(rho.log_prob(mode).sum(), mode)
    assert float(gradient.abs().max()) < 1e-3


def test_the_mode_of_an_inferred_regression() -> None:
    x = torch.linspace(-1, 1, 50).unsqueeze(-1)
    joint = kdm.JointKDM({"x": x, "y": x**2}, None, {"x": kdm.RBF(0.1), "y": kdm.RBF(0.05)})
    mode = joint.infer(x=torch.tensor([[0.5], [-0.5]])).mode
    close(mode, torch.tensor([[0.25], [0.25]]), rtol=0, atol=0.02)


def test_other_kernels_have_no_mode() -> None:
    for kernel in (kdm.Epanechnikov(1.0), kdm.RBF.from_metric(torch.eye(1))):
        with pytest.raises(TypeError, match="kernel: expected an RBF kernel without a metric"):
            _ = kdm.KDM(torch.zeros(2, 1), None, kernel).mode


def test_overlaps_of_joints_are_traces() -> None:
    def joint(m: int, seed: int) -> kdm.JointKDM:
        components = {"x": normal(m, 2, seed=seed), "y": normal(m, 3, seed=seed + 1)}
        return kdm.JointKDM(components, simplex(m, seed=seed + 2), {"x": kdm.Cosine(), "y": kdm.Cosine()})

    def matrix(rho: kdm.JointKDM) -> torch.Tensor:
        units = [c / c.norm(dim=-1, keepdim=True) for c in rho.components.values()]
        states = torch.einsum("ja,jb->jab", *units).flatten(1)
        return torch.einsum("j,ja,jb->ab", rho.weights, states, states)

    rho, sigma = joint(5, 0), joint(4, 10)
    close(rho.purity(), (matrix(rho) @ matrix(rho)).trace())
    close(rho.overlap(sigma), (matrix(rho) @ matrix(sigma)).trace())
    with pytest.raises(ValueError, match="other: expected the variables"):
        rho.overlap(kdm.JointKDM({"x": torch.eye(2)}, None, {"x": kdm.Cosine()}))
