"""Averages beside a background, against sums in float64."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kdmkit.kernels import RBF
from kdmkit.ops import near_pairs, pruned
from kdmkit.ops.blocks import block_order
from kdmkit.ops.pruned import attend_beside

N, M, D = 37, 300, 5
LOG_BACKGROUND = torch.tensor(0.1, dtype=torch.float64).log()


def _problem(dtype: torch.dtype, values: int = 1) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, of which some nearly repeat components, components, log-weights and values."""
    generator = torch.Generator().manual_seed(0)
    x, c = (torch.randn(k, D, generator=generator, dtype=torch.float64) for k in (N, M))
    x[:20] = c[:20] + 0.01 * x[:20]
    log_weights, v = (torch.randn(M, k, generator=generator, dtype=torch.float64) for k in (1, values))
    return x.to(dtype), c.to(dtype), log_weights.squeeze(1).to(dtype), v.to(dtype)


def _expected(sigma: float, x: Tensor, c: Tensor, log_weights: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    x, c, log_weights, v = (tensor.double() for tensor in (x, c, log_weights, v))
    overlaps = (log_weights - (torch.cdist(x, c) / sigma).square()).exp()
    total = 0.1 + overlaps.sum(1, keepdim=True)
    return overlaps @ v / total, overlaps.sum(1, keepdim=True) / total


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("values", [1, 3])
@pytest.mark.parametrize("sigma", [2.0, 0.3, 0.02])
def test_averages_and_coverage(sigma: float, values: int, dtype: torch.dtype) -> None:
    x, c, log_weights, v = _problem(dtype, values)
    result = attend_beside(RBF(sigma).term(x, c), log_weights, v, LOG_BACKGROUND, block=(16, 64))
    accuracy = 1e-5 if dtype == torch.float32 else 1e-8
    torch.testing.assert_close(
        [part.double() for part in result],
        list(_expected(sigma, x, c, log_weights, v)),
        atol=accuracy,
        rtol=accuracy,
    )
    assert all(part.dtype == dtype for part in result)


def _assert_exact(
    sigma: float, x: Tensor, c: Tensor, log_weights: Tensor, v: Tensor, block: int = near_pairs.BLOCK
) -> None:
    result = attend_beside(RBF(sigma).term(x, c), log_weights, v, LOG_BACKGROUND, block=(1024, block))
    accuracy = 1e-5 if x.dtype == torch.float32 else 1e-8
    torch.testing.assert_close(
        [part.double() for part in result],
        list(_expected(sigma, x, c, log_weights, v)),
        atol=accuracy,
        rtol=accuracy,
        equal_nan=True,
    )


def _calls(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    """A list that grows with every call of a function."""
    calls: list[Any] = []
    function = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args: calls.append(args) or function(*args))
    return calls


def test_blocks_far_below_the_background_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = _calls(monkeypatch, near_pairs, "product_into")
    c = torch.arange(320.0).unsqueeze(1)
    mean, coverage = attend_beside(
        RBF(0.1).term(torch.tensor([[50.0]]), c), torch.zeros(320), c, torch.tensor(0.0), block=(1024, 32)
    )
    # In float32, and again in float64: most groups of this small block have a pair that counts.
    assert [left.dtype for _, left, *_ in computed] == [torch.float32, torch.float64]
    torch.testing.assert_close((mean, coverage), (torch.tensor([[25.0]]), torch.tensor([[0.5]])))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_block_is_compared_with_near_queries_only(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    computed = _calls(monkeypatch, near_pairs, "product_into")
    c = torch.arange(320, dtype=dtype).unsqueeze(1)
    x = torch.tensor([[16.0], [31.5], [150.0], [1e6]], dtype=dtype)
    _assert_exact(0.5, x, c, torch.zeros(320, dtype=dtype), c, 32)
    # The second query is near two blocks, the last one near none.
    assert [len(left) for _, left, *_ in computed if left.dtype == dtype] == [2, 1, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sigma", [0.3, 0.02])
def test_the_order_of_components_does_not_matter(
    monkeypatch: pytest.MonkeyPatch, sigma: float, dtype: torch.dtype
) -> None:
    x, c, log_weights, v = _problem(dtype)
    order = block_order(c, 32)
    computed = _calls(monkeypatch, near_pairs, "product_into")
    pairs = []
    for some in (torch.arange(M), order):
        computed.clear()
        _assert_exact(sigma, x, c[some], log_weights[some], v[some], 32)
        pairs.append(sum(len(left) * right.shape[1] for _, left, right in computed))
    # Sorted blocks are compared with fewer queries.
    assert pairs[1] < 0.8 * pairs[0]


def _clusters() -> tuple[Tensor, float]:
    """Far from each other, and as wide as a few bandwidths."""
    centres = torch.tensor([[0.0], [100.0], [300.0]])
    return (centres.unsqueeze(1) + torch.rand(128, 2)).flatten(0, 1), 0.1


def _sparse() -> tuple[Tensor, float]:
    """Few pairs are near each other."""
    return 100 * torch.rand(384, 2), 0.05


def _long(*, ordered: bool) -> tuple[Tensor, float]:
    """Hundreds of bandwidths long, and every point has many near ones."""
    c = 100 * torch.rand(384, 1)
    return c.sort(0).values if ordered else c, 1.0


@pytest.mark.parametrize(
    ("path", "points"),
    [
        ("float32", _clusters),
        ("pairs", _sparse),
        ("float64", lambda: _long(ordered=False)),
        ("float64", lambda: _long(ordered=True)),
    ],
)
def test_every_way_to_sum_a_block(
    monkeypatch: pytest.MonkeyPatch, path: str, points: Callable[[], tuple[Tensor, float]]
) -> None:
    torch.manual_seed(0)
    c, sigma = points()
    x = c[::3] + 0.3 * sigma * torch.randn(128, c.shape[1])
    ways = {"float32": "_weighted", "pairs": "_of_pairs", "float64": "_exact_scores"}
    calls = {way: _calls(monkeypatch, near_pairs._NearPairs, name) for way, name in ways.items()}
    _assert_exact(sigma, x, c, torch.randn(384), torch.randn(384, 2), 128)
    # Scores in float64 are weighted like the others.
    wanted = {"float32", "float64"} if path == "float64" else {path}
    assert {way for way, made in calls.items() if made} == wanted


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "m", "d"), [(9, 1, 3), (9, 5, 1), (0, 40, 2), (20, 70, 200), (2, 600, 26)])
def test_sizes(n: int, m: int, d: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    c = 50 + torch.randn(m, d, generator=generator, dtype=dtype)
    x = c[torch.arange(n) % m] + 0.01 * torch.randn(n, d, generator=generator, dtype=dtype)
    v = torch.randn(m, 1, generator=generator, dtype=dtype)
    _assert_exact(0.05 * math.sqrt(d), x, c, torch.zeros(m, dtype=dtype), v)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sigma", [0.3, 0.02])
def test_a_bandwidth_per_dimension(sigma: float, dtype: torch.dtype) -> None:
    x, c, log_weights, v = _problem(dtype)
    widths = torch.tensor([1.0, 2.0, 0.5, 4.0, 1.5], dtype=dtype)
    result = attend_beside(
        RBF(sigma * widths).term(x * widths, c * widths), log_weights, v, torch.tensor(0.0)
    )
    wanted = attend_beside(RBF(sigma).term(x, c), log_weights, v, torch.tensor(0.0))
    torch.testing.assert_close(result, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sigma", [0.3, 0.02])
@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_queries_that_are_not_finite_are_nan_and_others_keep_their_answers(odd: float, sigma: float) -> None:
    x, c, log_weights, v = _problem(torch.float32)
    x[3, 2] = odd
    result = attend_beside(RBF(sigma).term(x, c), log_weights, v, torch.tensor(0.1).log())
    assert all(bool(part[3].isnan()) for part in result)
    others = torch.arange(N) != 3
    wanted = [part[others] for part in _expected(sigma, x, c, log_weights, v)]
    torch.testing.assert_close([part[others].double() for part in result], wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("m", [300, 256])
def test_views(m: int) -> None:
    """Tensors with strides of their own, with and without components to fill up the last block."""
    x, c, log_weights, v = _problem(torch.float32)
    c, v = c[:m].mT.contiguous().mT, v[:m].expand(m, 3)
    log_weights = log_weights[:m].repeat_interleave(2)[::2]
    _assert_exact(0.02, x.mT.contiguous().mT, c, log_weights, v, 64)


def test_a_component_that_is_nan_is_not_left_out() -> None:
    x, c, log_weights, v = _problem(torch.float32)
    c[7] = math.nan
    result = attend_beside(RBF(0.02).term(x, c), log_weights, v, torch.tensor(0.1).log())
    assert all(bool(part.isnan().all()) for part in result)


def test_weights_beyond_the_range_of_float32_and_gradients() -> None:
    x, c, log_weights, v = _problem(torch.float64)
    expected = _expected(0.5, x, c, log_weights, v)
    shifted = attend_beside(RBF(0.5).term(x, c), log_weights + 900, v, torch.tensor(0.1).double().log() + 900)
    torch.testing.assert_close(shifted, expected)
    x.requires_grad_()
    mean, _ = attend_beside(RBF(0.5).term(x, c), log_weights, v, torch.tensor(0.1).double().log())
    reference = _expected(0.5, x, c, log_weights, v)[0]
    torch.testing.assert_close(
        torch.autograd.grad(mean.sum(), x)[0], torch.autograd.grad(reference.sum(), x)[0]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_with_and_without_squares_agree(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """Points on both sides of the limit: 2 x·c + log w is at most 64 in units of the bandwidth."""
    computed = _calls(monkeypatch, pruned, "_sums")
    x, c, log_weights, v = _problem(dtype)
    room = 64 - (log_weights - LOG_BACKGROUND).amax().item()
    limit = math.sqrt(2 * x.norm(dim=1).amax().item() * c.norm(dim=1).amax().item() / room)
    _assert_exact(1.01 * limit, x, c, log_weights, v)
    _assert_exact(0.99 * limit, x, c, log_weights, v)
    assert [components.shape[1] for components, *_ in computed] == [D, D + 2]


def test_sums_without_squares_stay_finite() -> None:
    """Queries and components at the limit of products: as far from the origin as they may be."""
    c = torch.tensor([[8.0, 0.0], [-8.0, 0.0], [0.0, 12.0], [0.0, 0.0]])
    v, x = torch.tensor([[1e3], [2e3], [3e3], [4e3]]), torch.tensor([[4.0, 0.0], [8 / 3, 0.0]])
    for rows, log_weight in ((x[1:], 0.0), (x[:1], 40.0)):
        log_weights = torch.full((4,), log_weight)
        result = attend_beside(RBF(1.0).term(rows, c), log_weights, v, torch.tensor(0.1).log())
        wanted = list(_expected(1.0, rows, c, log_weights, v))
        torch.testing.assert_close([part.double() for part in result], wanted, rtol=1e-5, atol=1e-5)
