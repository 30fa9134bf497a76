"""Losses against their formulas, row by row."""

import math

import pytest
import torch
from torch import nn

import kdmkit as kdm
from helpers import close, mixture_density, normal, real, simplex
from kdmkit.nn import DensityLayer, JointLayer
from kdmkit.training import cross_entropy, hybrid_nll, joint_nll, nll
from kdmkit.training.objectives import squared_error

M = 5
X, C, W = normal(6, 2, seed=0), normal(M, 2, seed=1), simplex(M, seed=2)
Y = torch.tensor([0, 1, 2, 2, 1, 0])


def _layer(**options):
    torch.manual_seed(0)
    layer = JointLayer(2, 3, M, dtype=torch.float64, **options)
    with torch.no_grad():
        layer.logits.copy_(W.log())
    return layer


def _joint_log_density(layer, x, y):
    """log Σ_j w_j N(x; c_j, σ²/2) ĉ_jy², by hand."""
    sigma = layer.kernels["x"].sigma
    gauss = -torch.cdist(x, layer.components["x"]).square() / sigma**2 - (math.pi * sigma**2).log()
    amplitudes = layer.components["y"] / layer.components["y"].norm(dim=-1, keepdim=True)
    return torch.logsumexp(gauss + amplitudes.square().log().mT[y] + layer.logits.log_softmax(-1), -1)


def _log_density(layer, x):
    return torch.stack([_joint_log_density(layer, x, torch.full((len(x),), y)) for y in range(3)]).logsumexp(
        0
    )


def _conditional(layer, x):
    """p(y|x), one column per label."""
    columns = [_joint_log_density(layer, x, torch.full((len(x),), y)) for y in range(3)]
    return torch.stack(columns, -1).softmax(-1)


# ---- values


def test_nll_of_a_density():
    close(nll(kdm.KDM(C, W, kdm.RBF(0.7)), X), -mixture_density("rbf", X, C, 0.7, W).log())


def test_nll_given_x():
    layer = _layer()
    close(nll(layer(X), Y), -_conditional(layer, X)[torch.arange(6), Y].log())


def test_joint_nll():
    layer = _layer()
    close(joint_nll(layer.joint(), x=X, y=Y), -_joint_log_density(layer, X, Y))


def test_cross_entropy():
    layer, t = _layer(), simplex(6, 3, seed=3)
    close(cross_entropy(layer(X), t), -(t * _conditional(layer, X).log()).sum(-1))


def test_cross_entropy_of_hard_labels_is_the_nll():
    layer = _layer()
    one_hot = nn.functional.one_hot(Y, 3).double()
    close(cross_entropy(layer(X), one_hot), nll(layer(X), Y))


def test_squared_error():
    layer = JointLayer(2, 2, M, out_kernel=kdm.RBF(1.0), dtype=torch.float64)
    wanted = normal(6, 2, seed=4)
    weights = (-torch.cdist(X, layer.components["x"]).square()).softmax(-1)
    close(squared_error(layer(X), wanted), (weights @ layer.components["y"] - wanted).square().mean(-1))


def test_hybrid():
    layer = _layer()
    for alpha in (0.0, 0.3, 1.0, 2.5):
        wanted = -_conditional(layer, X)[torch.arange(6), Y].log() - alpha * _log_density(layer, X)
        close(hybrid_nll(layer, X, Y, generative_weight=alpha), wanted)
        close(hybrid_nll(layer, X, Y, generative_weight=alpha, detach_input=True), wanted)


def test_hybrid_ends():
    layer = _layer()
    close(hybrid_nll(layer, X, Y, generative_weight=1.0), joint_nll(layer.joint(), x=X, y=Y))
    close(hybrid_nll(layer, X, Y, generative_weight=0.0), nll(layer(X), Y))


def test_hybrid_far_from_every_component():
    """−log p(x, y) is exact where p(x) underflows."""
    layer = _layer()
    far = torch.full((1, 2), 1e3, dtype=torch.float64)
    close(hybrid_nll(layer, far, Y[:1], generative_weight=1.0), -_joint_log_density(layer, far, Y[:1]))
    close(
        hybrid_nll(layer, far, Y[:1], generative_weight=0.5),
        -_joint_log_density(layer, far, Y[:1]) + 0.5 * _log_density(layer, far),
    )


# ---- gradients


def _gradcheck(layer, loss, *inputs):
    names, values = zip(*layer.named_parameters(), strict=True)
    module = _Loss(layer, loss)

    def function(*leaves):
        state = dict(zip([f"layer.{name}" for name in names], leaves[len(inputs) :], strict=True))
        return torch.func.functional_call(module, state, leaves[: len(inputs)])

    leaves = [value.detach().clone().requires_grad_() for value in (*inputs, *values)]
    assert torch.autograd.gradcheck(function, leaves)


class _Loss(nn.Module):
    def __init__(self, layer, loss):
        super().__init__()
        self.layer, self.loss = layer, loss

    def forward(self, *inputs):
        return self.loss(self.layer, *inputs)


