"""States of modules, and the encoders and decoders that the caller of `load` brings."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor, nn

from kdmkit._core.checks import bad_argument


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
            raise ValueError(bad_argument(part, wanted, module))
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


def put(module: nn.Module, tensors: dict[str, Tensor], argument: str) -> None:
    """Loads saved tensors into a module; dtype and device are those of the tensors."""
    try:
        module.load_state_dict(tensors, assign=True)
    except RuntimeError as error:
        reasons = " ".join(str(error).split())
        raise ValueError(bad_argument(argument, "parameters as they were saved", reasons)) from error
    device = next((t.device for t in tensors.values()), None)
    if device is not None:
        module.to(device)  # for buffers that are not in the state


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names start with a prefix, without it."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
