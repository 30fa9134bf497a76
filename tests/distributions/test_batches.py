"""Batch semantics: every arrangement of batched weights, components and values equals an explicit loop."""

import itertools

import pytest
import torch

import kdmkit as kdm
from bounds import rounding
from helpers import close, normal, real, simplex

M = 5
SCALES = real([[0.6, 0.9], [0.7, 1.1], [1.3, 0.8], [0.5, 0.5], [1.0, 2.0]])
KERNELS = {
    "rbf": lambda: kdm.RBF(0.8),
    "ard": lambda: kdm.RBF([0.8, 1.3]),
    "metric": lambda: kdm.RBF.from_metric(real([[1.5, 0.0], [-0.8, 0.9]])),
    "per-component": lambda: kdm.RBF(SCALES),
    "epanechnikov": lambda: kdm.Epanechnikov([2.0, 3.0]),
    "cosine": lambda: kdm.Cosine(),
    "labels": lambda: kdm.Cosine(),
    "categorical": lambda: kdm.Categorical(4, smoothing=0.2),
}
# Batch of the weights, batch of the components, leading dimensions of the values.
ARRANGEMENTS = [
    ((), (), ()),
    ((), (), (7,)),
    ((), (), (2, 3, 4)),
    ((3,), (), ()),
    ((3,), (), (3,)),
    ((3,), (), (7, 3)),
    ((3,), (), (7, 1)),
    ((), (3,), (7, 3)),
    ((3,), (3,), (5, 1)),
    ((2, 3), (), (4, 2, 3)),
    ((2, 3), (), (3,)),
    ((2, 3), (3,), ()),
    ((2, 1), (3,), (2, 3)),
    ((3, 1), (1, 4), (5, 1, 1)),
    ((1,), (), (5,)),
    ((), (1,), (5,)),
    ((2, 1), (), (2, 4)),
    ((), (2, 1), (6, 2, 4)),
    ((1, 3), (2, 1), (2, 3)),
    ((3,), (), (0, 3)),
]


def _events(kernel, *shape, seed):
    if kernel == "categorical":
        return torch.randint(4, shape, generator=torch.Generator().manual_seed(seed))
    return normal(*shape, 2, seed=seed)


def _values(kernel, *shape, seed):
    if kernel == "labels":
        return torch.randint(2, shape, generator=torch.Generator().manual_seed(seed))
    return _events(kernel, *shape, seed=seed)


def _each(shape):
    return itertools.product(*(range(size) for size in shape))


def agree(batched: torch.Tensor, single: torch.Tensor) -> None:
    """Equal but for rounding: sums over M components, in another order for a batch, on both sides."""
    error = 2 * rounding(M + 4, single.dtype)
    close(batched, single, rtol=max(1e-9, error), atol=max(1e-11, error))


