"""What a layer knows of a variable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from kdmkit._core.checks import as_shape, bad_argument
from kdmkit.distributions.arguments import RESERVED
from kdmkit.kernels import Kernel, check_kernel, kernel_from_config

# `infer` and `initialize` take variables by name, and have these arguments of their own.
_ARGUMENTS = (*RESERVED, "method", "sigma", "generator")


@dataclass(frozen=True)
class Variable:
    """A named variable of a layer: its kernel and the shape of one event.

    Args:
        name: the variable's name, as `infer` and `log_prob` will use it.
        kernel: copied by the layer, never shared.
        shape: the event shape, `(d,)`; a number means `(d,)`; `()` for Categorical codes.

    >>> import kdmkit as kdm
    >>> Variable("age", kdm.RBF(5.0), 1).shape
    torch.Size([1])
    """

    name: str
    kernel: Kernel
    shape: torch.Size

    def __init__(self, name: str, kernel: Kernel, shape: int | tuple[int, ...] | torch.Size) -> None:
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(bad_argument("name", "a Python identifier", repr(name)))
        if name in _ARGUMENTS:
            raise ValueError(bad_argument("name", f"one other than {', '.join(_ARGUMENTS)}", repr(name)))
        check_kernel(f"kernel of {name!r}", kernel)
        size = as_shape(f"shape of {name!r}", shape)
        if len(size) != kernel.event_dim or 0 in size:
            wanted = f"{kernel.event_dim} positive dimension(s) for {type(kernel).__name__}"
            raise ValueError(bad_argument(f"shape of {name!r}", wanted, tuple(size)))
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "kernel", kernel)
        object.__setattr__(self, "shape", size)

    @property
    def trainable(self) -> bool:
        """Whether components of this variable can move: codes cannot."""
        return self.kernel.components_trainable

    def config(self) -> dict[str, Any]:
        """Name, kernel and shape in the types of JSON."""
        return {"name": self.name, "kernel": self.kernel.config(), "shape": list(self.shape)}

    @classmethod
    def from_config(cls, config: dict[str, Any], *, encoder: nn.Module | None = None) -> Variable:
        """The variable that `config` described; `encoder` is that of a `Composed` kernel."""
        kernel = kernel_from_config(config["kernel"], encoder=encoder)
        return cls(config["name"], kernel, tuple(config["shape"]))
