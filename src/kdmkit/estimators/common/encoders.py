"""Encoders and decoders that estimators build themselves, and those that users bring."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument
from kdmkit.nn.predictor import BLOCK


def build_module(parameter: Any, name: str, build: Callable[[], nn.Module]) -> nn.Module | None:
    """The encoder or decoder that a constructor parameter means: none, `"mlp"`, or a copy of a module."""
    if parameter is None:
        return None
    if isinstance(parameter, nn.Module):
        return copy.deepcopy(parameter)
    if isinstance(parameter, str) and parameter == "mlp":
        return build()
    raise ValueError(bad_argument(name, "None, 'mlp' or an nn.Module", repr(parameter)))


@torch.no_grad()
def encode_rows(encoder: nn.Module | None, x: Tensor, device: torch.device) -> Tensor:
    """The latent vectors of all rows, in blocks, as float32 on the CPU."""
    if encoder is None:
        return x
    encoder.eval().to(device)
    latent = torch.cat([_checked(encoder(part.to(device)), len(part)) for part in x.split(BLOCK)])
    encoder.cpu()
    return latent


def _checked(latent: Any, n: int) -> Tensor:
    if not isinstance(latent, Tensor) or latent.ndim != 2 or len(latent) != n:
        got = tuple(latent.shape) if isinstance(latent, Tensor) else type(latent).__name__
        raise ValueError(bad_argument("encoder", f"outputs of shape ({n}, features) for {n} rows", got))
    return latent.float().cpu()
