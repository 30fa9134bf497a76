"""Every kernel's terms, reduced inside one graph."""

import pytest
import torch
from torch import Tensor

import kdmkit as kdm
from compiled.conftest import slow_except
from helpers import KERNELS, M, components, events, normal
from kdmkit.ops import attend
from kdmkit.ops.terms import whole


@pytest.mark.parametrize("name", slow_except(KERNELS, "rbf-metric", "levels", "inflated-rounded", "periodic"))
def test_compiles_as_one_graph(name: str) -> None:
    kernel = KERNELS[name]()
    parameters = [p.requires_grad_() for p in kernel.parameters() if torch.isfinite(p).all()]
    x, c = events(kernel, 5, seed=0), components(kernel, M, seed=1)
    values = torch.eye(M).double()

    def function(x: Tensor, c: Tensor) -> Tensor:
        averages, lse = attend(kernel.term(x, c), torch.zeros(M), values)
        return averages.sin().sum() + torch.where(torch.isneginf(lse), 0.0, lse).sum()

    compiled = torch.compile(function, fullgraph=True, backend="eager", dynamic=False)
    got, wanted = compiled(x, c), function(x, c)
    torch.testing.assert_close(got, wanted)
    if parameters:
        gradients = torch.autograd.grad(got, parameters)
        torch.testing.assert_close(gradients, torch.autograd.grad(wanted, parameters))


@pytest.mark.parametrize("name", slow_except(["tricube", "periodic"], "tricube"))
def test_masses_compile_as_one_graph(name: str) -> None:
    kernel = KERNELS[name]().requires_grad_()
    c = components(kernel, M, seed=1)
    low = normal(5, *c.shape[1:], seed=2)

    def function(c: Tensor) -> Tensor:
        return whole(kernel.region_term(packed, c).prepared()).exp()

    packed = kernel.pack("region", kdm.Interval(low, low + 3), c.shape[1:])
    compiled = torch.compile(function, fullgraph=True, backend="eager", dynamic=False)
    got, wanted = compiled(c), function(c)
    torch.testing.assert_close(got, wanted)
    parameters = list(kernel.parameters())
    gradients = torch.autograd.grad(got.sum(), parameters)
    torch.testing.assert_close(gradients, torch.autograd.grad(wanted.sum(), parameters))
