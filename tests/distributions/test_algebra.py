"""Sums and products of KDMs, shifts and scales."""

import pytest
import torch

import kdmkit as kdm
from helpers import close, normal, real, simplex


def gaussian(seed: int, sigma: object = 0.7, batch: tuple[int, ...] = (), m: int = 4) -> kdm.KDM:
    return kdm.KDM(normal(m, 2, seed=seed), simplex(*batch, m, seed=seed + 1), kdm.RBF(sigma))


def complex_kdm(seed: int) -> kdm.KDM:
    components = torch.complex(normal(3, 2, seed=seed), normal(3, 2, seed=seed + 5))
    return kdm.KDM(components, None, kdm.Cosine())


X = normal(6, 2, seed=50)
PAIRS = {
    "same kernel": lambda: (gaussian(0), gaussian(2, m=3)),
    "bandwidths": lambda: (gaussian(0), gaussian(2, sigma=[0.3, 2.0])),
    "per component": lambda: (gaussian(0, sigma=normal(4, 2, seed=9).exp()), gaussian(2)),
    "other class": lambda: tuple(
        kdm.KDM(normal(3, 2, seed=i), None, kdm.Epanechnikov(h)) for i, h in enumerate([4.0, 6.0])
    ),
    "complex": lambda: tuple(
        kdm.KDM(torch.complex(normal(3, 2, seed=i), normal(3, 2, seed=i + 5)), None, kdm.Cosine())
        for i in (0, 1)
    ),
    "circle": lambda: tuple(
        kdm.KDM(normal(3, 2, seed=i), simplex(3, seed=i), kdm.Periodic(2.0, 6.0)) for i in (0, 1)
    ),
}


@pytest.mark.parametrize("case", PAIRS)
def test_a_mixture_has_the_mixed_density(case: str) -> None:
    a, b = PAIRS[case]()
    w = real([0.3, 0.7])
    density = 0.3 * a.log_prob(X).exp() + 0.7 * b.log_prob(X).exp()
    close(kdm.mix([a, b], w).log_prob(X).exp(), density)
    close(kdm.mix([a, b, a]).log_prob(X).exp(), (2 * a.log_prob(X).exp() + b.log_prob(X).exp()) / 3)
    close(kdm.mix([a]).log_prob(X), a.log_prob(X))


def test_mixtures_of_batches() -> None:
    a, b, w = gaussian(0, batch=(5, 1)), gaussian(2, batch=(3,)), simplex(3, 2, seed=7)
    rho = kdm.mix([a, b], w)
    assert rho.batch_shape == (5, 3)
    x = X[:1].unsqueeze(0)
    density = w[:, 0] * a.log_prob(x).exp() + w[:, 1] * b.log_prob(x).exp()
    close(rho.log_prob(x).exp(), density)
    rows = kdm.KDM(normal(5, 3, 4, 2, seed=8), None, kdm.RBF(0.7))
    close(kdm.mix([a, rows]).mean, (a.mean + rows.mean) / 2)


def joint(seed: int, m: int) -> kdm.JointKDM:
    components = {"x": normal(m, 2, seed=seed), "y": torch.arange(m) % 2}
    return kdm.JointKDM(components, simplex(m, seed=seed), {"x": kdm.RBF(0.7), "y": kdm.Categorical(2, 0.1)})


def test_mixtures_of_joints_and_of_inferred_distributions() -> None:
    a, b = joint(0, 4), joint(1, 3)
    y = torch.arange(6) % 2
    rho = kdm.mix([a, b], real([0.25, 0.75]))
    density = 0.25 * a.log_prob(x=X, y=y).exp() + 0.75 * b.log_prob(x=X, y=y).exp()
    close(rho.log_prob(x=X, y=y).exp(), density)
    # The posterior of a mixture is the mixture of posteriors, weighted by the evidence.
    parts = [a.infer(x=X), b.infer(x=X)]
    evidence = torch.stack([p.log_evidence for p in parts], -1) + real([0.25, 0.75]).log()
    mixed = kdm.mix(parts, evidence.softmax(-1))
    close(mixed.probs, rho.infer(x=X).probs, rtol=1e-7)


