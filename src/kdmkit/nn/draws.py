"""Random numbers that modules draw in training, without torch's global generator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Draws:
    """Random numbers for the rows of one training step, the same however many processes share the rows.

    Every process draws for all rows of the batch and keeps the numbers of its own.

    Args:
        generator: in the same state on all processes.
        n_rows: of the whole batch.
        own: the rows of this process.

    >>> x, generator = torch.zeros(2, 1), torch.Generator()
    >>> whole = Draws(generator.manual_seed(0), 4, slice(None)).normal(torch.zeros(4, 1))
    >>> torch.equal(Draws(generator.manual_seed(0), 4, slice(1, None, 2)).normal(x), whole[1::2])
    True
    """

    generator: torch.Generator
    n_rows: int
    own: slice | Tensor

    def normal(self, like: Tensor) -> Tensor:
        """Standard normal numbers in the shape of a tensor of rows."""
        return self._of(torch.randn, like, like.dtype)

    def uniform(self, like: Tensor) -> Tensor:
        """Numbers between 0 and 1 in the shape of a tensor of rows, in float32."""
        return self._of(torch.rand, like, torch.float32)

    def _of(self, draw: Callable[..., Tensor], like: Tensor, dtype: torch.dtype) -> Tensor:
        shape = (self.n_rows, *like.shape[1:])
        return draw(shape, generator=self.generator, dtype=dtype, device=like.device)[self.own]


class DrawingModule(nn.Module):
    """Base of modules that draw random numbers for every row in training.

    Attributes:
        draws: where the numbers come from. The training loop sets it for every step; None is torch's global
            generator.

    >>> from kdmkit.nn import Dropout
    >>> issubclass(Dropout, DrawingModule), Dropout(0.2).draws is None
    (True, True)
    """

    draws: Draws | None = None

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
    """`torch.nn.Dropout` that draws as its base class does.

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
