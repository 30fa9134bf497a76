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
        config, tensors = pack_variables({"x": rho.components}, {"x": rho.kernel})
    else:
        config, tensors = pack_variables(rho.components, rho.kernels)
    return config, {**tensors, "log_weights": rho.log_weights}


def pack_variables(
    components: dict[str, Tensor], kernels: dict[str, Kernel]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Descriptions of kernels, and the tensors of kernels and components."""
    tensors = {f"components.{name}": value for name, value in components.items()}
    for name, kernel in kernels.items():
        tensors |= {f"kernels.{name}.{key}": value for key, value in tensors_of(kernel).items()}
    return {"kernels": {name: kernel.config() for name, kernel in kernels.items()}}, tensors


def unpack(config: dict[str, Any], tensors: dict[str, Tensor], own: UserModules) -> Any:
    components, kernels = unpack_variables(config, tensors, own)
    log_weights = tensors["log_weights"]
    if config["class"] == "JointKDM":
        return JointKDM(components, None, kernels, log_weights=log_weights)
    return KDM(components["x"], None, kernels["x"], log_weights=log_weights)


def unpack_variables(
    config: dict[str, Any], tensors: dict[str, Tensor], own: UserModules
) -> tuple[dict[str, Tensor], dict[str, Kernel]]:
    """Components and kernels by variable."""
    kernels = {name: _kernel(name, c, tensors, own) for name, c in config["kernels"].items()}
    # A file's tensors come in the order of their names, the variables in their own.
    return {name: tensors[f"components.{name}"] for name in kernels}, kernels


def _kernel(name: str, config: dict[str, Any], tensors: dict[str, Tensor], own: UserModules) -> Kernel:
    encoder = own.lend("encoder", "module") if config["kernel"] == "Composed" else None
    kernel = kernel_from_config(config, encoder=encoder)
    put(kernel, under(f"kernels.{name}.", tensors), None if encoder is None else "encoder")
    check_values(kernel, ("encoder.",))
    return kernel.requires_grad_(False)
