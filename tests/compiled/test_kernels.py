"""Every kernel's terms, reduced inside one graph."""

import pytest
import torch
from torch import Tensor

from helpers import KERNELS, M, components, events
from kdmkit.ops import attend


@pytest.mark.parametrize("name", KERNELS)
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
