"""Distributions: components, log-weights and the states of kernels.

The weights of an inferred KDM are computed and saved as numbers: the file holds neither the joint nor the
evidence, so what is loaded has no `log_evidence`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from kdmkit.distributions import KDM, JointKDM
from kdmkit.kernels import Kernel, kernel_from_config
from kdmkit.serialize.modules import UserModules, check_values, put, tensors_of, under

CLASSES: dict[str, type] = {"KDM": KDM, "JointKDM": JointKDM}


def pack(rho: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if isinstance(rho, KDM):
        components, kernels = {"x": rho.components}, {"x": rho.kernel}
    else:
        components, kernels = rho.components, rho.kernels
    tensors = {f"components.{name}": value for name, value in components.items()}
    for name, kernel in kernels.items():
        tensors |= {f"kernels.{name}.{key}": value for key, value in tensors_of(kernel).items()}
    config = {"kernels": {name: kernel.config() for name, kernel in kernels.items()}}
    return config, {**tensors, "log_weights": rho.log_weights}


def unpack(config: dict[str, Any], tensors: dict[str, Tensor], own: UserModules) -> Any:
    kernels = {name: _kernel(name, c, tensors, own) for name, c in config["kernels"].items()}
    # A file's tensors come in the order of their names, the variables in their own.
    components = {name: tensors[f"components.{name}"] for name in kernels}
    log_weights = tensors["log_weights"]
    if config["class"] == "JointKDM":
        return JointKDM(components, None, kernels, log_weights=log_weights)
    return KDM(components["x"], None, kernels["x"], log_weights=log_weights)


def _kernel(name: str, config: dict[str, Any], tensors: dict[str, Tensor], own: UserModules) -> Kernel:
    encoder = own.lend("encoder", "module") if config["kernel"] == "Composed" else None
    kernel = kernel_from_config(config, encoder=encoder)
    put(kernel, under(f"kernels.{name}.", tensors), None if encoder is None else "encoder")
    check_values(kernel, ("encoder.",))
    return kernel.requires_grad_(False)
