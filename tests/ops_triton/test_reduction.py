"""Values and gradients of the Triton backend against the reference in float64."""

import pytest
import torch
from torch import Tensor

from kdmkit.ops import SquaredDistance, attend, log_mix
from kdmkit.ops.triton import staging
from ops.cases import Case, Draw, evaluate, make_case

# Relative to the largest entry of an output or gradient.
TOLERANCE = {"highest": 5e-6, "high": 3e-3, "medium": 3e-3}


def difference(got: Tensor, wanted: Tensor) -> float:
    """The largest deviation over the largest number; infinities have to be the same."""
    infinite = torch.isinf(wanted)
    assert got.shape == wanted.shape
    assert torch.equal(got[infinite].double(), wanted[infinite])
    got, wanted = got.double()[~infinite], wanted[~infinite]
    return (
        ((got - wanted).abs().max() / wanted.abs().max().clamp_min(1e-30)).item() if wanted.numel() else 0.0
    )


def check(case: Case, tolerance: float = TOLERANCE["highest"]) -> None:
    got = evaluate(case, "triton")
    wanted = evaluate(case.to(torch.float64), "reference")
    tolerance = max(tolerance, rounding(case))
    for mine, reference in zip(got, wanted, strict=True):
        for a, b in zip(mine, reference, strict=True):
            assert difference(a, b) <= tolerance


def rounding(case: Case) -> float:
    """A unit in the last place of the largest score: BLAS chooses the order of sums, so scores differ."""
    largest = max(term.exact().abs().max().item() for term in case.terms)
    return torch.finfo(torch.float32).eps * largest


def draw(n: int, m: int, d: int, *, lead: tuple[int, ...] = (), seed: int = 0) -> Draw:
    generator = torch.Generator().manual_seed(seed)
    return Draw(n=n, m=m, d=d, lead=lead, dtype=torch.float32, generator=generator)


def make(name: str, n: int, m: int, d: int, v: int, *, dead: float = 0.0) -> Case:
    """A case whose distances are of the order of one bandwidth."""
    case = make_case(name, draw(n, m, d), dead=dead, v=v)
    log_weights, values, query, components, scale = case.tensors
    return case.with_tensors([log_weights, values, query, components, scale / d**0.5])