@pytest.mark.parametrize("arrangement", ARRANGEMENTS, ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
def test_densities_equal_a_loop(kernel, arrangement):
    of_weights, of_components, lead = arrangement
    k = KERNELS[kernel]()
    weights = simplex(*of_weights, M, seed=0)
    components = _events(kernel, *of_components, M, seed=1)
    value = _values(kernel, *lead, seed=2)
    rho = kdm.KDM(components, weights, k)
    batch = torch.broadcast_shapes(of_weights, of_components)
    full = torch.broadcast_shapes(batch, lead)
    assert rho.batch_shape == batch

    event = components.shape[len(of_components) + 1 :]
    weights = weights.expand(*full, M)
    components = components.expand(*full, M, *event)
    value = value.expand((*full, *value.shape[len(lead) :]))
    density, projection = rho.log_prob(_values(kernel, *lead, seed=2)), rho.log_projection(value)
    assert density.shape == projection.shape == full
    for i in _each(full):
        one = kdm.KDM(components[i], weights[i], k)
        agree(density[i], one.log_prob(value[i]))
        agree(projection[i], one.log_projection(value[i]))


@pytest.mark.parametrize("arrangement", ARRANGEMENTS[:-1:2], ids=str)
@pytest.mark.parametrize(
    "kernel", ["ard", "metric", "per-component", "epanechnikov", "cosine", "categorical"]
)
def test_summaries_equal_a_loop(kernel, arrangement):
    of_weights, of_components, _ = arrangement
    k = KERNELS[kernel]()
    weights, components = simplex(*of_weights, M, seed=0), _events(kernel, *of_components, M, seed=1)
    rho = kdm.KDM(components, weights, k)
    batch = rho.batch_shape
    event = rho.event_shape
    weights, components = weights.expand(*batch, M), components.expand(*batch, M, *event)
    for i in _each(batch):
        one = kdm.KDM(components[i], weights[i], k)
        if k.discrete:
            agree(rho.probs[i], one.probs)
        else:
            close(rho.mean[i], one.mean)
            close(rho.variance[i], one.variance)
        if not k.per_component:
            close(rho.purity()[i], one.purity())
    assert (rho.probs if k.discrete else rho.mean).shape[:-1] == batch
    assert rho.sample((2, 6)).shape == (2, 6, *batch, *event)


@pytest.mark.parametrize(
    ("one", "other"), [((), (3,)), ((3,), ()), ((2, 1), (3,)), ((3,), (2, 1)), ((1,), (4,)), ((4,), (4,))]
)
@pytest.mark.parametrize("batched", ["weights", "components"])
def test_overlaps_equal_a_loop(one, other, batched):
    def made(batch, seed):
        in_weights = batch if batched == "weights" else ()
        in_components = batch if batched == "components" else ()
        components = normal(*in_components, M, 2, seed=seed)
        return kdm.KDM(components, simplex(*in_weights, M, seed=seed + 1), kdm.RBF(0.8))

    rho, sigma = made(one, 0), made(other, 10)
    result = rho.overlap(sigma)
    full = torch.broadcast_shapes(one, other)
    assert result.shape == full
    r, s = rho.expand(full), sigma.expand(full)
    for i in _each(full):
        p, q = r.weights[i], s.weights[i]
        c, d = r.components.expand(*full, M, 2)[i], s.components.expand(*full, M, 2)[i]
        k2 = (-(c[:, None] - d).square().sum(-1) / 0.8**2).exp()
        close(result[i], p @ k2 @ q)


def test_a_component_of_weight_zero_is_no_component():
    components, weights = normal(6, 2, seed=0), simplex(4, seed=1)
    padded = real([0.0, 0.0])
    padded = torch.cat([padded[:1], weights[:2], padded[1:], weights[2:]])
    used = padded > 0
    x = normal(50, 2, seed=2)
    for kernel in (kdm.RBF(0.5), kdm.Epanechnikov(2.0)):
        rho = kdm.KDM(components, padded, kernel)
        without = kdm.KDM(components[used], weights, kernel)
        close(rho.log_prob(x), without.log_prob(x))
        close(rho.mean, without.mean)
        close(rho.variance, without.variance)
        close(rho.purity(), without.purity())


def test_a_component_of_weight_zero_takes_no_gradient():
    components = normal(3, 2, seed=0).requires_grad_()
    weights = real([0.5, 0.0, 0.5]).requires_grad_()
    rho = kdm.KDM(components, weights, kdm.RBF(0.5))
    rho.log_prob(normal(4, 2, seed=1)).sum().backward()
    assert torch.isfinite(components.grad).all()
    assert torch.isfinite(weights.grad).all()
    assert (components.grad[1] == 0).all()
    assert (components.grad[0] != 0).all()


def test_ragged_bags_can_be_padded():
    bags = [normal(n, 2, seed=n) for n in (1, 3, 4)]
    components = torch.zeros(3, 4, 2, dtype=torch.float64)
    weights = torch.zeros(3, 4, dtype=torch.float64)
    for i, bag in enumerate(bags):
        components[i, : len(bag)], weights[i, : len(bag)] = bag, 1 / len(bag)
    x = normal(10, 1, 2, seed=7)
    rho = kdm.KDM(components, weights, kdm.RBF(0.5))
    wanted = [kdm.KDM.from_samples(bag, kdm.RBF(0.5)).log_prob(x[:, 0]) for bag in bags]
    close(rho.log_prob(x), torch.stack(wanted, -1))
