"""The reductions under `torch.func`."""

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from ops.cases import BACKENDS, TERMS, Case, Draw, loss, make_case

SIZE = 3


def batch_of(name: str) -> tuple[Case, list[Tensor], list[int]]:
    """A reduction whose every tensor has a batch dimension, and the positions of the floating ones."""
    elements = [
        make_case(name, Draw(n=4, m=5, d=2, generator=torch.Generator().manual_seed(seed)))
        for seed in range(SIZE)
    ]
    stacked = [torch.stack(tensors) for tensors in zip(*(e.tensors for e in elements), strict=True)]
    return elements[0], stacked, [i for i, t in enumerate(stacked) if t.is_floating_point()]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", TERMS)
def test_vmap(name: str, backend: str) -> None:
    case, stacked, _ = batch_of(name)

    def reduce(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        return case.with_tensors(tensors).attend(backend, (2, 3))

    got = vmap(reduce)(*stacked)
    for b in range(SIZE):
        torch.testing.assert_close(tuple(o[b] for o in got), reduce(*(t[b] for t in stacked)))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", TERMS)
def test_gradients_of_a_vmap(name: str, backend: str) -> None:
    case, stacked, floating = batch_of(name)
    leaves = [t.requires_grad_(t.is_floating_point()) for t in stacked]
    total = vmap(lambda *tensors: loss(case.with_tensors(tensors), backend))(*leaves).sum()
    got = torch.autograd.grad(total, [leaves[i] for i in floating])
    separate = sum(loss(case.with_tensors([t[b] for t in leaves]), "reference") for b in range(SIZE))
    wanted = torch.autograd.grad(separate, [leaves[i] for i in floating])  # type: ignore[arg-type]
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", TERMS)
def test_gradients_per_sample(name: str, backend: str) -> None:
    """vmap over the queries of a gradient to everything: components are shared, their gradients are not."""
    case, stacked, floating = batch_of(name)
    queries = {2 if name.startswith("squared") or name in ("lookup", "score") else None} - {None}
    in_dims = tuple(0 if i in (0, *queries) else None for i in range(len(stacked)))
    tensors = [t if dim == 0 else t[0] for t, dim in zip(stacked, in_dims, strict=True)]

    def of(backend: str):  # type: ignore[no-untyped-def]
        return grad(lambda *t: loss(case.with_tensors(t), backend), argnums=tuple(floating))

    got = vmap(of(backend), in_dims=in_dims)(*tensors)
    for b in range(SIZE):
        element = [t[b] if dim == 0 else t for t, dim in zip(tensors, in_dims, strict=True)]
        torch.testing.assert_close(tuple(g[b] for g in got), of("reference")(*element))


def test_second_derivatives_by_whole_matrices() -> None:
    case = make_case("squared-ard", Draw(n=2, m=3, d=2))
    leaves = [t.requires_grad_() for t in case.tensors]
    assert torch.autograd.gradgradcheck(lambda *t: case.with_tensors(t).attend("torch"), leaves)


def test_second_derivatives_by_blocks_say_what_to_do() -> None:
    case = make_case("squared-ard", Draw(n=2, m=3, d=2))
    query = case.terms[0].tensors[0].requires_grad_()
    (gradient,) = torch.autograd.grad(case.log_mix("chunked").sum(), query, create_graph=True)
    with pytest.raises(NotImplementedError, match='backend: expected "torch" for second derivatives'):
        gradient.square().sum().backward()
