"""The Triton backend under `torch.compile`: one operator in one graph."""

import torch
from torch import Tensor

from kdmkit.ops import SquaredDistance, attend


def test_compiles_as_one_graph() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = (6, 20), (9, 20), (1, 20), (9,), (9, 3)
    leaves = [torch.randn(*shape, generator=generator).requires_grad_() for shape in shapes]

    def function(x: Tensor, c: Tensor, scale: Tensor, log_weights: Tensor, values: Tensor) -> Tensor:
        term = SquaredDistance(x, c, 0.1 * scale.exp())
        averages, lse = attend(term, log_weights, values, backend="triton")
        return averages.sin().sum() + lse.sum()

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=False)
    wanted, got = function(*leaves), compiled(*leaves)
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(torch.autograd.grad(got, leaves), torch.autograd.grad(wanted, leaves))
