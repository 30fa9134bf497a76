"""Float32 agrees with a float64 oracle; nothing is computed in half precision."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kdmkit._core.tensors import compute_dtype
from kdmkit.ops import ComponentDistance, Score, SquaredDistance, Term, attend, log_mix
from kdmkit.ops.terms import distance
from ops.cases import BACKENDS, TERMS, Case, Draw, bump, evaluate, make_case

HALVES = (torch.bfloat16, torch.float16)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def one_hot(m: int, classes: int = 5) -> Tensor:
    return torch.nn.functional.one_hot(torch.arange(m) % classes, classes).float()


def case_of(term: Term, m: int) -> Case:
    """Class probabilities under uniform weights."""
    return Case((term,), torch.full((m,), -math.log(m)), one_hot(m))


def isotropic(x: Tensor, c: Tensor, sigma: float) -> Case:
    return case_of(SquaredDistance(x, c, torch.full((1, 1), 1 / sigma)), len(c))


def clusters(d: int, spread: float = 30.0) -> tuple[Tensor, Tensor]:
    """Ten groups of points, `spread` apart in every dimension: near their own kind, far from any centre."""
    centres = spread * normal(10, d, seed=1)
    return centres.repeat(20, 1) + normal(200, d, seed=2), centres.repeat(8, 1) + normal(80, d, seed=3)


def metric(d: int) -> Case:
    x, c = clusters(d)
    factor = torch.eye(d) + 0.3 * normal(d, d, seed=4).tril(-1) / math.sqrt(d)
    return case_of(SquaredDistance(x, c, factor, metric=True), len(c))


def per_component(d: int) -> Case:
    x, c = clusters(d)
    return case_of(ComponentDistance(x, c, 0.5 + normal(len(c), 1, seed=4).sigmoid()), len(c))


def outlier(d: int) -> Case:
    x, c = clusters(d)
    c[0] += 1e4
    return isotropic(x, c, 1.0)


CONTRACT: dict[str, Callable[[], Case]] = {
    "128 dimensions": lambda: isotropic(normal(256, 128), normal(64, 128, seed=1), 1.0),
    "128 dimensions, offset": lambda: isotropic(normal(256, 128) + 1e3, normal(64, 128, seed=1) + 1e3, 1.0),
    "narrow": lambda: isotropic(normal(256, 2), normal(500, 2, seed=1), 0.01),
    "narrow, offset": lambda: isotropic(normal(256, 2) + 1e3, normal(500, 2, seed=1) + 1e3, 0.01),
    "one dimension, narrow": lambda: isotropic(normal(256, 1), normal(500, 1, seed=1), 1e-4),
    "clusters in 3 dimensions": lambda: isotropic(*clusters(3, 300.0), 1.0),
    "clusters in 128 dimensions": lambda: isotropic(*clusters(128), 1.0),
    "clusters under a metric": lambda: metric(64),
    "clusters, a bandwidth each": lambda: per_component(64),
    "an outlier": lambda: outlier(64),
    "wide": lambda: isotropic(normal(256, 8), normal(64, 8, seed=1), 1e4),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CONTRACT)
def test_float32_keeps_the_contract(name: str, backend: str) -> None:
    case = CONTRACT[name]()
    (probs, lse, _), gradients = evaluate(case, backend, (150, len(case.values) // 2 + 1))
    (exact_probs, exact_lse, _), exact_gradients = evaluate(case.to(torch.float64), "reference")
    assert lse.dtype == torch.float32
    assert (probs - exact_probs).abs().max() <= 1e-4
    assert ((lse - exact_lse).abs() <= 1e-4 * (1 + exact_lse.abs())).all()
    for gradient, exact in zip(gradients, exact_gradients, strict=True):
        assert torch.isfinite(gradient).all()
        assert (gradient - exact).abs().max() <= 1e-3 * exact.abs().max()


@pytest.mark.parametrize("backend", BACKENDS)
def test_responsible_components_move(backend: str) -> None:
    """Exponentials that underflow would give gradients of exactly zero here."""
    case = CONTRACT["128 dimensions"]()
    _, (_, _, _, to_components, _) = evaluate(case, backend)
    responsible = case.scores().argmax(-1).unique()
    assert to_components[responsible].any(-1).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_million_components(backend: str) -> None:
    m = 10**6
    case = isotropic(normal(2, 2), normal(m, 2, seed=1), 0.1)
    averages, lse = case.attend(backend, (2, 10**5))
    wanted, wanted_lse = case.to(torch.float64).attend("chunked", (2, 10**5))
    assert (averages - wanted).abs().max() <= 1e-4
    assert ((lse - wanted_lse).abs() <= 1e-4 * (1 + wanted_lse.abs())).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("distance", [1e2, 1e4, 1e6])
def test_far_from_everything_is_still_exact(distance: float, backend: str) -> None:
    x = torch.tensor([[distance]], requires_grad=True)
    components = torch.tensor([[0.0], [1.0]])
    lse = log_mix(SquaredDistance(x, components, torch.ones(1, 1)), torch.zeros(2), backend=backend)
    lse.backward()
    assert lse.item() == pytest.approx(-((distance - 1) ** 2), rel=1e-6)
    assert x.grad is not None
    assert x.grad.item() == pytest.approx(-2 * (distance - 1), rel=1e-6)


@pytest.fixture
def _as_on_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores in float32, where `matrix` leaves the constant of each query to `row`."""
    monkeypatch.setattr(
        distance, "score_dtype", lambda x, c: compute_dtype(torch.promote_types(x.dtype, c.dtype))
    )


