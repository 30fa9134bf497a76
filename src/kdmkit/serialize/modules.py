"""States of modules, and the encoders and decoders that the caller of `load` brings."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument, check_finite, check_positive
from kdmkit.kernels import Bandwidth
from kdmkit.nn import KDMLayer, Scaler
from kdmkit.serialize.values import check_types


class UserModuleError(ValueError):
    """The encoder or decoder that was given to `load` does not fit."""


@dataclass
class UserModules:
    """The encoder and decoder given to `load`; models get copies of them."""

    encoder: nn.Module | None = None
    decoder: nn.Module | None = None
    _lent: set[str] = field(default_factory=set)

    def lend(self, part: Literal["encoder", "decoder"], saved: str) -> nn.Module:
        """A copy of the encoder or decoder, where a model was saved with one of class `saved`."""
        module = getattr(self, part)
        if not isinstance(module, nn.Module):
            wanted = (
                f"load(path, {part}=...) with the {saved} it was saved with: only its weights are on disk"
            )
            raise UserModuleError(bad_argument(part, wanted, module))
        self._lent.add(part)
        return copy.deepcopy(module)

    def check_used(self) -> None:
        for part in ("encoder", "decoder"):
            if getattr(self, part) is not None and part not in self._lent:
                wanted = f"None: the model was not saved with {part} of the caller's"
                raise ValueError(bad_argument(part, wanted, type(getattr(self, part)).__name__))


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """A module's state, which must consist of tensors."""
    state = module.state_dict()
    other = [name for name, value in state.items() if not isinstance(value, Tensor)]
    if other:
        raise ValueError(
            bad_argument("model", "a state of tensors", f"{type(state[other[0]]).__name__} in {other[0]}")
        )
    return state


def put(module: nn.Module, tensors: dict[str, Tensor], own: str | None = None) -> None:
    """Loads saved tensors into a module; dtypes are those of the tensors.

    Args:
        own: the argument of `load` that the module came from, if it did.
    """
    try:
        _check_kinds(module.state_dict(), tensors)
        module.load_state_dict(tensors, assign=True)
    except (RuntimeError, ValueError) as error:
        if own is None:
            raise
        reasons = " ".join(str(error).split())
        raise UserModuleError(bad_argument(own, "parameters as they were saved", reasons)) from error


def _check_kinds(state: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
    """Floating-point numbers for such, and whole numbers for such."""
    for name in state.keys() & tensors.keys():
        new, old = tensors[name].dtype, state[name].dtype
        if new != old and not (new.is_floating_point and old.is_floating_point):
            raise ValueError(f"{new} in {name}, which holds {old}")


def check_values(module: nn.Module, own: tuple[str, ...] = ()) -> None:
    """Raises where a module holds numbers that no fit gives it.

    Args:
        own: how the names of the caller's tensors start, which may be anything.
    """
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point() and not name.startswith(own):
            # The logarithm of zero is legal.
            logarithm = name.rpartition(".")[-1].startswith("log")
            check_finite(name, tensor[tensor != -torch.inf] if logarithm else tensor)
    for part in module.modules():
        if isinstance(part, Bandwidth):
            check_positive(part.name, part.value.detach())
        if isinstance(part, Scaler):
            check_positive("scale", part.scale)
        if isinstance(part, KDMLayer):
            flags = part.config()["train"]
            check_types(flags, dict.fromkeys(flags, bool))


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names start with a prefix, without it."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
