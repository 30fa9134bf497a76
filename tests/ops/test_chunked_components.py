"""Reductions with scales per component, in blocks and without gradients."""

import pytest
import torch

import kdmkit as kdm
from kdmkit.ops import log_mix
from kdmkit.ops.api import choose
from kdmkit.ops.terms import Reduction


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shape", ["(m, 1)", "one factor", "(m, d)"])
@pytest.mark.parametrize("block", [None, (7, 100)])
def test_blocks_agree_with_the_reference(
    dtype: torch.dtype, shape: str, block: tuple[int, int] | None
) -> None:
    generator = torch.Generator().manual_seed(0)
    x, c = (torch.randn(n, 3, dtype=dtype, generator=generator) + 100 for n in (150, 700))
    scales = {"(m, 1)": (700, 1), "one factor": (700, 1), "(m, d)": (700, 3)}[shape]
    sigma = 0.1 + torch.rand(scales, dtype=torch.float64, generator=generator)
    if shape == "one factor":
        sigma = sigma * torch.tensor([1.0, 5.0, 0.2], dtype=torch.float64)
    log_weights = torch.rand(700, dtype=dtype, generator=generator).log()
    log_weights[::9] = -torch.inf
    term = kdm.RBF(sigma).term(x, c)
    assert choose(Reduction([term], log_weights)).name == "chunked, scales per component"
    tolerance = 1e-9 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(
        log_mix(term, log_weights, backend="chunked", block=block),
        log_mix(term, log_weights, backend="reference"),
        rtol=tolerance,
        atol=tolerance,
    )
    nothing = torch.full_like(log_weights, -torch.inf)
    assert bool(torch.isneginf(log_mix(term, nothing)).all())


def test_gradients_take_another_way() -> None:
    x, c = torch.randn(300, 2), torch.randn(400, 2, requires_grad=True)
    term = kdm.RBF(torch.ones(400, 2)).term(x, c)
    assert choose(Reduction([term], torch.zeros(400))).name != "chunked, scales per component"
    with torch.no_grad():
        assert choose(Reduction([term], torch.zeros(400))).name == "chunked, scales per component"


@pytest.mark.parametrize("n", [20, 300])
@pytest.mark.parametrize("narrow", [1, 400])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_narrow_components_far_from_the_centre_keep_their_digits(
    n: int, narrow: int, requires_grad: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    c = torch.randn(400, 2, dtype=torch.float64, generator=generator)
    sigma = torch.ones_like(c)
    sigma[:narrow] = 1e-9
    noise = torch.randn(n, 2, dtype=torch.float64, generator=generator)
    x = (c[:1] + 1e-9 * noise).requires_grad_(requires_grad)
    log_weights = -2 * sigma[:, 0].log()
    scores = -((x.unsqueeze(1) - c) / sigma).square().sum(-1)
    expected = (scores + log_weights).logsumexp(1)
    result = log_mix(kdm.RBF(sigma).term(x, c), log_weights)
    torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-7)
    if requires_grad:
        slopes = [torch.autograd.grad(answer.sum(), x)[0] for answer in (result, expected)]
        torch.testing.assert_close(*slopes, rtol=1e-6, atol=1e-6)
