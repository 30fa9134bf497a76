"""Values and gradients of every backend agree with `backend="reference"`."""

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kdmkit.ops import SquaredDistance, attend, choose_backend, combine, log_mix, score_matrix
from ops.cases import BACKENDS, TERMS, Case, Draw, evaluate, make_case

# Down to one component, no query, an empty batch; −∞ among the log-weights, up to all of them.
arrangements = st.fixed_dictionaries(
    {
        "n": st.integers(0, 7),
        "m": st.integers(1, 7),
        "d": st.integers(1, 3),
        "lead": st.sampled_from([(), (2,), (2, 3), (0,)]),
        "seed": st.integers(0, 2**31),
        "weights": st.sampled_from(["shared", "batch", "row"]),
        "dead": st.sampled_from([0.0, 0.5, 1.0]),
        "v": st.integers(0, 3),
    }
)
blocks = st.tuples(st.integers(1, 8), st.integers(1, 8))


def arranged(name: str, *, n: int, m: int, d: int, lead: tuple[int, ...], seed: int, **options: Any) -> Case:
    draw = Draw(n, m, d, lead, generator=torch.Generator().manual_seed(seed))
    return make_case(name, draw, **options)


def assert_same(case: Case, backend: str, block: tuple[int, int] | None, oracle: Case) -> None:
    for got, wanted in zip(evaluate(case, backend, block), evaluate(oracle, "reference"), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", TERMS)
@settings(max_examples=12)
@given(arrangement=arrangements, block=blocks)
def test_values_and_gradients_equal_the_reference(
    name: str, backend: str, arrangement: dict[str, Any], block: tuple[int, int]
) -> None:
    case = arranged(name, **arrangement)
    assert_same(case, backend, block, oracle=case)


@pytest.mark.parametrize("backend", ["reference", *BACKENDS])
@pytest.mark.parametrize("name", TERMS)
def test_reductions_by_their_definition(name: str, backend: str) -> None:
    """Σ_j exp(s_ij) and Σ_j exp(s_ij)·v_j / Σ_j exp(s_ij), one pair after the other."""
    case = make_case(name, Draw(n=4, m=5, d=2))
    averages, lse = case.attend(backend, (3, 2))
    scores = case.scores()
    for i in range(4):
        weights = [math.exp(scores[i, j]) for j in range(5)]
        mean = sum(w * case.values[j] for j, w in enumerate(weights)) / sum(weights)
        torch.testing.assert_close(lse[i].exp().item(), sum(weights))
        torch.testing.assert_close(averages[i], mean)


@pytest.mark.parametrize("backend", ["reference", *BACKENDS])
def test_squared_distances_by_hand(backend: str) -> None:
    x, c = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    factor = torch.tensor([[2.0, 0.0], [1.0, 1.0]])  # L(x − c) = (2, 3) and (0, 1)
    lse = log_mix(SquaredDistance(x, c, factor, metric=True), torch.zeros(2), backend=backend)
    assert lse.item() == pytest.approx(math.log(math.exp(-13) + math.exp(-1)))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reduction", ["log_mix", "attend"])
@pytest.mark.parametrize("name", TERMS)
def test_gradcheck(name: str, reduction: str, backend: str) -> None:
    case = make_case(name, Draw(n=3, m=4, d=2, lead=(2,)), weights="batch", dead=0.2)
    tensors = [t.requires_grad_() if t.is_floating_point() else t for t in case.tensors]

    def reduce(*tensors: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        return getattr(case.with_tensors(tensors), reduction)(backend, (2, 3))

    assert torch.autograd.gradcheck(reduce, tensors, atol=1e-6, fast_mode=True)


def scattered(x: torch.Tensor) -> torch.Tensor:
    """Equal values, every second element of a larger storage, dimensions stored in reverse."""
    storage = torch.full((*reversed(x.shape), 2), 7, dtype=x.dtype)
    view = storage[..., 0].permute(tuple(reversed(range(x.ndim))))
    return view.copy_(x)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", TERMS)
def test_strided_inputs(name: str, backend: str) -> None:
    case = make_case(name, Draw(n=5, m=4, d=2), weights="row")
    strided = case.map(scattered)
    assert not any(t.is_contiguous() for t in strided.tensors if t.numel() > 1)
    assert_same(strided, backend, (2, 3), oracle=case)


@pytest.mark.parametrize("backend", ["reference", *BACKENDS])
@pytest.mark.parametrize("name", TERMS)
def test_a_query_whose_scores_are_all_minus_infinity(name: str, backend: str) -> None:
    case = make_case(name, Draw(n=3, m=4, d=2), weights="row")
    case.log_weights[1] = -torch.inf
    (averages, lse, mixed), gradients = evaluate(case, backend, (2, 3))
    assert torch.equal(averages[1], torch.zeros(2).double())
    assert lse[1] == mixed[1] == -torch.inf
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    assert not gradients[0][1].any()
    query = case.terms[0].tensors[0]
    if query.is_floating_point() and query.shape[-2:-1] == (3,):
        assert not gradients[2][1].any()
    others = [0, 2]
    assert torch.isfinite(lse[others]).all()
    assert gradients[0][others].any()


@pytest.mark.parametrize("backend", ["reference", *BACKENDS])
def test_components_of_weight_zero_get_no_gradient(backend: str) -> None:
    case = make_case("squared-scalar", Draw(n=3, m=4, d=2))
    case.log_weights[2] = -torch.inf
    _, (to_weights, to_values, _, to_components, _) = evaluate(case, backend, (2, 3))
    alive = [0, 1, 3]
    for gradient in (to_weights, to_values, to_components):
        assert not gradient[2].any()
        assert gradient[alive].all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_leading_dimensions_of_the_values_alone(backend: str) -> None:
    """Several tables of values share one softmax, whose gradient from the logsumexp counts once."""
    case = make_case("sum", Draw(n=3, m=4, d=2))
    case.values = torch.stack([case.values, case.values.flip(0)])
    assert_same(case, backend, (2, 3), oracle=case)


@pytest.mark.parametrize("backend", ["reference", *BACKENDS])
@given(split=st.integers(1, 6), dead=st.sampled_from(["none", "left", "right", "both"]))
def test_combine_is_attention_to_the_union(backend: str, split: int, dead: str) -> None:
    case = make_case("squared-ard", Draw(n=3, m=7, d=2))
    (term,), weights, values = case.terms, case.log_weights, case.values
    parts = [slice(0, split), slice(split, 7)]
    for part, side in zip(parts, ["left", "right"], strict=True):
        if dead in (side, "both"):
            weights[part] = -torch.inf
    shards = [attend(term.columns(p), weights[p], values[p], backend=backend, block=(2, 2)) for p in parts]
    got, wanted = combine(*shards), attend(term, weights, values, backend=backend)
    torch.testing.assert_close(got, wanted)


def test_combine_has_gradients_and_no_nan_beside_an_empty_shard() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(3, 2, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2))
    s, t = (torch.randn(3, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2))
    assert torch.autograd.gradcheck(lambda a, s, b, t: combine((a, s), (b, t)), (a, s, b, t))
    empty = torch.full((3,), -torch.inf, dtype=torch.float64, requires_grad=True)
    for lse in (s, empty):
        outputs = combine((a, lse), (b, empty))
        gradients = torch.autograd.grad([o.sum() for o in outputs], [a, b, empty])
        assert all(torch.isfinite(gradient).all() for gradient in gradients)
        assert not gradients[1].any()
        assert not gradients[2].any()


@pytest.mark.parametrize("name", TERMS)
def test_score_matrix_is_every_score(name: str) -> None:
    case = make_case(name, Draw(n=3, m=4, d=2, lead=(2,)), weights="row", dead=0.3)
    torch.testing.assert_close(score_matrix(case.terms, case.log_weights), case.scores())


def test_auto_takes_whole_matrices_while_they_are_small() -> None:
    def chosen(n: int, m: int, *lead: int) -> str:
        term = SquaredDistance(torch.zeros(*lead, n, 1), torch.zeros(m, 1), torch.ones(1, 1))
        return choose_backend([term])

    assert chosen(256, 512) == "torch"
    assert chosen(4096, 100_000) == "chunked"
    assert chosen(256, 512, 1000) == "chunked"


@pytest.mark.parametrize("backend", ["auto", "reference", *BACKENDS])
def test_dtypes_promote(backend: str) -> None:
    names = [torch.float32, torch.float64]
    for query, components, weights, values in itertools.product(names, repeat=4):
        term = SquaredDistance(
            torch.zeros(2, 1, dtype=query), torch.zeros(3, 1, dtype=components), torch.ones(1, 1)
        )
        averages, lse = attend(
            term, torch.zeros(3, dtype=weights), torch.ones(3, 1, dtype=values), backend=backend
        )
        wide = torch.float64 in (query, components, weights, values)
        assert averages.dtype == lse.dtype == (torch.float64 if wide else torch.float32)
