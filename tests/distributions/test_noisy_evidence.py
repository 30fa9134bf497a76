"""Input KDMs whose components are noisy measurements, against quadrature."""

import pytest
import torch

import kdmkit as kdm
from helpers import close, grid, mixture_density, normal, real, simplex

M, L, B, CLASSES = 5, 3, 4, 3

#: Bandwidths of two-dimensional variables by the number of components.
WIDTHS = {
    "one": lambda m: real(0.5),
    "per dimension": lambda m: real([0.4, 0.9]),
    "per component": lambda m: 0.4 + 0.3 * torch.arange(m).double().unsqueeze(-1),
    "per component and dimension": lambda m: 0.4 + 0.1 * torch.arange(2 * m).double().reshape(m, 2),
}


def _joint(sigma=0.5, d=2):
    components = {"x": normal(M, d, seed=0), "y": normal(M, CLASSES, seed=1)}
    return kdm.JointKDM(components, simplex(M, seed=2), {"x": kdm.RBF(sigma), "y": kdm.Cosine()})


def _densities(points, components, sigma):
    """N(x; c_j, σ_j²/2) at points, `(n, m)`."""
    sigma = torch.as_tensor(sigma, dtype=torch.float64).expand(components.shape)
    one = torch.ones(1, dtype=torch.float64)
    columns = [
        mixture_density("rbf", points, c[None], s[None], one) for c, s in zip(components, sigma, strict=True)
    ]
    return torch.stack(columns, 1)


def _by_quadrature(joint, sigma, x, sigma_in, weights):
    """w_lj ∝ p_j ∫ N(x; x_l, σ_in²/2) N(x; c_j, σ_j²/2) dx, and log Σ_l p_l ∫ N(x; x_l, σ_in²/2) f̂(x) dx."""
    points, volume = grid(-9, 9, 241 if x.shape[-1] == 2 else 4001, x.shape[-1])
    measured, densities = _densities(points, x, sigma_in), _densities(points, joint.components["x"], sigma)
    overlap = joint.weights * (measured.T @ densities) * volume
    return weights @ (overlap / overlap.sum(-1, keepdim=True)), (weights @ overlap.sum(-1)).log()


@pytest.mark.parametrize("width_in", WIDTHS)
@pytest.mark.parametrize("width", WIDTHS)
def test_against_quadrature(width, width_in):
    sigma, sigma_in = WIDTHS[width](M), WIDTHS[width_in](L)
    joint, x, weights = _joint(sigma), normal(L, 2, seed=3), simplex(L, seed=4)
    rho = joint.infer(x=kdm.KDM(x, weights, kdm.RBF(sigma_in)), noisy=True)
    wanted, evidence = _by_quadrature(joint, sigma, x, sigma_in, weights)
    close(rho.weights, wanted, rtol=1e-6)
    close(rho.log_evidence, evidence, rtol=1e-6)
    close(rho.probs, wanted @ joint.kernels["y"].probs(joint.components["y"]), rtol=1e-6)
    close(rho.log_prob(torch.arange(CLASSES)).exp(), rho.probs, rtol=1e-6)


def test_the_default_takes_components_as_points():
    joint, x, weights = _joint(), normal(L, 2, seed=3), simplex(L, seed=4)
    narrow, wide = (kdm.KDM(x, weights, kdm.RBF(sigma)) for sigma in (0.5, 50.0))
    close(joint.infer(x=narrow).weights, joint.infer(x=wide).weights)
    assert not torch.allclose(
        joint.infer(x=narrow, noisy=True).weights, joint.infer(x=wide, noisy=True).weights
    )
    # Without noise the two meanings agree, and under overwhelming noise nothing was measured.
    exact = kdm.KDM(x, weights, kdm.RBF(1e-6))
    close(joint.infer(x=exact, noisy=True).weights, joint.infer(x=exact).weights, rtol=1e-6)
    close(joint.infer(x=kdm.KDM(x, weights, kdm.RBF(1e6)), noisy=True).weights, joint.weights, rtol=1e-6)


@pytest.mark.parametrize("width", ["one", "per component"])
def test_batches_equal_a_loop(width):
    sigma = WIDTHS[width](L)
    joint, x, weights = _joint(), normal(B, L, 2, seed=3), simplex(B, L, seed=4)
    rho = joint.infer(x=kdm.KDM(x, weights, kdm.RBF(sigma)), noisy=True)
    y = torch.arange(CLASSES)[:, None].expand(CLASSES, B)
    for i in range(B):
        one = joint.infer(x=kdm.KDM(x[i], weights[i], kdm.RBF(sigma)), noisy=True)
        close(rho.weights[i], one.weights)
        close(rho.probs[i], one.probs)
        close(rho.log_prob(y)[:, i], one.log_prob(y[:, i]))
        close(rho.log_evidence[i], one.log_evidence)


