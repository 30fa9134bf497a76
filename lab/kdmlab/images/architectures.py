"""The paper's encoders and decoders."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from kdmlab.common.checks import bad_argument

DROPOUT = 0.2


class Shape(NamedTuple):
    """The shape of a square image."""

    channels: int
    size: int


class Shift(nn.Module):
    """x − ½: pixels about zero."""

    replayable = True

    def forward(self, x: Tensor) -> Tensor:
        return x - 0.5


def paper_encoder(shape: Shape, latent: int) -> nn.Sequential:
    """Images `(n, c, s, s)` in [0, 1] to vectors `(n, e)`.

    Grey: convolutions with GELU 32@5, 32@5 (stride 2), 64@5, 64@5 (stride 2), then 4·e filters over all that
    is left (7×7 of 28×28), dropout, dense. Coloured: three pairs of 3×3 convolutions with GELU and batch
    normalisation (32, 64, 64), each followed by 2×2 max-pooling, dropout, dense, dropout.

    >>> import torch
    >>> paper_encoder(Shape(1, 28), 128)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 128])
    >>> paper_encoder(Shape(3, 32), 32)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 32])
    """
    return _grey_encoder(shape, latent) if shape.channels == 1 else _colour_encoder(shape, latent)


def _grey_encoder(shape: Shape, latent: int) -> nn.Sequential:
    left = _divided(shape, 4)
    return nn.Sequential(
        Shift(),
        *_convolution(1, 32),
        *_convolution(32, 32, stride=2),
        *_convolution(32, 64),
        *_convolution(64, 64, stride=2),
        nn.Conv2d(64, 4 * latent, left),
        nn.GELU(),
        nn.Flatten(),
        nn.Dropout(DROPOUT),
        nn.Linear(4 * latent, latent),
    )


def _convolution(inside: int, outside: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(inside, outside, 5, stride, padding=2), nn.GELU()]


def _colour_encoder(shape: Shape, latent: int) -> nn.Sequential:
    left = _divided(shape, 8)
    layers: list[nn.Module] = [Shift()]
    inside = shape.channels
    for outside in (32, 64, 64):
        for channels in (inside, outside):
            layers += [nn.Conv2d(channels, outside, 3, padding=1), nn.GELU(), nn.BatchNorm2d(outside)]
        layers.append(nn.MaxPool2d(2))
        inside = outside
    dense = nn.Linear(inside * left**2, latent)
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(DROPOUT), dense, nn.Dropout(DROPOUT))


def paper_decoder(shape: Shape, latent: int) -> nn.Sequential:
    """Vectors `(n, e)` to images `(n, c, s, s)` in [0, 1].

    Grey: transposed convolutions with GELU 64@7 from a single pixel, 64@5, 64@5 (stride 2), 32@5, 32@5
    (stride 2), 32@5, then one filter. Coloured: dense to 4×4×128, pairs of 3×3 transposed convolutions 128,
    64, 32 with GELU and batch normalisation, doubled in size after each pair, then three filters.

    >>> import torch
    >>> paper_decoder(Shape(1, 28), 128)(torch.zeros(2, 128)).shape
    torch.Size([2, 1, 28, 28])
    >>> paper_decoder(Shape(3, 32), 32)(torch.zeros(2, 32)).shape
    torch.Size([2, 3, 32, 32])
    """
    decoder = _grey_decoder(shape, latent) if shape.channels == 1 else _colour_decoder(shape, latent)
    return decoder.apply(_glorot)


def _glorot(layer: nn.Module) -> None:
    """Initialises weights as the paper (Keras) does. PyTorch's own shrinks deep activations."""
    if isinstance(layer, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
        nn.init.xavier_uniform_(layer.weight)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def _grey_decoder(shape: Shape, latent: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Unflatten(1, (latent, 1, 1)),
        nn.ConvTranspose2d(latent, 64, _divided(shape, 4)),
        nn.GELU(),
        *_transposed(64, 64),
        *_transposed(64, 64, stride=2),
        *_transposed(64, 32),
        *_transposed(32, 32, stride=2),
        *_transposed(32, 32),
        nn.Conv2d(32, 1, 5, padding=2),
        nn.Sigmoid(),
    )


def _transposed(inside: int, outside: int, stride: int = 1) -> list[nn.Module]:
    layer = nn.ConvTranspose2d(inside, outside, 5, stride, padding=2, output_padding=stride - 1)
    return [layer, nn.GELU()]


def _colour_decoder(shape: Shape, latent: int) -> nn.Sequential:
    first = _divided(shape, 8)
    layers: list[nn.Module] = [nn.Linear(latent, 128 * first**2), nn.Unflatten(1, (128, first, first))]
    inside = 128
    for outside in (128, 64, 32):
        for channels in (inside, outside):
            layers += [
                nn.ConvTranspose2d(channels, outside, 3, padding=1),
                nn.GELU(),
                nn.BatchNorm2d(outside),
            ]
        layers.append(nn.Upsample(scale_factor=2))
        inside = outside
    return nn.Sequential(*layers, nn.ConvTranspose2d(inside, shape.channels, 3, padding=1), nn.Sigmoid())


def _divided(shape: Shape, by: int) -> int:
    if shape.size % by:
        raise ValueError(bad_argument("shape", f"a size that {by} divides", shape.size))
    return shape.size // by


def features(encoder: nn.Sequential, x: Tensor) -> list[Tensor]:
    """The output of every GELU of an encoder, and the encoder's own output."""
    outputs = []
    for layer in encoder:
        x = layer(x)
        if isinstance(layer, nn.GELU):
            outputs.append(x)
    return [*outputs, x]


def dense_head(latent: int, classes: int, parameters: int) -> nn.Sequential:
    """A head with one hidden layer, as wide as gives about this number of parameters.

    >>> head = dense_head(128, 10, 71_169)
    >>> sum(p.numel() for p in head.parameters())
    71178
    """
    hidden = max(1, round((parameters - classes) / (latent + 1 + classes)))
    return nn.Sequential(nn.Linear(latent, hidden), nn.GELU(), nn.Linear(hidden, classes))