def test_gradients_flow_through_mixtures() -> None:
    sigma = real(0.6).requires_grad_()
    logits = normal(2, seed=3).requires_grad_()

    def log_prob(s: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        a = kdm.KDM(normal(3, 2, seed=0), None, kdm.RBF(s))
        return kdm.mix([a, gaussian(2, sigma=1.5)], t.softmax(-1)).log_prob(X)

    assert torch.autograd.gradcheck(log_prob, (sigma, logits))


def test_mixtures_that_cannot_be() -> None:
    a = gaussian(0)
    for other, message in (
        (kdm.KDM(normal(3, 2, seed=0), None, kdm.Cosine()), "distributions: expected KDMs with the kernel"),
        (kdm.KDM(normal(3, 2, seed=0), None, kdm.Tricube(3.0)), "kernel: expected one of the class Tricube"),
        (kdm.KDM(normal(3, 1, seed=0), None, kdm.RBF(0.7)), "distributions: expected events of one shape"),
        (joint(0, 3), "distributions: expected only KDM objects"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            kdm.mix([a, other])
    with pytest.raises(ValueError, match="weights: expected shape"):
        kdm.mix([a, a], [0.2, 0.3, 0.5])
    with pytest.raises(ValueError, match="weights"):
        kdm.mix([a, a], [0.2, 0.3])
    with pytest.raises(ValueError, match="distributions: expected one or more KDMs"):
        kdm.mix([])
    numbers = kdm.JointKDM({"x": normal(3, 2, seed=0)}, None, {"x": kdm.RBF(0.7)})
    with pytest.raises(ValueError, match=r"distributions: expected the variables \['x', 'y'\], got \['x'\]"):
        kdm.mix([joint(0, 3), numbers])
    with pytest.raises(ValueError, match="kernel: expected bandwidths without a batch"):
        kdm.mix([a, kdm.KDM(normal(4, 2, seed=1), None, kdm.RBF(real([[[0.5]] * 4, [[1.0]] * 4])))])


def test_products_are_independent() -> None:
    x, y = (
        gaussian(0, sigma=normal(4, 2, seed=9).exp(), batch=(3,)),
        kdm.KDM.from_probs(simplex(3, 5, seed=1)),
    )
    z = joint(4, 3).marginal("x")
    rho = kdm.product(x=x, y=y, z=z)
    assert (rho.n_components, rho.batch_shape, rho.variables) == (4 * 5 * 3, (3,), ("x", "y", "z"))
    label, point = torch.tensor([0, 4, 2]), X[:3]
    apart = x.log_prob(point) + y.log_prob(label) + z.log_prob(point)
    close(rho.log_prob(x=point, y=label, z=point), apart)
    close(rho.marginal("y").probs, y.probs)
    close(rho.infer(x=point, target="y").probs, y.probs)
    both = kdm.product(pair=joint(0, 4), s=gaussian(2))
    values = {"x": X, "y": torch.arange(6) % 2}
    close(both.log_prob(**values, s=X), joint(0, 4).log_prob(**values) + gaussian(2).log_prob(X))
    with pytest.raises(ValueError, match="pair: expected variables that no other part has"):
        kdm.product(x=gaussian(0), pair=joint(0, 2))
    with pytest.raises(ValueError, match="distributions: expected one or more, got none"):
        kdm.product()


@pytest.mark.parametrize("factor", [2.5, [0.5, 3.0]])
@pytest.mark.parametrize(
    "kernel", [kdm.RBF([0.5, 1.0]), kdm.RBF.from_metric(real([[1.0, 0.0], [0.4, 2.0]])), kdm.Tricube(3.0)]
)
def test_scaled_and_shifted_variables(kernel: kdm.Kernel, factor: object) -> None:
    rho, f = kdm.KDM(normal(4, 2, seed=0), simplex(3, 4, seed=1), kernel), real(factor)
    moved = rho.scaled(factor).shifted(real([1.0, -2.0]))
    x = normal(3, 2, seed=2)
    close(moved.log_prob(f * x + real([1.0, -2.0])), rho.log_prob(x) - f.expand(2).log().sum())
    close(moved.mean, f * rho.mean + real([1.0, -2.0]))
    with pytest.raises(ValueError, match="factor"):
        rho.scaled(-1.0)
    with pytest.raises(ValueError, match=r"factor: expected shape \(..., 2\)"):
        rho.scaled([1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    "sigma", [0.7, [0.5, 1.0], normal(4, 2, seed=5).exp()], ids=["one", "each", "components"]
)
def test_a_scale_for_every_element_of_a_batch(sigma: object) -> None:
    rho, f = kdm.KDM(normal(4, 2, seed=0), simplex(3, 4, seed=1), kdm.RBF(sigma)), normal(3, 2, seed=3).exp()
    moved, x = rho.scaled(f), normal(3, 2, seed=2)
    close(moved.log_prob(f * x), rho.log_prob(x) - f.log().sum(-1))
    close(moved.mean, f * rho.mean)
    close(moved.stddev, f * rho.stddev)
    assert moved.sample((5,)).shape == (5, 3, 2)
    with pytest.raises(ValueError, match="factor: expected numbers > 0"):
        rho.scaled(-f)


def test_gradients_flow_through_scales() -> None:
    layer = kdm.nn.DensityLayer(2, 4).to(torch.float64)
    scaled = layer().scaled(2.0)
    scaled.log_prob(X).sum().backward()
    assert layer.kernel("x").learned_bandwidth.raw.grad is not None
