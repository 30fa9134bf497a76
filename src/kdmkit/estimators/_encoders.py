"""Encoders and decoders that estimators build themselves, and those that users bring."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument

_ROWS = 8192


class MLP(nn.Sequential):
    """Linear layers with GELU, dropout and, at the end, a normalisation that keeps the latent scale.

    Args:
        sizes: the widths from input to output.
        dropout: after every hidden layer.
        normalize: whether the output is normalised (encoders) or free (decoders).
        shape: of one output, where it is no vector.

    >>> MLP([2, 8, 12], shape=[3, 4])(torch.zeros(5, 2)).shape
    torch.Size([5, 3, 4])
    """

    def __init__(
        self,
        sizes: list[int],
        *,
        dropout: float = 0.1,
        normalize: bool = True,
        shape: list[int] | None = None,
    ) -> None:
        layers: list[nn.Module] = []
        for position, (wide, narrow) in enumerate(pairwise(sizes)):
            layers.append(nn.Linear(wide, narrow, dtype=torch.float32))
            if position < len(sizes) - 2:
                layers += [nn.GELU(), nn.Dropout(dropout)]
        if normalize:
            layers.append(nn.LayerNorm(sizes[-1], elementwise_affine=False))
        if shape is not None:
            layers.append(nn.Unflatten(1, shape))
        super().__init__(*layers)
        self._config = {"sizes": sizes, "dropout": dropout, "normalize": normalize, "shape": shape}

    def config(self) -> dict[str, Any]:
        """What makes an equal module: `MLP(**config)`."""
        return dict(self._config)


def build_module(parameter: Any, name: str, build: Callable[[], nn.Module]) -> nn.Module | None:
    """The encoder or decoder that a constructor parameter means: none, `"mlp"`, or a copy of a module."""
    if parameter is None:
        return None
    if isinstance(parameter, nn.Module):
        return copy.deepcopy(parameter)
    if isinstance(parameter, str) and parameter == "mlp":
        return build()
    raise ValueError(bad_argument(name, "None, 'mlp' or an nn.Module", repr(parameter)))


def dtype_of(module: nn.Module) -> torch.dtype:
    """The floating dtype a module computes in."""
    tensors = [*module.parameters(), *module.buffers()]
    return next((t.dtype for t in tensors if t.is_floating_point()), torch.float32)


@torch.no_grad()
def encode_rows(encoder: nn.Module | None, x: Tensor, device: torch.device) -> Tensor:
    """The latent vectors of all rows, in blocks, as float32 on the CPU."""
    if encoder is None:
        return x
    encoder.eval().to(device)
    latent = torch.cat([_checked(encoder(part.to(device)), len(part)) for part in x.split(_ROWS)])
    encoder.cpu()
    return latent


def _checked(latent: Any, n: int) -> Tensor:
    if not isinstance(latent, Tensor) or latent.ndim != 2 or len(latent) != n:
        got = tuple(latent.shape) if isinstance(latent, Tensor) else type(latent).__name__
        raise ValueError(bad_argument("encoder", f"outputs of shape ({n}, features) for {n} rows", got))
    return latent.float().cpu()
