"""Numbers that a change of precision must not round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from torch import Tensor, nn


class ExactBuffers(nn.Module):
    """A module whose own buffers keep their dtype where the module is converted.

    An atom of 0.1 that was rounded to float32 would differ from the 0.1 of a float64 column, knots may
    coincide in float32, and an offset may move values by more than their spread.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = dict(self._buffers)
        super()._apply(fn, recurse=recurse)
        for name, old in before.items():
            new = self._buffers[name]
            if old is not None and new is not None and new.dtype != old.dtype:
                self._buffers[name] = old.to(new.device)
        return self
