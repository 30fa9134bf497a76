"""Sums over blocks that leave out what cannot matter: the stated bound holds, and work is saved."""

import math

import pytest
import torch

import kdmkit as kdm

M, D = 600, 2


def _per_component(generator):
    return 0.05 * (1 + 9 * torch.rand(M, D, generator=generator, dtype=torch.float64) ** 4)


KERNELS = {
    "rbf": lambda g: kdm.RBF(0.1),
    "rbf per dimension": lambda g: kdm.RBF([0.05, 0.4]),
    "rbf per component": lambda g: kdm.RBF(_per_component(g)),
    "rbf with a metric": lambda g: kdm.RBF.from_metric(torch.tensor([[9.0, 0.0], [-7.0, 12.0]])),
    "epanechnikov": lambda g: kdm.Epanechnikov(0.3),
    "tricube per component": lambda g: kdm.Tricube(4 * _per_component(g)),
}


def _mixture(kernel, seed, *, weights="heavy", dtype=torch.float64):
    """Clusters, points that repeat, outliers; weights over many orders of magnitude, some of them zero."""
    generator = torch.Generator().manual_seed(seed)
    c = torch.randn(M, D, generator=generator, dtype=torch.float64)
    c[: M // 3] *= 0.05
    c[M // 3 : M // 2] = c[0]
    c[-3:] *= 100
    log_weights = 6 * torch.randn(M, generator=generator, dtype=torch.float64)
    log_weights[M // 2 : M // 2 + 50] = -math.inf
    log_weights = torch.log_softmax(log_weights if weights == "heavy" else torch.zeros(M), 0)
    rho = kdm.KDM(c.to(dtype), None, KERNELS[kernel](generator), log_weights=log_weights.to(dtype))
    near = c[torch.randint(M, (80,), generator=generator)] + 0.1 * torch.randn(
        80, D, generator=generator, dtype=torch.float64
    )
    far = 10.0 ** torch.arange(5).repeat_interleave(8).unsqueeze(1) * torch.randn(
        40, D, generator=generator, dtype=torch.float64
    )
    return rho, torch.cat([near, far]).to(dtype)


def _exact(rho, x):
    """log p(x) in float64, from the differences of all pairs."""
    c, x = rho.components.double(), x.double()
    scores = rho.kernel.log_overlap(x.unsqueeze(1), c) + rho.kernel.log_norm(c).double()
    return torch.logsumexp(scores + rho.log_weights.double(), 1)


def _check_bound(found, exact, rtol):
    possible = torch.isfinite(exact)
    assert (found[~possible] == exact[~possible]).all()
    error = (exact - found.double())[possible]
    # Exact sums are as wrong where components are thousands of bandwidths apart.
    floor, relative = (1e-9, 1e-12) if found.dtype == torch.float64 else (2e-6, 1e-6)
    slack = floor + relative * exact[possible].abs()
    assert (error >= -slack).all()
    assert (error <= math.log1p(rtol) + slack).all()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("rtol", [0.3, 1e-6])
def test_error_is_within_the_bound(kernel, rtol):
    for seed, weights in enumerate(["heavy", "equal"]):
        rho, x = _mixture(kernel, seed, weights=weights)
        prepared = kdm.PreparedKDM(rho, block_size=8)
        _check_bound(prepared.log_prob(x, rtol=rtol), _exact(rho, x), rtol)
        torch.testing.assert_close(prepared.log_prob(x), rho.log_prob(x))


@pytest.mark.parametrize("kernel", ["rbf", "rbf per component", "epanechnikov"])
def test_error_is_within_the_bound_in_float32(kernel):
    rho, x = _mixture(kernel, 0, dtype=torch.float32)
    found = kdm.PreparedKDM(rho, block_size=16).log_prob(x, rtol=1e-2)
    assert found.dtype == torch.float32
    _check_bound(found, _exact(rho, x), 1e-2)


def _count_pairs(prepared, x, rtol):
    pairs, term = [], prepared._sum.term

    def counted(query, index):
        pairs.append(len(query) * len(prepared.kdm.components[index]))
        return term(query, index)

    object.__setattr__(prepared._sum, "term", counted)
    prepared.log_prob(x, rtol=rtol)
    return sum(pairs)


def test_few_pairs_are_computed():
    generator = torch.Generator().manual_seed(0)
    c, x = torch.randn(20_000, 2, generator=generator), torch.randn(500, 2, generator=generator)
    prepared = kdm.PreparedKDM(kdm.KDM.from_samples(c, kdm.RBF(0.05)), block_size=64)
    assert _count_pairs(prepared, x, 1e-3) < 0.1 * len(c) * len(x)


def test_queries_to_which_all_components_matter_are_exact():
    rho, x = _mixture("rbf", 0)
    rho = rho.with_kernel(kdm.RBF(1e3))
    torch.testing.assert_close(kdm.PreparedKDM(rho).log_prob(x, rtol=1e-3), rho.log_prob(x))


def test_memory_is_that_of_the_components():
    c = torch.randn(20_000, 2)
    for weights in (None, torch.softmax(torch.randn(len(c)), 0)):
        prepared = kdm.PreparedKDM(kdm.KDM(c, weights, kdm.RBF(0.1)))
        boxes = prepared._sum.bounds.__self__
        tensors = [prepared.kdm.components, prepared.kdm.log_weights, prepared._sum.totals]
        bytes_ = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in (*tensors, boxes.low)}
        total = sum(bytes_.values()) + boxes.high.nbytes
        given = c.nbytes if weights is None else c.nbytes + weights.nbytes
        assert total <= 1.1 * given


def test_leading_dimensions_and_no_queries():
    rho, x = _mixture("rbf", 1)
    prepared = kdm.PreparedKDM(rho, block_size=8)
    assert prepared.log_prob(x.view(4, -1, D), rtol=0.1).shape == (4, len(x) // 4)
    assert prepared.log_prob(x[:0], rtol=0.1).shape == (0,)
    assert prepared.log_prob(x[0], rtol=0.1).shape == ()


def test_bad_arguments():
    rho, x = _mixture("rbf", 0)
    prepared = kdm.PreparedKDM(rho)
    with pytest.raises(ValueError, match="rtol: expected None, or a number between 0 and 1, got 0"):
        prepared.log_prob(x, rtol=0)
    with pytest.raises(ValueError, match="rtol: expected None where gradients are wanted"):
        prepared.log_prob(x.clone().requires_grad_(), rtol=0.1)
    with pytest.raises(TypeError, match=r"kdm: expected a KDM with a continuous kernel \(RBF, "):
        kdm.PreparedKDM(kdm.KDM(torch.eye(3), None, kdm.Cosine()))
    with pytest.raises(ValueError, match="kdm: expected a KDM without a batch"):
        kdm.PreparedKDM(rho.expand((2,)))