def test_noise_of_a_batch_of_its_own():
    """What `convolved` returns: a bandwidth for every component in every element of a batch."""
    joint, x = _joint(), normal(L, 2, seed=3)
    variance = 0.1 * torch.arange(1, 2 * B + 1).double().reshape(B, 2)
    noise = kdm.KDM(x, simplex(L, seed=4), kdm.RBF(0.3)).convolved(variance)
    rho = joint.infer(x=noise, noisy=True)
    for i in range(B):
        one = kdm.KDM(x, simplex(L, seed=4), kdm.RBF((0.3**2 + 2 * variance[i]).sqrt()))
        close(rho.probs[i], joint.infer(x=one, noisy=True).probs)


def test_independent_and_joint_evidence():
    """Noise stays with its points where points of several variables are paired."""
    components = {"x": normal(M, 1, seed=0), "z": normal(M, 2, seed=1), "y": normal(M, CLASSES, seed=2)}
    kernels = {"x": kdm.RBF(0.6), "z": kdm.RBF(0.8), "y": kdm.Cosine()}
    joint = kdm.JointKDM(components, simplex(M, seed=3), kernels)
    x = kdm.KDM(normal(2, 1, seed=4), simplex(2, seed=5), kdm.RBF(real([[0.3], [0.9]])))
    z = kdm.KDM(normal(3, 2, seed=6), simplex(3, seed=7), kdm.RBF(real([[0.2], [0.5], [1.1]])))
    wanted = torch.zeros(M, dtype=torch.float64)
    for i in range(2):
        for j in range(3):
            wider_x = (-((x.components[i] - components["x"]) ** 2) / (0.36 + x.kernel.sigma[i] ** 2)).sum(-1)
            wider_z = (-((z.components[j] - components["z"]) ** 2) / (0.64 + z.kernel.sigma[j] ** 2)).sum(-1)
            scores = joint.log_weights + wider_x + wider_z
            wanted += x.weights[i] * z.weights[j] * scores.softmax(-1)
    close(joint.infer(x=x, z=z, noisy=True).weights, wanted)
    pairs = {"x": x.components[[0, 1, 1]], "z": z.components}
    both = kdm.JointKDM(pairs, simplex(3, seed=8), {"x": kdm.RBF(0.4), "z": kdm.RBF(0.7)})
    wanted = torch.zeros(M, dtype=torch.float64)
    for j in range(3):
        wider_x = (-((pairs["x"][j] - components["x"]) ** 2) / (0.36 + 0.16)).sum(-1)
        wider_z = (-((pairs["z"][j] - components["z"]) ** 2) / (0.64 + 0.49)).sum(-1)
        wanted += both.weights[j] * (joint.log_weights + wider_x + wider_z).softmax(-1)
    close(joint.infer(both, noisy=True).weights, wanted)


def test_gradients_reach_the_noise():
    joint = _joint()
    sigma = real([[0.3], [0.5], [0.8]]).requires_grad_()

    def probs(sigma):
        kernel = kdm.RBF(kdm.kernels.FixedBandwidth("sigma", sigma, validate=False))
        return joint.infer(x=kdm.KDM(normal(L, 2, seed=3), simplex(L, seed=4), kernel), noisy=True).probs

    assert torch.autograd.gradcheck(probs, sigma)


def test_copies_keep_the_noise():
    joint, sigma = _joint(), WIDTHS["per component"](L)
    rho = joint.infer(x=kdm.KDM(normal(L, 2, seed=3), simplex(L, seed=4), kdm.RBF(sigma)), noisy=True)
    close(rho.to(torch.float32).probs, rho.probs.float(), rtol=1e-5)
    close(rho.expand((B,)).probs, rho.probs.expand(B, CLASSES))


def test_layers_take_the_option():
    layer = kdm.nn.JointLayer(2, CLASSES, M, dtype=torch.float64)
    x = kdm.KDM(normal(L, 2, seed=3), simplex(L, seed=4), kdm.RBF(2.0))
    close(layer(x, noisy=True).probs, layer.joint().infer(x=x, noisy=True).probs)
    with pytest.raises(ValueError, match="one other than"):
        kdm.nn.Variable("noisy", kdm.RBF(1.0), 1)


def test_errors():
    joint, x = _joint(), normal(L, 2, seed=3)
    with pytest.raises(ValueError, match="noisy: expected False where no evidence is a KDM"):
        joint.infer(x=x, noisy=True)
    with pytest.raises(TypeError, match="kernel: expected an RBF kernel without a metric"):
        joint.infer(y=kdm.KDM(normal(L, CLASSES, seed=3), None, kdm.Cosine()), noisy=True)
    metric = kdm.RBF.from_metric(real([[2.0, 0.0], [-1.5, 1.2]]))
    with pytest.raises(TypeError, match="kernel: expected an RBF kernel without a metric"):
        joint.infer(x=kdm.KDM(x, None, metric), noisy=True)
    skewed = kdm.JointKDM(joint.components, joint.weights, joint.kernels | {"x": metric})
    with pytest.raises(TypeError, match="kernel: expected an RBF kernel without a metric"):
        skewed.infer(x=kdm.KDM(x, None, kdm.RBF(0.5)), noisy=True).probs  # noqa: B018
