"""Several multi-layer perceptrons side by side: one product serves all of them."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Committee(nn.Module):
    """K networks of the same shape that see the same rows and share nothing else.

    Each is a linear function plus a multi-layer perceptron. Answers start at zero, the mean of standardised
    targets: where a fit stops early, that is what it has not yet left.

    Args:
        sizes: the widths from input to output; GELU between them.
        n_members: K.

    >>> Committee([3, 8, 1], n_members=5)(torch.zeros(4, 3)).shape
    torch.Size([4, 5, 1])
    """

    def __init__(self, sizes: list[int], *, n_members: int) -> None:
        super().__init__()
        self.sizes, self.n_members = list(sizes), n_members
        shapes = list(pairwise(sizes))
        # What keeps the scale of the activations from layer to layer, up to the last, which starts at zero.
        gains = [2.0] * (len(shapes) - 1) + [0.0]
        self.weights = nn.ParameterList(
            math.sqrt(gain / wide) * torch.randn(n_members, wide, narrow, dtype=torch.float32)
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
                hidden = nn.functional.gelu(hidden)
        return torch.baddbmm(hidden, rows, self.linear).movedim(0, 1)

    def config(self) -> dict[str, Any]:
        """What makes an equal module: `Committee(**config)`."""
        return {"sizes": self.sizes, "n_members": self.n_members}
