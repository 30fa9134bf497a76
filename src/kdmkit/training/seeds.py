"""Seeds of independent random streams, and torch's global generator."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.lazy import LazyModuleMixin

# Modules whose classes are defined here draw from the generator of the fit, or not at all.
_TRUSTED = ("torch.", "kdmkit.nn.", "kdmkit.kernels.", "kdmkit.training.", "kdmkit.estimators.")
# torch's modules that draw from the global generator. Others do if they have an attribute `dropout`.
_RANDOM = (_DropoutNd, LazyModuleMixin, nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)
# There is one global generator: only one fit at a time may set its seed.
_GLOBAL = threading.RLock()


def derive_seed(seed: int, *key: int) -> int:
    """The seed of one of many independent random streams.

    Args:
        seed: of all streams.
        key: names the stream.

    >>> derive_seed(0, 1) == derive_seed(0, 1), derive_seed(0, 1) == derive_seed(0, 1, 0)
    (True, False)
    """
    return int(np.random.SeedSequence(seed, spawn_key=key).generate_state(1, np.uint64)[0])


def draws_globally(module: object) -> bool:
    """Whether a module may draw from torch's global generator: torch's dropout, classes of unknown origin.

    >>> draws_globally(nn.Linear(2, 2)), draws_globally(nn.Sequential(nn.Dropout(0.1)))
    (False, True)
    """
    if not isinstance(module, nn.Module):
        return False
    for part in module.modules():
        if not type(part).__module__.startswith(_TRUSTED) or isinstance(part, _RANDOM):
            return True
        if getattr(part, "dropout", 0):
            return True
    return False


def is_replayable(module: nn.Module) -> bool:
    """Whether steps of a module can be replayed as a graph.

    All its parts are torch's or the library's, or have a true attribute `replayable`, and have no hooks.
    """
    for part in module.modules():
        is_trusted = type(part).__module__.startswith(_TRUSTED) or getattr(part, "replayable", False)
        if part._forward_hooks or not is_trusted:
            return False
    return True


@contextmanager
def global_seed(seed: int, device: torch.device) -> Iterator[None]:
    """Sets the seed of torch's global generators; afterwards they are as before."""
    cuda = device.type == "cuda"
    with _GLOBAL, torch.random.fork_rng([device] if cuda else []):
        # torch.manual_seed would also seed devices that this fit does not use.
        torch.default_generator.manual_seed(seed)
        if cuda:
            torch.cuda.manual_seed(seed)
        yield
