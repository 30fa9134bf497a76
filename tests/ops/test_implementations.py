"""The table of implementations: which one computes what, and that all of them agree."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kdmkit.ops import SquaredDistance, api, attend, choose_backend
from kdmkit.ops.api import IMPLEMENTATIONS, Implementation, choose
from kdmkit.ops.terms import Reduction, Result
from ops.cases import TERMS, Case, Draw, make_case

NAMES = [implementation.name for implementation in IMPLEMENTATIONS]


def named(name: str) -> Implementation:
    return next(implementation for implementation in IMPLEMENTATIONS if implementation.name == name)


def squared(n: int, m: int, *, metric: bool = False) -> Reduction:
    scale = torch.ones(1, 1)
    return Reduction([SquaredDistance(torch.zeros(n, 1), torch.zeros(m, 1), scale, metric)], torch.zeros(m))


@pytest.mark.parametrize(
    ("reduction", "name"),
    [
        (squared(3, 4), "dense, explicit gradients"),
        (squared(3, 4, metric=True), "dense"),
        (squared(3000, 3000), "chunked on a CPU"),
        (squared(3000, 3000, metric=True), "chunked"),
    ],
)
def test_auto_takes_the_first_that_can(reduction: Reduction, name: str) -> None:
    assert choose(reduction).name == name
    assert choose_backend(reduction.terms, reduction.log_weights) == named(name).backend


def test_auto_computes_nothing_by_the_reference() -> None:
    """Not even where nothing else is left but `chunked`, which supports everything."""
    case = make_case("sum", Draw(n=3, m=4, d=2, lead=(2,)), weights="row")
    assert named("chunked").supports(Reduction(case.terms, case.log_weights, case.values)) is None
    assert NAMES.index("chunked") < NAMES.index("reference")


def test_torch_func_sees_every_operation() -> None:
    chosen = []

    def total(x: Tensor) -> Tensor:
        reduction = Reduction([SquaredDistance(x, torch.zeros(4, 1), torch.ones(1, 1))], torch.zeros(4))
        chosen.append(choose(reduction).name)
        return attend(reduction.terms, reduction.log_weights, torch.ones(4, 1))[1].sum()

    torch.func.grad(total)(torch.zeros(3, 1))
    assert chosen == ["dense"]


def values_and_gradients(case: Case, run: Callable[[Reduction], Result]) -> list[Tensor]:
    leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in case.tensors]
    case = case.with_tensors(leaves)
    averages, lse = run(Reduction(case.terms, case.log_weights, case.values, (2, 3)))
    assert averages is not None
    total = averages.sin().sum() + torch.where(torch.isneginf(lse), 0.0, lse).cos().sum()
    gradients = torch.autograd.grad(total, [t for t in leaves if t.requires_grad])
    return [averages.detach(), lse.detach(), *gradients]


@pytest.mark.parametrize("weights", ["shared", "row"])
@pytest.mark.parametrize("term", TERMS)
def test_every_implementation_equals_the_reference(term: str, weights: str) -> None:
    case = make_case(term, Draw(n=5, m=7, d=2), weights=weights, dead=0.3)
    reduction = Reduction(case.terms, case.log_weights, case.values)
    wanted = values_and_gradients(case, named("reference").run)
    able = [
        implementation for implementation in IMPLEMENTATIONS if implementation.supports(reduction) is None
    ]
    assert {"dense", "chunked", "reference"} <= {implementation.name for implementation in able}
    for implementation in able:
        got = values_and_gradients(case, implementation.run)
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["chunked", "chunked on a CPU"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("step", [-1e4, 0.0, 1e4])
def test_blocks_of_very_different_scores(step: float, dtype: torch.dtype, name: str) -> None:
    """The first block has no weight at all; the others lie thousands of nats apart, up or down."""
    case = make_case("squared-scalar", Draw(n=3, m=12, d=2))
    case.log_weights += step * (torch.arange(12) // 3)
    case.log_weights[:3] = -torch.inf
    case = case.to(dtype)
    wanted = values_and_gradients(case.to(torch.float64), named("reference").run)
    got = values_and_gradients(case, named(name).run)
    # A float32 log-weight of 30,000 is rounded to .002.
    rtol, atol = (1e-9, 1e-9) if dtype == torch.float64 else (1e-5, 5e-3)
    torch.testing.assert_close([g.double() for g in got[:2]], wanted[:2], rtol=rtol, atol=atol)
    assert all(torch.isfinite(gradient).all() for gradient in got[2:])
    assert not got[2][:3].any()


def test_reasons_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend none of whose implementations supports a reduction raises the reason of the last one."""
    never = Implementation("never", "torch", named("dense").run, supports=lambda _: "expected nothing")
    monkeypatch.setattr(api, "IMPLEMENTATIONS", (never,))
    with pytest.raises(ValueError, match=r'^backend "torch": expected nothing$'):
        choose(squared(3, 4), "torch")
