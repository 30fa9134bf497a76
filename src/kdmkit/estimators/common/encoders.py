"""Encoders and decoders: multi-layer perceptrons, or copies of the user's modules."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from kdmkit._core.checks import bad_argument
from kdmkit.nn import MLP

_HIDDEN, _LATENT = 128, 16


def build_module(parameter: Any, name: str, build: Callable[[], nn.Module]) -> nn.Module | None:
    """The encoder or decoder that a constructor parameter means: none, `"mlp"`, or a copy of a module."""
    if parameter is None:
        return None
    if isinstance(parameter, nn.Module):
        return copy.deepcopy(parameter)
    if is_built_in(parameter):
        return build()
    raise ValueError(bad_argument(name, "None, 'mlp' or an nn.Module", repr(parameter)))


def is_built_in(parameter: Any) -> bool:
    """Whether a constructor parameter means the encoder of this module."""
    return isinstance(parameter, str) and parameter == "mlp"


def mlp_encoder(features: int, generator: torch.Generator) -> MLP:
    """An encoder from rows to latent vectors."""
    return MLP([features, _HIDDEN, _HIDDEN, _LATENT], generator=generator)


def reconstructing_encoder(features: int, generator: torch.Generator) -> MLP:
    """A larger encoder, for latent vectors that keep more than a label."""
    sizes = [features, 2 * _HIDDEN, 2 * _HIDDEN, 2 * _LATENT]
    return MLP(sizes, dropout=0.2, clip=True, generator=generator)


def mlp_decoder(latent: int, shape: tuple[int, ...], generator: torch.Generator) -> MLP:
    """A decoder from latent vectors to inputs of any shape."""
    sizes = [latent, _HIDDEN, _HIDDEN, math.prod(shape)]
    event = None if len(shape) == 1 else list(shape)
    return MLP(sizes, dropout=0.0, normalize=False, shape=event, generator=generator)
