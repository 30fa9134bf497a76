"""A small residual network, stronger than the paper's encoders."""

from __future__ import annotations

from torch import Tensor, nn

from kdmlab.images.architectures import Shape


class Residual(nn.Module):
    """x + f(x), for f two 3×3 convolutions."""

    replayable = True

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inside = nn.Sequential(_block(channels, channels), _block(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inside(x)


def residual_encoder(shape: Shape, latent: int, width: int) -> nn.Sequential:
    """Images `(n, c, s, s)` in [0, 1] to vectors `(n, e)`: nine layers, two of the stages residual.

    >>> import torch
    >>> residual_encoder(Shape(3, 32), 32, width=8)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 32])
    """
    return nn.Sequential(
        nn.BatchNorm2d(shape.channels),
        _block(shape.channels, width),
        _block(width, 2 * width, pool=True),
        Residual(2 * width),
        _block(2 * width, 4 * width, pool=True),
        _block(4 * width, 8 * width, pool=True),
        Residual(8 * width),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(8 * width, latent),
    )


def _block(inside: int, outside: int, pool: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(inside, outside, 3, padding=1, bias=False)]
    layers += [nn.MaxPool2d(2)] if pool else []
    return nn.Sequential(*layers, nn.BatchNorm2d(outside), nn.GELU())
