"""Methods of fitted estimators as modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

#: Maps rows on the device of the module to one tensor, or to several.
Answer = Callable[[Tensor], Any]


class MethodModule(nn.Module):
    """answer(x) as a module, which `torch.export` takes.

    Args:
        module: with the parameters that `answer` uses.
        answer: maps a batch of rows to tensors.
    """

    def __init__(self, module: nn.Module, answer: Answer) -> None:
        super().__init__()
        self.module, self._answer = module, answer

    def forward(self, x: Tensor) -> Any:
        return self._answer(x)
