"""Multi-layer perceptrons: one, or several side by side."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kdmkit._core.modes import is_exporting
from kdmkit.nn.draws import Dropout
from kdmkit.nn.scaler import soft_clip


def make_linear(inputs: int, outputs: int, generator: torch.Generator | None = None) -> nn.Linear:
    """`nn.Linear` in float32 with torch's usual first weights, drawn from a generator (None: torch's own)."""
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


class MLPEnsemble(nn.Module):
    """K independent networks of the same shape, evaluated together by batched matrix products.

    Each member is a linear function plus a multi-layer perceptron. The last layers start at zero: before
    training every member answers 0, the mean of standardised targets.

    Args:
        sizes: the widths from input to output; GELU between them.
        n_members: K.
        generator: of the first weights; None is torch's global one.

    >>> MLPEnsemble([3, 8, 1], n_members=5)(torch.zeros(4, 3)).shape
    torch.Size([4, 5, 1])
    """

    def __init__(self, sizes: list[int], *, n_members: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.sizes, self.n_members = list(sizes), n_members
        shapes = list(pairwise(sizes))
        # A gain of 2 keeps the scale of the activations from layer to layer; the last layer starts at zero.
        gains = [2.0] * (len(shapes) - 1) + [0.0]
        self.weights = nn.ParameterList(
            math.sqrt(gain / wide)
            * torch.randn(n_members, wide, narrow, dtype=torch.float32, generator=generator)
            for gain, (wide, narrow) in zip(gains, shapes, strict=True)
        )
        self.linear = nn.Parameter(torch.zeros(n_members, sizes[0], sizes[-1], dtype=torch.float32))
        self.biases = nn.ParameterList(
            torch.zeros(n_members, 1, narrow, dtype=torch.float32) for _, narrow in shapes
        )

    def forward(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n k outputs"]:
        rows = hidden = x.expand(self.n_members, *x.shape)
        last = len(self.sizes) - 2
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            hidden = torch.baddbmm(bias, hidden, weight)
            if layer < last:
                hidden = _gelu(hidden)
        return torch.baddbmm(hidden, rows, self.linear).movedim(0, 1)

    def config(self) -> dict[str, Any]:
        """The arguments of an equal module: `MLPEnsemble(**config)`."""
        return {"sizes": self.sizes, "n_members": self.n_members}


def _gelu(x: Tensor) -> Tensor:
    # ONNX Runtime has no error function in float64.
    return nn.functional.gelu(x.float()).to(x.dtype) if is_exporting() else nn.functional.gelu(x)
