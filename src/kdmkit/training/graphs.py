"""Modules whose forward and backward passes are replayed as CUDA graphs, without a launch per operation."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class Graphed:
    """Calls a module, on a CUDA device through graphs: one for every set of shapes of its arguments.

    A tree of many columns is thousands of small operations, and their launches take longer than the work. A
    module that cannot be captured, since it waits for the device somewhere, is called as it is, with a
    warning: it is many times as slow.

    Args:
        module: maps tensors to one tensor. What it computes depends on its parameters and arguments alone.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.graphs: dict[Any, Any] = {}

    def __call__(self, *arguments: Tensor) -> Any:
        if not _can_capture(arguments):
            return self.module(*arguments)
        key = tuple((tuple(a.shape), a.dtype, a.device) for a in arguments)
        if key not in self.graphs:
            self.graphs[key] = self._captured(arguments)
        return self.graphs[key](*arguments)

    def _captured(self, arguments: tuple[Tensor, ...]) -> Any:
        samples = tuple(argument.detach().clone() for argument in arguments)
        try:
            # The wrapper is changed by the capture, the module is not.
            return torch.cuda.make_graphed_callables(_Wrapper(self.module), samples, allow_unused_input=True)
        except RuntimeError as error:
            torch.cuda.synchronize()
            what = f"steps are not replayed as CUDA graphs and take longer: {error}"
            warnings.warn(what, RuntimeWarning, stacklevel=2)
            return self.module

    def __deepcopy__(self, memo: dict[int, Any]) -> Graphed:
        """Graphs belong to the tensors that they were captured with."""
        return Graphed(copy.deepcopy(self.module, memo))


@contextmanager
def expected_streams() -> Iterator[None]:
    """Without torch's warning that gradients come from another stream: that of a capture is another one."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The AccumulateGrad node's stream does not match")
        yield


class _Wrapper(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *arguments: Tensor) -> Any:
        return self.module(*arguments)


def _can_capture(arguments: tuple[Tensor, ...]) -> bool:
    on_cuda = all(argument.is_cuda for argument in arguments) and torch.is_grad_enabled()
    if not on_cuda or torch.is_autocast_enabled("cuda") or torch.compiler.is_compiling():
        return False
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized())
