"""Multi-layer perceptrons."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from kdmkit.nn.draws import Dropout
from kdmkit.nn.scaler import soft_clip


def make_linear(inputs: int, outputs: int, generator: torch.Generator | None = None) -> nn.Linear:
    """`nn.Linear` in float32 with torch's usual first weights, drawn from a generator (None: torch's own).

    Args:
        inputs, outputs: the numbers of features.
        generator: of the first weights.

    Returns:
        A layer with a bias.

    >>> layer = make_linear(3, 2, torch.Generator().manual_seed(0))
    >>> layer.weight.shape
    torch.Size([2, 3])
    """
    layer = nn.utils.skip_init(nn.Linear, inputs, outputs, dtype=torch.float32)
    bound = 1 / math.sqrt(inputs)
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, -bound, bound, generator=generator)
    return layer


class SoftClip(nn.Module):
    """`soft_clip` as a module."""

    def forward(self, x: Tensor) -> Tensor:
        return soft_clip(x)


class MLP(nn.Sequential):
    """Linear layers with GELU and dropout between them, and an optional normalisation of the output.

    Args:
        sizes: the widths from input to output.
        dropout: after every hidden layer.
        clip: whether inputs, standardised, are softly clipped first.
        normalize: whether the output is normalised to mean 0 and variance 1: encoders need a fixed scale of
            their latent space, decoders a free one.
        shape: of one output, where it is no vector.
        generator: of the first weights; None is torch's global one.

    >>> MLP([2, 8, 12], shape=[3, 4])(torch.zeros(5, 2)).shape
    torch.Size([5, 3, 4])
    """

    def __init__(
        self,
        sizes: list[int],
        *,
        dropout: float = 0.1,
        clip: bool = False,
        normalize: bool = True,
        shape: list[int] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        layers: list[nn.Module] = [SoftClip()] if clip else []
        for position, (wide, narrow) in enumerate(pairwise(sizes)):
            layers.append(make_linear(wide, narrow, generator))
            if position < len(sizes) - 2:
                layers += [nn.GELU(), Dropout(dropout)]
        if normalize:
            layers.append(nn.LayerNorm(sizes[-1], elementwise_affine=False))
        if shape is not None:
            layers.append(nn.Unflatten(1, shape))
        super().__init__(*layers)
        self._config = {
            "sizes": sizes,
            "dropout": dropout,
            "clip": clip,
            "normalize": normalize,
            "shape": shape,
        }

    def config(self) -> dict[str, Any]:
        """The arguments of an equal module: `MLP(**config)`."""
        return dict(self._config)
