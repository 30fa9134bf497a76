"""Kernels by the name in their configuration."""

from typing import Any

from torch import nn

from kdmkit._core.checks import bad_argument, check_choice, check_instance
from kdmkit.kernels.base import Kernel

_KERNELS: dict[str, type[Kernel]] = {}
# Kernels of earlier versions, and what to use instead.
_REMOVED = {"Ordinal": "fit again with Levels, or with Rounded for counts"}


def register(*kernels: type[Kernel]) -> None:
    """Lets `kernel_from_config` make kernels by the names of their classes.

    Args:
        kernels: final classes of kernels.

    >>> import kdmkit as kdm
    >>> register(kdm.RBF)  # once more changes nothing
    """
    _KERNELS.update({kernel.__name__: kernel for kernel in kernels})


def kernel_from_config(config: dict[str, Any], *, encoder: nn.Module | None = None) -> Kernel:
    """The kernel that `Kernel.config` described.

    Args:
        config: as `Kernel.config` gives it.
        encoder: of a `Composed` kernel, whose weights the configuration does not hold.

    Returns:
        A new kernel.

    >>> import kdmkit as kdm
    >>> kernel_from_config(kdm.RBF(0.3).config())
    RBF(sigma=0.3)
    """
    check_instance("config", config, dict, "what a kernel's config() returned")
    name = config.get("kernel")
    if name in _REMOVED:
        raise ValueError(
            bad_argument("config['kernel']", f"a kernel of this version ({_REMOVED[name]})", name)
        )
    check_choice("config['kernel']", name, _KERNELS)
    try:
        return _KERNELS[str(name)].from_config(config, encoder=encoder)
    except KeyError as error:
        raise ValueError(bad_argument("config", f"{error} of a {name}", list(config))) from error


def check_kernel(argument: str, kernel: object) -> Kernel:
    """The argument, if it is a kernel; otherwise a TypeError names its class.

    Args:
        argument: the name of the argument, for the error.
        kernel: the value of the argument.

    Returns:
        The kernel itself.

    >>> import kdmkit as kdm
    >>> check_kernel("kernel", kdm.RBF(0.3))
    RBF(sigma=0.3)
    """
    if not isinstance(kernel, Kernel):
        raise TypeError(bad_argument(argument, "a kernel such as kdmkit.RBF(0.3)", type(kernel).__name__))
    return kernel
