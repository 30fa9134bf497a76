"""The reductions under `torch.compile`."""

import pytest
import torch
from torch import Tensor

from compiled.conftest import slow_except
from ops.cases import Draw, loss, make_case

CASES = ("squared-metric", "lookup", "masked-score", "sum", "sum-of-scores")


@pytest.mark.parametrize("name", slow_except(CASES, "squared-metric"))
def test_compiles_as_one_graph(name: str) -> None:
    case = make_case(name, Draw(n=4, m=5, d=2), dead=0.3)
    leaves = [t.requires_grad_(t.is_floating_point()) for t in case.tensors]

    def function(*tensors: Tensor) -> Tensor:
        return loss(case.with_tensors(tensors), "auto")

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=False)
    wanted, got = function(*leaves), compiled(*leaves)
    floating = [t for t in leaves if t.requires_grad]
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(torch.autograd.grad(got, floating), torch.autograd.grad(wanted, floating))


# Dynamo looks at `.grad` of what an excluded function returns.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_compiles_around_the_chunked_backend() -> None:
    case = make_case("squared-ard", Draw(n=4, m=5, d=2))
    leaves = [t.requires_grad_() for t in case.tensors]

    def function(*tensors: Tensor) -> Tensor:
        return loss(case.with_tensors(tensors), "chunked")

    compiled = torch.compile(function, backend="aot_eager", dynamic=False)
    wanted, got = function(*leaves), compiled(*leaves)
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(torch.autograd.grad(got, leaves), torch.autograd.grad(wanted, leaves))