@pytest.mark.usefixtures("_as_on_an_accelerator")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [name for name in TERMS if "squared" in name or name == "sum"])
def test_float32_scores(name: str, backend: str) -> None:
    case = make_case(name, Draw(n=5, m=6, d=2, dtype=torch.float32), weights="row", dead=0.3)
    case.log_weights[1] = -torch.inf
    outputs, gradients = evaluate(case, backend, (2, 4))
    exact, exact_gradients = evaluate(case.to(torch.float64), "reference")
    torch.testing.assert_close(outputs, exact, rtol=1e-4, atol=1e-4, check_dtype=False)
    torch.testing.assert_close(gradients, exact_gradients, rtol=1e-4, atol=1e-4, check_dtype=False)


@pytest.mark.usefixtures("_as_on_an_accelerator")
@pytest.mark.parametrize("backend", BACKENDS)
def test_float32_scores_of_a_distant_query(backend: str) -> None:
    """log p(1)/p(0) = 2·10⁴·10⁻⁴ − 10⁻⁸ is lost to float32 in either squared distance of 10⁸."""
    x, c = torch.tensor([[1e4]]), torch.tensor([[0.0], [1e-4]])
    values = torch.tensor([[0.0], [1.0]])
    probability, lse = attend(
        SquaredDistance(x, c, torch.ones(1, 1)), torch.zeros(2), values, backend=backend
    )
    assert probability.item() == pytest.approx(1 / (1 + math.exp(-2)), abs=1e-4)
    assert lse.item() == pytest.approx(-1e8, rel=1e-6)


def attended(case: Case, backend: str) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The outputs of `attend` by small blocks, and gradients of a combination of them."""
    case = case.map(lambda t: t.detach().requires_grad_(t.is_floating_point()))
    averages, lse = case.attend(backend, (5, 6))
    total = averages.double().sin().sum() + torch.where(torch.isneginf(lse), 0.0, lse.double()).cos().sum()
    leaves = [t for t in case.tensors if t.requires_grad]
    return (averages.detach(), lse.detach()), torch.autograd.grad(total, leaves)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("backend", ["reference", *BACKENDS])
@pytest.mark.parametrize("name", TERMS)
def test_half_inputs_are_computed_in_float32(name: str, backend: str, dtype: torch.dtype) -> None:
    half = make_case(name, Draw(n=13, m=20, d=2, dtype=dtype), weights="row", dead=0.1)
    outputs, gradients = attended(half, backend)
    exact, exact_gradients = attended(half.to(torch.float64), "reference")
    for got, wanted in zip(outputs, exact, strict=True):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)
    for gradient, wanted in zip(gradients, exact_gradients, strict=True):
        assert gradient.dtype == dtype
        # One rounding to half precision, at the end.
        torch.testing.assert_close(gradient.double(), wanted, rtol=torch.finfo(dtype).eps, atol=1e-3)


@pytest.mark.parametrize("backend", ["reference", *BACKENDS])
@pytest.mark.parametrize("name", TERMS)
def test_autocast_changes_nothing(name: str, backend: str) -> None:
    case = make_case(name, Draw(n=4, m=5, d=2, dtype=torch.float32)).map(
        lambda t: t.requires_grad_(t.is_floating_point())
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = case.attend(backend, (2, 3))
    torch.testing.assert_close(inside, case.attend(backend, (2, 3)), rtol=0, atol=0)


@pytest.mark.parametrize("name", TERMS)
def test_blocks_are_recomputed_outside_autocast(name: str) -> None:
    """A backward pass inside autocast meets the same scores as the forward pass did."""
    case = make_case(name, Draw(n=4, m=5, d=2, dtype=torch.float32))
    _, wanted = evaluate(case, "chunked", (2, 3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, got = evaluate(case, "chunked", (2, 3))
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


def test_a_score_function_sees_no_half_precision() -> None:
    seen = []

    def function(x: Tensor, components: Tensor, parameters: object) -> Tensor:
        seen.extend([x.dtype, components.dtype, parameters[0].dtype])  # type: ignore[index]
        return bump(x, components, parameters)  # type: ignore[arg-type]

    x, c = torch.zeros(2, 1, dtype=torch.bfloat16), torch.zeros(3, 1, dtype=torch.bfloat16)
    term = Score(function, x, c, (torch.ones((), dtype=torch.bfloat16),))
    attend(term, torch.zeros(3), torch.zeros(3, 1))
    assert set(seen) == {torch.float32}
