"""Components with a covariance of their own, against dense Gaussians."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

import kdmkit as kdm
from helpers import close, normal, real, seeded, simplex
from kdmkit.kernels import Continuous
from kdmkit.ops import log_mix
from kdmkit.ops.terms import LowRankDistance

CASES = 200


def random_case(seed: int) -> tuple[kdm.KDM, Tensor, Tensor]:
    """A KDM of random sizes, its covariances `(m, d, d)`, and points."""
    generator = seeded(seed)
    m, d, r = (int(torch.randint(1, most, (), generator=generator)) for most in (6, 7, 5))
    d += 1
    shape = [(), (d,), (m, 1), (m, d)][seed % 4]
    sigma = 0.3 + torch.rand(shape, dtype=torch.float64, generator=generator)
    factors = normal(*((m, d, r) if seed % 3 else (d, r)), seed=seed)
    kernel = kdm.LowRank(sigma, factors)
    c = 2 * normal(m, d, seed=seed + 1)
    full = torch.diag_embed(sigma.square().expand(m, d)) + factors @ factors.mT
    return kdm.KDM(c, simplex(m, seed=seed + 2), kernel), 0.5 * full, 3 * normal(5, d, seed=seed + 3)


def log_density(rho: kdm.KDM, covariance: Tensor, x: Tensor, places: list[int]) -> Tensor:
    """The density of some coordinates, from dense covariances."""
    part = covariance[:, places][:, :, places]
    gaussian = MultivariateNormal(rho.components[:, places], part)
    return torch.logsumexp(gaussian.log_prob(x[:, places].unsqueeze(1)) + rho.log_weights, -1)


@pytest.mark.parametrize("seed", range(CASES))
def test_against_dense_gaussians(seed: int) -> None:
    rho, covariance, x = random_case(seed)
    d = x.shape[1]
    every = list(range(d))
    given = [int(i) for i in torch.randperm(d, generator=seeded(seed))[: 1 + seed % (d - 1)]]
    rest = [i for i in every if i not in given]
    tolerance = {"rtol": 1e-10, "atol": 1e-10}
    wanted = log_density(rho, covariance, x, every)
    close(rho.log_prob(x), wanted, **tolerance)
    marginal = log_density(rho, covariance, x, given)
    close(rho.coordinates(given).log_prob(x[:, given]), marginal, **tolerance)
    conditional = rho.conditional(given, x[:, given])
    close(conditional.log_prob(x[:, rest]), wanted - marginal, **tolerance)
    # Components without a shared mean, and moments of what is given.
    mixed = torch.einsum("m,mi->i", rho.weights, rho.components)
    second = torch.einsum("m,mij->ij", rho.weights, covariance)
    between = rho.components - mixed
    second = second + torch.einsum("m,mi,mj->ij", rho.weights, between, between)
    close(rho.mean, mixed, **tolerance)
    close(rho.variance, second.diagonal(), **tolerance)
    # The mass of an interval of one coordinate, which is normal.
    low, high = torch.full((d,), -torch.inf).double(), torch.full((d,), torch.inf).double()
    low[given[0]], high[given[0]] = -0.5, 1.5
    at, std = rho.components[:, given[0]], covariance[:, given[0], given[0]].sqrt()
    ends = [torch.special.ndtr((end - at) / std) for end in (-0.5, 1.5)]
    close(rho.log_mass(kdm.Interval(low, high)).exp(), rho.weights @ (ends[1] - ends[0]), **tolerance)
    # Single precision has the same answers.
    single = kdm.KDM(rho.components.float(), rho.weights.float(), rho.kernel)
    error = (
        single.log_prob(x.float()).double() - log_density(rho, covariance, x.float().double(), every)
    ).abs()
    assert float((error / (1 + wanted.abs())).max()) < 1e-4


@pytest.mark.parametrize("seed", range(0, CASES, 10))
def test_gradients_are_those_of_dense_gaussians(seed: int) -> None:
    rho, _, x = random_case(seed)
    kernel = rho.kernel
    m, d = rho.components.shape
    sigma = kernel.sigma.detach().clone().requires_grad_()
    factors = kernel.factors.detach().clone().requires_grad_()
    c, x = rho.components.clone().requires_grad_(), x.requires_grad_()
    got = kdm.KDM(c, rho.weights, kdm.LowRank(sigma, factors))
    covariance = 0.5 * (torch.diag_embed(sigma.square().expand(m, d)) + factors @ factors.mT)
    gaussian = MultivariateNormal(c, covariance.expand(m, d, d))
    wanted = torch.logsumexp(gaussian.log_prob(x.unsqueeze(1)) + rho.log_weights, -1)
    leaves = (x, c, sigma, factors)
    pairs = [torch.autograd.grad(each.sum(), leaves) for each in (got.log_prob(x), wanted)]
    for first, second in zip(*pairs, strict=True):
        close(first, second, rtol=1e-8, atol=1e-9)


def test_scores_have_second_derivatives() -> None:
    tensors = [
        normal(*shape, seed=i).requires_grad_() for i, shape in enumerate([(3, 2), (4, 2), (4, 2), (4, 4)])
    ]
    assert torch.autograd.gradgradcheck(lambda *parts: LowRankDistance(*parts).matrix(), tensors)


def test_blocks_and_the_oracle_agree() -> None:
    rho, _, x = random_case(7)
    term = rho.kernel.term(x, rho.components)
    wanted = log_mix(term, rho.log_weights, backend="reference")
    for block in ((2, 1), (1, 2)):
        close(log_mix(term, rho.log_weights, backend="chunked", block=block), wanted)


def boxed(d: int, ends: dict[int, tuple[float, float]]) -> kdm.Interval:
    low, high = (torch.full((d,), sign * torch.inf, dtype=torch.float64) for sign in (-1, 1))
    for place, (first, last) in ends.items():
        low[place], high[place] = first, last
    return kdm.Interval(low, high)


@pytest.mark.parametrize("spread", [0.5, 2.0, 20.0])
@pytest.mark.parametrize("places", [[0, 2], [0, 1, 3]])
def test_masses_of_boxes_are_integrals_of_the_density(places: list[int], spread: float) -> None:
    kernel = kdm.LowRank(0.6, spread * normal(3, 4, 2, seed=1) / 2)
    rho = kdm.KDM(normal(3, 4, seed=0), None, kernel)
    ends = {place: (-0.5 - place / 3, 1.0 + place / 2) for place in places}
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(36))
    axes = [0.5 * (high - low) * nodes + 0.5 * (high + low) for low, high in ends.values()]
    sizes = [0.5 * (high - low) * weights for low, high in ends.values()]
    points, volume = torch.cartesian_prod(*axes), torch.cartesian_prod(*sizes).prod(-1)
    wanted = rho.coordinates(places).log_prob(points).exp() @ volume
    close(rho.log_mass(boxed(4, ends)).exp(), wanted, rtol=0, atol=1e-6)


def test_masses_of_a_partition_sum_to_one() -> None:
    rho = kdm.KDM(normal(4, 3, seed=0), None, kdm.LowRank(0.4, 2 * normal(4, 3, 2, seed=1)))
    cuts = [(-math.inf, -0.3), (-0.3, 0.9), (0.9, math.inf)]
    masses = rho.log_mass([boxed(3, {0: first, 2: last}) for first in cuts for last in cuts])
    assert masses.exp().sum().item() == pytest.approx(1, abs=1e-6)


def test_far_boxes_keep_their_digits() -> None:
    """Perfectly correlated but for a little: P(x > 12, y > 12) is nearly P(x > 12)."""
    rho = kdm.KDM(torch.zeros(1, 2).double(), None, kdm.LowRank.from_std(0.01, real([[1.0], [1.0]])))
    got = rho.log_mass(boxed(2, {0: (12, math.inf), 1: (12, math.inf)}))
    one = rho.coordinates(0).log_mass(kdm.Interval(12, math.inf))
    assert -0.2 < (got - one).item() < 0


def test_gradients_of_masses() -> None:
    factors = normal(2, 3, 1, seed=1).requires_grad_()
    sigma = torch.full((2, 3), 0.7, dtype=torch.float64, requires_grad=True)
    centre = normal(2, 3, seed=2).requires_grad_()
    region = boxed(3, {0: (-1, 1), 1: (0, 2)})

    def mass(sigma: Tensor, factors: Tensor, centre: Tensor) -> Tensor:
        return kdm.KDM(centre, None, kdm.LowRank(sigma, factors)).log_mass(region)

    assert torch.autograd.gradcheck(mass, (sigma, factors, centre), atol=1e-5)


def test_boxes_with_too_many_nodes_are_refused() -> None:
    rho = kdm.KDM(torch.zeros(1, 8).double(), None, kdm.LowRank(0.1, normal(8, 6, seed=0)))
    with pytest.raises(ValueError, match="region: expected a box whose quadrature needs at most"):
        rho.log_mass(kdm.Interval(torch.zeros(8), torch.ones(8)))


@pytest.mark.parametrize("given", ["rbf", "metric", "tricube", "low rank"])
def test_conditionals_are_ratios_of_densities(given: str) -> None:
    kernels: dict[str, Continuous] = {
        "rbf": kdm.RBF(0.5 + simplex(4, 3, seed=1)),
        "metric": kdm.RBF.from_metric(real([[2.0, 0, 0], [-1.5, 1.2, 0], [0.4, 0.8, 1.5]])),
        "tricube": kdm.Tricube([4.0, 5.0, 6.0]),
        "low rank": kdm.LowRank(0.5, normal(4, 3, 1, seed=2)),
    }
    rho = kdm.KDM(normal(4, 3, seed=3), simplex(2, 4, seed=4), kernels[given])
    x = normal(2, 3, seed=5)
    got = rho.conditional([2, 0], x[:, [2, 0]])
    assert got.batch_shape == (2,)
    assert got.event_shape == (1,)
    wanted = rho.log_prob(x) - rho.coordinates([2, 0]).log_prob(x[:, [2, 0]])
    close(got.log_prob(x[:, [1]]), wanted)
    with pytest.raises(ValueError, match="index: expected fewer coordinates than all"):
        rho.conditional([0, 1, 2], x)


def test_draws_have_the_covariance() -> None:
    covariance = real([[1.0, 0.9, 0.3], [0.9, 2.0, -0.4], [0.3, -0.4, 0.5]])
    kernel = kdm.LowRank.from_covariance(covariance)
    close(kernel.covariance, covariance)
    drawn = kdm.KDM(torch.zeros(1, 3).double(), None, kernel).sample((40_000,), generator=seeded(0))
    torch.testing.assert_close(drawn.mT.cov(), covariance, atol=0.05, rtol=0)
    one = kdm.LowRank.from_covariance(covariance, rank=1)
    close(one.covariance.diagonal(), covariance.diagonal())
    assert one.rank == 1


def test_mixtures_join_ranks() -> None:
    first = kdm.KDM(normal(2, 3, seed=0), None, kdm.LowRank(0.5, normal(2, 3, 2, seed=1)))
    second = kdm.KDM(normal(3, 3, seed=2), None, kdm.LowRank([0.5, 0.6, 0.7], normal(3, 1, seed=3)))
    both, x = kdm.mix([first, second], real([0.3, 0.7])), normal(5, 3, seed=4)
    wanted = torch.logaddexp(first.log_prob(x) + math.log(0.3), second.log_prob(x) + math.log(0.7))
    close(both.log_prob(x), wanted)


@pytest.mark.parametrize("kernel", [kdm.RBF(0.7), kdm.RBF.from_metric(real([[2.0, 0.0], [-1.5, 1.2]]))])
def test_mixtures_of_rbf_and_leaning_components(kernel: kdm.RBF) -> None:
    parts = (
        kdm.KDM(normal(2, 2, seed=0), None, kernel),
        kdm.KDM(normal(3, 2, seed=1), None, kdm.LowRank(1, [[1], [2]])),
    )
    x = normal(5, 2, seed=4)
    wanted = torch.logaddexp(*[part.log_prob(x) for part in parts]) - math.log(2)
    for order in (parts, parts[::-1]):
        close(kdm.mix(order).log_prob(x), wanted)


def test_a_layer_learns_the_direction() -> None:
    x = normal(400, 2, seed=0, dtype=torch.float32) @ torch.tensor([[1.0, 0.98], [0.0, 0.2]])
    kernel = kdm.LowRank(torch.ones(1, 2), torch.zeros(1, 2, 1))
    layer = kdm.nn.DensityLayer(2, 1, kernel=kernel, generator=seeded(0))
    layer.initialize(x, generator=seeded(0))
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    for _ in range(300):
        optimizer.zero_grad()
        (-layer().log_prob(x).mean()).backward()
        optimizer.step()
    torch.testing.assert_close(layer.kernel("x").covariance[0], x.mT.cov(), atol=0.05, rtol=0)


@pytest.mark.parametrize("m", [3, 600])
def test_saved_and_loaded(m: int, tmp_path: Path) -> None:
    kernel = kdm.LowRank(0.5 + normal(m, 3, seed=1).square(), normal(m, 3, 2, seed=2))
    rho, x = kdm.KDM(normal(m, 3, seed=0), None, kernel), normal(5, 3, seed=3)
    kdm.save(rho, tmp_path / "rho")
    close(kdm.load(tmp_path / "rho").log_prob(x), rho.log_prob(x))


@pytest.mark.parametrize(
    ("sigma", "factors", "message"),
    [
        (1.0, [1.0, 2.0], r"factors: expected shape \(d, r\) or \(m, d, r\)"),
        ([1.0, 2.0], [[1.0], [1.0], [1.0]], "factors: expected one that fits sigma"),
        ([[1.0], [2.0]], [[[1.0], [1.0]]], "factors: expected one that fits sigma"),
        (1.0, [[math.nan]], "factors: expected finite"),
    ],
)
def test_factors_that_do_not_fit(sigma: object, factors: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kdm.LowRank(sigma, factors)


def test_events_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match="factors: expected shape"):
        kdm.KDM(torch.zeros(1, 3), None, kdm.LowRank(1.0, [[1.0], [1.0]]))