# Differences up to 16 dimensions and 16 values, products of halves for more.
CASES = [
    ("squared-scalar", 1, 1, 1, 1),
    ("squared-ard", 5, 1, 3, 2),
    ("squared-metric", 33, 70, 2, 16),
    ("squared-metric", 1, 1, 20, 1),
    ("squared-scalar", 1, 130, 17, 3),
    ("squared-ard", 20, 40, 16, 17),
    ("squared-ard", 129, 64, 24, 5),
    ("squared-metric", 30, 129, 40, 1),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees_with_the_reference(case: tuple[str, int, int, int, int]) -> None:
    check(make(*case, dead=0.2))


def test_precisions(precision: str) -> None:
    """Only products are rounded to TF32; sums over few dimensions have none."""
    check(make("squared-ard", 20, 50, 20, 4), TOLERANCE[precision])


@pytest.mark.parametrize(
    "shape",
    [
        (10, 20, 20, 128),
        *(pytest.param(shape, marks=pytest.mark.slow) for shape in ((10, 20, 200, 2), (10, 20, 100, 100))),
    ],
    ids=str,
)
def test_many_dimensions_or_values(shape: tuple[int, int, int, int]) -> None:
    check(make("squared-scalar", *shape))


@pytest.mark.parametrize(("d", "v"), [(1, 1), pytest.param(20, 3, marks=pytest.mark.slow)])
def test_splits_segments_and_blocks(d: int, v: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Components in several segments and splits, points in several blocks and calls."""
    monkeypatch.setattr(staging, "SEGMENT_BYTES", 0)
    monkeypatch.setattr(staging, "POINT_BYTES", 0)
    config = staging.Config(64, 32, 4, 1)
    for kernel in ("forward", "points", "components"):
        monkeypatch.setitem(staging.OVERRIDES, kernel, config)  # type: ignore[misc]
    check(make("squared-ard", 80, 100, d, v, dead=0.2))


@pytest.mark.parametrize("d", [3, 20])
def test_all_scores_are_minus_infinity(d: int) -> None:
    case = make("squared-ard", 4, 6, d, 2, dead=1.0)
    outputs, gradients = evaluate_finite(case)
    assert torch.equal(outputs[1], torch.full((4,), -torch.inf))
    assert not outputs[0].any()
    assert not any(gradient.any() for gradient in gradients)


def evaluate_finite(case: Case) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Like `evaluate`, with an upstream gradient that is finite where logsumexps are not."""
    leaves = [t.detach().requires_grad_() for t in case.tensors]
    outputs = case.with_tensors(leaves).attend("triton")
    return outputs, torch.autograd.grad(outputs, leaves, [torch.ones_like(o) for o in outputs])


@pytest.mark.parametrize(
    ("dtype", "d"),
    [
        (torch.bfloat16, 2),
        (torch.float16, 20),
        pytest.param(torch.bfloat16, 20, marks=pytest.mark.slow),
        pytest.param(torch.float16, 2, marks=pytest.mark.slow),
    ],
)
def test_half_precision_inputs(dtype: torch.dtype, d: int) -> None:
    case = make("squared-ard", 12, 30, d, 3).to(dtype)
    outputs, gradients = evaluate(case, "triton")
    wanted, wanted_gradients = evaluate(case.to(torch.float64), "reference")
    assert all(output.dtype == torch.float32 for output in outputs)
    assert all(difference(a, b) <= 1e-5 for a, b in zip(outputs, wanted, strict=True))
    for gradient, reference in zip(gradients, wanted_gradients, strict=True):
        assert gradient.dtype == dtype
        # Upstream gradients are float32 here and float64 there; results are rounded to the inputs' dtype.
        assert difference(gradient, reference) <= 2 * torch.finfo(dtype).eps


@pytest.mark.parametrize("d", [2, 20])
def test_strided_inputs(d: int) -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(d, 14, generator=generator).T
    components = torch.randn(d, 40, generator=generator).T[::2]
    values = torch.randn(20, 6, generator=generator)[:, ::2]
    log_weights = torch.zeros(1).expand(20)
    scale = torch.full((1, 1), 0.3).expand(1, d)
    check(Case((SquaredDistance(query, components, scale),), log_weights, values))


@pytest.mark.parametrize("d", [2, 20])
def test_leading_dimensions_of_queries(d: int) -> None:
    case = make("squared-ard", 12, 9, d, 2)
    log_weights, values, query, components, scale = case.tensors
    tensors = [log_weights.view(1, 1, -1), values, query.view(2, 2, 3, d), components, scale]
    check(case.with_tensors(tensors))


@pytest.mark.parametrize("d", [2, 20])
def test_no_queries(d: int) -> None:
    case = make("squared-ard", 0, 5, d, 3)
    outputs, gradients = evaluate_finite(case)
    assert [tuple(output.shape) for output in outputs] == [(0, 3), (0,)]
    assert [g.shape for g in gradients] == [t.shape for t in case.tensors]
    assert not any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("d", [2, 40])
def test_offset_data(d: int) -> None:
    case = make("squared-ard", 20, 60, d, 3)
    log_weights, values, query, components, scale = case.tensors
    check(case.with_tensors([log_weights, values, query + 1e3, components + 1e3, scale]), 1e-5)


@pytest.mark.parametrize("size", [1e-12, 1e12])
@pytest.mark.parametrize("d", [pytest.param(3, marks=pytest.mark.slow), 20])
def test_scales_of_numbers(size: float, d: int) -> None:
    """Half precision ends at 65504 and 6e-8; powers of two keep everything within."""
    case = make("squared-ard", 20, 60, d, 3)
    log_weights, values, query, components, scale = case.tensors
    check(case.with_tensors([log_weights, values * size, query * size, components * size, scale / size]))


def test_an_outlier_changes_no_other_result() -> None:
    case = make("squared-scalar", 20, 60, 20, 3)
    log_weights, _, query, components, scale = case.tensors
    components[7] = 1e5
    term = SquaredDistance(query, components, scale)
    wanted = log_mix(term, log_weights, backend="reference")
    torch.testing.assert_close(log_mix(term, log_weights, backend="triton"), wanted, rtol=1e-5, atol=1e-5)


def test_far_from_everything() -> None:
    """Logsumexps of −10⁵ with the right gradient."""
    query = torch.full((1, 20), 100.0, requires_grad=True)
    components = torch.randn(30, 20, generator=torch.Generator().manual_seed(0))
    results = []
    for backend in ("triton", "reference"):
        dtype = torch.float64 if backend == "reference" else torch.float32
        x, c = query.to(dtype), components.to(dtype)
        lse = log_mix(SquaredDistance(x, c, torch.ones(1, 1, dtype=dtype)), c.new_zeros(30), backend=backend)
        results.append((lse.detach(), torch.autograd.grad(lse.sum(), query)[0]))
    assert results[0][0] == pytest.approx(results[1][0].item(), rel=1e-6)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-4, atol=1e-3)


def test_gradients_only_where_needed() -> None:
    case = make("squared-ard", 12, 30, 20, 3)
    for i, tensor in enumerate(case.tensors):
        tensors = [t.detach() for t in case.tensors]
        tensors[i] = tensor.detach().requires_grad_()
        averages, lse = case.with_tensors(tensors).attend("triton")
        (gradient,) = torch.autograd.grad(averages.sum() + lse.sin().sum(), tensors[i])
        all_tensors = [t.detach().requires_grad_() for t in case.tensors]
        averages, lse = case.with_tensors(all_tensors).attend("triton")
        together = torch.autograd.grad(averages.sum() + lse.sin().sum(), all_tensors)
        torch.testing.assert_close(gradient, together[i])


def test_vmap() -> None:
    case = make("squared-ard", 6, 10, 20, 3)
    log_weights, values, query, components, scale = case.tensors

    def total(x: Tensor, c: Tensor) -> Tensor:
        averages, lse = attend(SquaredDistance(x, c, scale), log_weights, values, backend="triton")
        return averages.sum() + lse.sum()

    both = torch.func.grad(total, argnums=(0, 1))
    batches = query.view(3, 2, 20)
    got = torch.func.vmap(both, in_dims=(0, None))(batches, components)
    for b in range(3):
        torch.testing.assert_close(tuple(g[b] for g in got), both(batches[b], components))


def test_second_derivatives_are_refused() -> None:
    case = make("squared-ard", 3, 4, 20, 1)
    query = case.tensors[2].requires_grad_()
    (gradient,) = torch.autograd.grad(case.log_mix("triton").sum(), query, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivatives"):
        gradient.sum().backward()