SHORT = X[:3]
LOSSES = {
    "nll": lambda layer, x: nll(layer(x), Y[:3]),
    "joint_nll": lambda layer, x: joint_nll(layer.joint(), x=x, y=Y[:3]),
    "cross_entropy": lambda layer, x: cross_entropy(layer(x), simplex(3, 3, seed=3)),
    "cross_entropy, zeros": lambda layer, x: cross_entropy(
        layer(x), real([[1, 0, 0], [0, 0.5, 0.5], [0, 1, 0]])
    ),
    "hybrid_nll": lambda layer, x: hybrid_nll(layer, x, Y[:3], generative_weight=0.3),
    "hybrid_nll, 1": lambda layer, x: hybrid_nll(layer, x, Y[:3], generative_weight=1.0),
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients(name):
    _gradcheck(_layer(), LOSSES[name], SHORT)


REGRESSION = {
    "squared_error": lambda layer, x: squared_error(layer(x), normal(3, 2, seed=4)),
    "nll": lambda layer, x: nll(layer(x), normal(3, 2, seed=4)),
}


@pytest.mark.parametrize("name", REGRESSION)
def test_gradients_of_regression(name):
    torch.manual_seed(0)
    _gradcheck(JointLayer(2, 2, M, out_kernel=kdm.RBF(1.0), dtype=torch.float64), REGRESSION[name], SHORT)


def test_detached_input_moves_the_kdm_only():
    """log p(z) must not reach the encoder, and nothing else may change."""
    layer, z = _layer(), X.clone().requires_grad_()
    parameters = list(layer.parameters())

    def gradients(loss):
        return torch.autograd.grad(loss.sum(), [z, *parameters])

    hybrid = gradients(hybrid_nll(layer, z, Y, generative_weight=0.7, detach_input=True))
    conditional = gradients(nll(layer(z), Y))
    close(hybrid[0], conditional[0])
    attached = gradients(hybrid_nll(layer, z, Y, generative_weight=0.7))
    assert not torch.allclose(attached[0], hybrid[0])
    for one, other in zip(hybrid[1:], attached[1:], strict=True):
        close(one, other)


def test_detached_input_at_one_is_no_joint_likelihood():
    layer, z = _layer(), X.clone().requires_grad_()
    loss = hybrid_nll(layer, z, Y, generative_weight=1.0, detach_input=True)
    close(*torch.autograd.grad(loss.sum(), z), *torch.autograd.grad(nll(layer(z), Y).sum(), z))


# ---- zeros


def test_cross_entropy_of_impossible_labels():
    """Labels with t = 0 do not count, even where π = 0; one with t > 0 and π = 0 costs ∞. Never NaN."""
    probs = real([[0.0, 0.4, 0.6], [0.0, 0.4, 0.6]]).requires_grad_()
    rho = kdm.KDM(torch.eye(3, dtype=torch.float64), probs, kdm.Cosine())
    losses = cross_entropy(rho, real([[0.0, 1.0, 0.0], [0.5, 0.5, 0.0]]))
    close(losses, real([-math.log(0.4), math.inf]))
    (gradient,) = torch.autograd.grad(losses[0], probs, retain_graph=True)
    close(gradient, real([[0.0, -1 / 0.4, 0.0], [0.0, 0.0, 0.0]]))
    (gradient,) = torch.autograd.grad(losses[1], probs)
    assert not bool(gradient.isnan().any())


# ---- shapes and errors


@pytest.mark.parametrize("lead", [(), (6,), (2, 3)])
def test_one_loss_per_row(lead):
    layer = _layer()
    x = X[0] if lead == () else X.reshape(*lead, 2)
    y = Y[0] if lead == () else Y.reshape(lead)
    t = simplex(*lead, 3, seed=3)
    assert nll(layer(x), y).shape == lead
    assert joint_nll(layer.joint(), x=x, y=y).shape == lead
    assert cross_entropy(layer(x), t).shape == lead
    assert hybrid_nll(layer, x, y, generative_weight=0.5).shape == lead
    regressor = JointLayer(2, 1, M, out_kernel=kdm.RBF(1.0), dtype=torch.float64)
    assert squared_error(regressor(x), x[..., :1]).shape == lead


@pytest.mark.parametrize("alpha", [-0.1, math.nan, math.inf])
def test_generative_weight(alpha):
    with pytest.raises(ValueError, match="generative_weight: expected a finite number ≥ 0"):
        hybrid_nll(_layer(), X, Y, generative_weight=alpha)


def test_hybrid_speaks_of_x_and_y():
    variables = [kdm.nn.Variable("a", kdm.RBF(1.0), 1), kdm.nn.Variable("b", kdm.RBF(1.0), 1)]
    layer = JointLayer.from_variables(variables, 3, inputs=["a"])
    for alpha in (0.0, 0.5, 1.0):
        with pytest.raises(ValueError, match="expected variables among"):
            hybrid_nll(layer, torch.zeros(2, 1), torch.zeros(2, 1), generative_weight=alpha)


@pytest.mark.usefixtures("unchecked")
def test_shapes_of_targets():
    with pytest.raises(ValueError, match=r"probs: expected shape \(..., 3\)"):
        cross_entropy(_layer()(X), simplex(6, 4, seed=0))
    regressor = JointLayer(2, 1, M, out_kernel=kdm.RBF(1.0), dtype=torch.float64)
    with pytest.raises(ValueError, match=r"value: expected shape \(..., 1\)"):
        squared_error(regressor(X), normal(6, seed=0))


def test_losses_that_need_a_kind_of_kernel():
    density = DensityLayer(3, M, dtype=torch.float64)()
    with pytest.raises(TypeError, match="kernel: expected a discrete kernel"):
        cross_entropy(density, simplex(3, seed=0))
    with pytest.raises(TypeError, match="mean: expected a continuous kernel"):
        squared_error(_layer()(X), torch.zeros(6, 3))
