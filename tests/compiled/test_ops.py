"""The reductions under `torch.compile`."""

import pytest
import torch
from torch import Tensor

from compiled.conftest import slow_except
from kdmkit._core.runtime import compiles_reverse_mode
from kdmkit.ops.labels import _QueuedLabels
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


def _labels(query: Tensor, components: Tensor, scale: Tensor, log_weights: Tensor, table: Tensor) -> Tensor:
    codes = torch.arange(len(query)).unsqueeze(-1) % table.shape[1]
    log_probs: Tensor = _QueuedLabels.apply(True, query, components, scale, log_weights, table, codes)
    return log_probs


# The compiler makes an instance of the class for itself.
@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*:DeprecationWarning")
def test_explicit_gradients_of_labels_are_one_graph() -> None:
    """What log p(label | x) takes on a GPU; it runs on any device."""
    draw = Draw(n=6, m=5, d=2)
    leaves = [
        draw.normal(6, 2),
        draw.normal(5, 2),
        torch.full((1, 1), 0.7),
        draw.normal(5),
        draw.normal(5, 3),
    ]
    leaves = [leaf.float().requires_grad_() for leaf in leaves]
    compiled = torch.compile(_labels, fullgraph=True, backend="aot_eager")
    wanted, got = _labels(*leaves), compiled(*leaves)
    torch.testing.assert_close(got, wanted)
    upstream = torch.linspace(-1, 1, 6)
    gradients = [torch.autograd.grad(result, leaves, upstream) for result in (got, wanted)]
    torch.testing.assert_close(*gradients)


def test_explicit_gradients_are_for_compiled_reverse_mode_alone() -> None:
    seen: list[bool] = []

    def function(x: Tensor) -> Tensor:
        seen.append(compiles_reverse_mode())
        return x.square().sum()

    x = torch.ones(3)
    for call in (
        function,
        torch.compile(function, backend="eager"),
        torch.compile(torch.func.grad(function), backend="eager"),
        torch.compile(lambda x: torch.func.jvp(function, (x,), (x,))[1], backend="eager"),
    ):
        call(x)
    assert seen == [False, True, False, False]
