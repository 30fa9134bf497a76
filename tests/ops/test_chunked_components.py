"""Reductions with scales per component, in blocks and without gradients."""

import pytest
import torch

import kdmkit as kdm
from kdmkit.ops import log_mix
from kdmkit.ops.implementations import choose
from kdmkit.ops.reduction import Reduction


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
