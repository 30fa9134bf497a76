"""`log_mix_given` in every implementation: values and gradients are those of two exact reductions."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kdmkit._core.logspace import safe_logsumexp
from kdmkit.ops import Term, chunked, dense
from kdmkit.ops.api import log_mix_given
from ops.cases import TERMS, Draw, make_case

Given = Callable[[Sequence[Term], Sequence[Term], Tensor], tuple[Tensor, Tensor]]


IMPLEMENTATIONS: dict[str, Given] = {
    "auto": log_mix_given,
    "dense": dense.reduce_given,
    "chunked": partial(chunked.reduce_given, block=(2, 3)),
}


def exact(terms: Sequence[Term], more: Sequence[Term], log_weights: Tensor) -> tuple[Tensor, Tensor]:
    scores = sum((term.exact() for term in terms), log_weights)
    lse, joint = safe_logsumexp(scores), safe_logsumexp(sum((term.exact() for term in more), scores))
    return lse, joint - torch.where(torch.isneginf(lse), 0.0, lse)


def evaluate(function: Given, one: Any, other: Any, combine: Callable[[Tensor, Tensor], Tensor]) -> Any:
    cases = [case.map(lambda t: t.detach().requires_grad_(t.is_floating_point())) for case in (one, other)]
    lse, conditional = function(cases[0].terms, cases[1].terms, cases[0].log_weights)
    outputs = lse.expand(conditional.shape), conditional
    leaves = [cases[0].log_weights, *(t for case in cases for term in case.terms for t in term.tensors)]
    leaves = [leaf for leaf in leaves if leaf.requires_grad]
    alive = [torch.where(torch.isneginf(output), 0.0, output) for output in outputs]
    return outputs, torch.autograd.grad(combine(*alive), leaves, allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize("function", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", TERMS)
@settings(max_examples=6)
@given(
    n=st.integers(1, 7),
    m=st.integers(1, 7),
    lead=st.sampled_from([(), (2,), (2, 3)]),
    seed=st.integers(0, 2**31),
    weights=st.sampled_from(["shared", "batch", "row"]),
    more=st.sampled_from(sorted(set(TERMS) - {"score", "masked-score", "sum-of-scores"})),
)
def test_values_and_gradients(
    name: str, function: str, n: int, m: int, lead: tuple[int, ...], seed: int, weights: str, more: str
) -> None:
    draw = Draw(n, m, 2, lead, generator=torch.Generator().manual_seed(seed))
    one, other = make_case(name, draw, weights=weights), make_case(more, draw)

    def combined(lse: Tensor, conditional: Tensor) -> Tensor:
        return lse.sin().sum() + 2 * conditional.cos().sum()

    got = evaluate(IMPLEMENTATIONS[function], one, other, combined)
    torch.testing.assert_close(got, evaluate(exact, one, other, combined), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("function", IMPLEMENTATIONS)
def test_a_query_that_meets_nothing(function: str) -> None:
    draw = Draw(n=3, m=4, d=2)
    one, other = make_case("squared-ard", draw, weights="row"), make_case("lookup", draw)
    one.log_weights[1] = -torch.inf
    outputs, gradients = evaluate(IMPLEMENTATIONS[function], one, other, lambda a, b: (a + b).sum())
    for output in outputs:
        assert torch.isneginf(output).tolist() == [False, True, False]
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    assert not gradients[0][1].any()


def test_no_queries() -> None:
    draw = Draw(n=0, m=4, d=2)
    one, other = make_case("squared-ard", draw), make_case("lookup", draw)
    for function in IMPLEMENTATIONS.values():
        assert [output.shape for output in function(one.terms, other.terms, one.log_weights)] == [(0,), (0,)]


def test_vmap_in_blocks() -> None:
    draw = Draw(n=3, m=4, d=2)
    one, other = make_case("squared-ard", draw), make_case("lookup", draw)
    weights = torch.stack([one.log_weights, one.log_weights.flip(0)])

    def total(log_weights: Tensor) -> Tensor:
        return IMPLEMENTATIONS["chunked"](one.terms, other.terms, log_weights)[1].sum()

    got = torch.func.vmap(torch.func.grad(total))(weights)
    torch.testing.assert_close(got, torch.stack([torch.func.grad(total)(row) for row in weights]))
