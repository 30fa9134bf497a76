"""What layers share: their parameters, how values find their variables, starting values from data."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument
from kdmkit.kernels import Kernel
from kdmkit.nn.initialize import Initializer, Method, Sigma, check_sigma
from kdmkit.nn.store import ComponentStore
from kdmkit.nn.variable import Variable


class Layer(Protocol):
    """A module with the parameters `components.<variable>`, `kernels.<variable>.…` and `logits`."""

    variables: dict[str, Variable]
    components: ComponentStore
    kernels: nn.ModuleDict
    logits: nn.Parameter


def attach(
    layer: Layer,
    variables: Sequence[Variable],
    n_components: int,
    train: Mapping[str, bool],
    dtype: torch.dtype | None,
    device: torch.device | str | None,
) -> None:
    """Gives a layer its parameters."""
    if not isinstance(n_components, int) or isinstance(n_components, bool) or n_components < 1:
        raise ValueError(bad_argument("n_components", "a whole number ≥ 1", n_components))
    dtype = torch.get_default_dtype() if dtype is None else dtype
    layer.variables = {variable.name: variable for variable in variables}
    layer.components = ComponentStore(
        variables, n_components, trainable=train["components"], dtype=dtype, device=device
    )
    kernels = {v.name: copy.deepcopy(v.kernel) for v in variables}
    for kernel in kernels.values():
        for parameter in kernel.parameters():
            # An infinite one (no smoothing at all) stands for a constant.
            parameter.requires_grad_(train["kernels"] and bool(torch.isfinite(parameter).all()))
    layer.kernels = nn.ModuleDict(kernels).to(device=device, dtype=dtype)
    logits: Float[Tensor, " m"] = torch.zeros(n_components, dtype=dtype, device=device)
    layer.logits = nn.Parameter(logits, requires_grad=train["weights"])


def kernels_of(layer: Layer) -> dict[str, Kernel]:
    return dict(layer.kernels.items())  # type: ignore[arg-type]


def by_name(
    argument: str, names: Sequence[str], values: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    """Values in the order of `names`, and those that came by name."""
    if len(values) > len(names):
        raise TypeError(bad_argument(argument, f"at most {len(names)}, for {', '.join(names)}", len(values)))
    repeated = [name for name in names[: len(values)] if name in named]
    if repeated:
        raise TypeError(bad_argument(argument, "each variable once", f"{', '.join(repeated)} twice"))
    return {**dict(zip(names, values, strict=False)), **named}


def initialize_from(
    layer: Layer,
    data: Mapping[str, Any],
    method: Method,
    sigma: Sigma,
    generator: torch.Generator | None,
) -> None:
    """Sets a layer's components, weights and bandwidths; where the data is bad, nothing changes."""
    if set(data) != set(layer.variables):
        raise ValueError(bad_argument("values", f"data for {list(layer.variables)}", list(data)))
    check_sigma(sigma)
    initializer = Initializer(list(layer.variables.values()), data, generator)
    components, logits = initializer.start(layer.logits.shape[0], method)
    with torch.no_grad():
        for name, kernel in kernels_of(layer).items():
            target = layer.components[name]
            target.copy_(components[name].to(target))
            kernel.initialize_bandwidth(target, sigma)
        layer.logits.copy_(logits.to(layer.logits))


def dtype_name(layer: Layer) -> str:
    return str(layer.logits.dtype).removeprefix("torch.")


def options_from(config: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of a layer's constructor that its configuration holds."""
    train = {f"train_{what}": flag for what, flag in config["train"].items()}
    return {**train, "dtype": getattr(torch, config["dtype"])}
