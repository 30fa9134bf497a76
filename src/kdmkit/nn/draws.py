"""Random numbers that modules draw in training, without torch's global generator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Draws:
    """Random numbers for the rows of one training step, the same however many processes share the rows.

    Every process draws for all rows of the batch and keeps the numbers of its rows.

    Args:
        generator: in the same state on all processes.
        n_rows: of the whole batch.
        local: the rows of this process.

    >>> x, generator = torch.zeros(2, 1), torch.Generator()
    >>> whole = Draws(generator.manual_seed(0), 4, slice(None)).normal(torch.zeros(4, 1))
    >>> torch.equal(Draws(generator.manual_seed(0), 4, slice(1, None, 2)).normal(x), whole[1::2])
    True
    """

    generator: torch.Generator
    n_rows: int
    local: slice | Tensor

    def normal(self, like: Tensor) -> Tensor:
        """Standard normal numbers in the shape of a tensor of rows."""
        shape = (self.n_rows, *like.shape[1:])
        return torch.randn(shape, generator=self.generator, dtype=like.dtype, device=like.device)[self.local]

    def uniform(self, like: Tensor) -> Tensor:
        """Numbers between 0 and 1 in the shape of a tensor of rows, in float32."""
        shape, device = (self.n_rows, *like.shape[1:]), like.device
        return torch.rand(shape, generator=self.generator, dtype=torch.float32, device=device)[self.local]


class DrawingModule(nn.Module, ABC):
    """Base of modules that draw random numbers for every row in training.

    Attributes:
        draws: the source of the numbers. The training loop sets it for every step; None is torch's global
            generator.

    >>> from kdmkit.nn import Dropout
    >>> issubclass(Dropout, DrawingModule), Dropout(0.2).draws is None
    (True, True)
    """

    draws: Draws | None = None

    @abstractmethod
    def forward(self, *args: Any, **kwargs: Any) -> Any: ...

    def normal(self, like: Tensor) -> Tensor:
        """Standard normal numbers in the shape of `like`."""
        return torch.randn_like(like) if self.draws is None else self.draws.normal(like)

    def noisy(self, x: Tensor, std: float) -> Tensor:
        """x, in training with Gaussian noise of a standard deviation."""
        return x + std * self.normal(x) if self.training and std else x

    def uniform(self, like: Tensor) -> Tensor:
        """Numbers between 0 and 1 in the shape of `like`."""
        return torch.rand_like(like, dtype=torch.float32) if self.draws is None else self.draws.uniform(like)


class Dropout(DrawingModule):
    """`torch.nn.Dropout` without torch's global generator, see `DrawingModule`.

    Args:
        p: the probability of a zero.

    >>> Dropout(0.5).eval()(torch.ones(2))
    tensor([1., 1.])
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        return x * (self.uniform(x) >= self.p) / (1 - self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"
