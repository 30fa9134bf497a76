"""Elements of a batch of distributions, chosen by an index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.kernels import Kernel


class BatchIndex:
    """Chooses elements of a batch from every tensor of a distribution.

    Args:
        index: what a tensor of shape `batch_shape` can be indexed with.
        batch_shape: of the distribution.

    >>> BatchIndex(1, torch.Size([3])).choose(torch.arange(6).view(3, 2), 1)
    tensor([2, 3])
    """

    def __init__(self, index: Any, batch_shape: torch.Size) -> None:
        parts = [*index] if isinstance(index, tuple) else [index]
        parts = [torch.as_tensor(part) if isinstance(part, list | np.ndarray) else part for part in parts]
        used = sum(_dimensions(part) for part in parts)
        n = len(batch_shape)
        dots = [i for i, part in enumerate(parts) if part is Ellipsis]
        if used > n or len(dots) > 1:
            raise IndexError(bad_argument("index", f"one for a batch of shape {tuple(batch_shape)}", index))
        # Written out: behind the batch are further dimensions, which the dots would take, too.
        at = dots[0] if dots else len(parts)
        parts[at : at + 1] = [slice(None)] * (n - used)
        self._index, self._batch_shape = tuple(parts), batch_shape

    def choose(self, tensor: Tensor, rank: int) -> Tensor:
        """The chosen elements of `(*batch, *rest)` with `rank` dimensions of rest, if there is a batch."""
        lead = tensor.ndim - rank
        if not lead:
            return tensor
        return tensor.expand(*self._batch_shape, *tensor.shape[lead:])[self._index]

    def of_shape(self, batch_shape: torch.Size) -> torch.Size:
        """The shape of the chosen elements of a batch that broadcasts to the whole one."""
        return self.choose(torch.empty(()).expand(batch_shape), 0).shape

    def choose_behind(self, tensor: Tensor, rank: int) -> Tensor:
        """As `choose`, for `(l, *batch, *rest)`."""
        if tensor.ndim == rank + 1:
            return tensor
        return self.choose(tensor.movedim(0, -1), rank + 1).movedim(-1, 0)


def _dimensions(part: Any) -> int:
    """The number of dimensions that one part of an index takes."""
    if part is None or part is Ellipsis:
        return 0
    return part.ndim if isinstance(part, Tensor) and part.dtype == torch.bool else 1


def variables_at(
    index: BatchIndex, components: Mapping[str, Tensor], kernels: Mapping[str, Kernel]
) -> tuple[dict[str, Tensor], dict[str, Kernel]]:
    """Components `(*batch, m, *component)` and kernels of the chosen elements, by variable."""
    chosen = {n: index.choose(components[n], 1 + kernel.component_dim) for n, kernel in kernels.items()}
    arranged = {n: kernel.arranged(lambda part: index.choose(part, 2)) for n, kernel in kernels.items()}
    return chosen, arranged
