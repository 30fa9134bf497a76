"""Kernels by the name in their configuration."""

from typing import Any

from torch import nn

from kdmkit._core.checks import bad_argument, check_choice, check_instance
from kdmkit.kernels.base import Kernel

_KERNELS: dict[str, type[Kernel]] = {}


def register(*kernels: type[Kernel]) -> None:
    """Makes kernels known to `kernel_from_config` by the names of their classes."""
    _KERNELS.update({kernel.__name__: kernel for kernel in kernels})


def kernel_from_config(config: dict[str, Any], *, encoder: nn.Module | None = None) -> Kernel:
    """The kernel that `Kernel.config` described.

    >>> import kdmkit as kdm
    >>> kernel_from_config(kdm.RBF(0.3).config())
    RBF(sigma=0.3)
    """
    check_instance("config", config, dict, "what a kernel's config() returned")
    name = config.get("kernel")
    check_choice("config['kernel']", name, _KERNELS)
    try:
        return _KERNELS[str(name)].from_config(config, encoder=encoder)
    except KeyError as error:
        raise ValueError(bad_argument("config", f"{error} of a {name}", list(config))) from error


def check_kernel(argument: str, kernel: object) -> Kernel:
    if not isinstance(kernel, Kernel):
        raise TypeError(bad_argument(argument, "a kernel such as kdmkit.RBF(0.3)", type(kernel).__name__))
    return kernel
