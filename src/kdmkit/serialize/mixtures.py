"""KDMs, joint KDMs and trees: components, log-weights and the states of kernels.

The weights of an inferred KDM are computed and saved as numbers. The file holds neither the joint nor the
evidence: a loaded KDM has no `log_evidence`. A tree is saved with its evidence as numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kdmkit._core.checks import bad_argument, check_log_weights
from kdmkit.distributions import KDM, JointKDM, TreeKDM
from kdmkit.kernels import Kernel, kernel_from_config
from kdmkit.serialize.modules import UserModules, check_values, put, tensors_of, under

CLASSES: dict[str, type] = {"KDM": KDM, "JointKDM": JointKDM, "TreeKDM": TreeKDM}


def pack(rho: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if isinstance(rho, TreeKDM):
        return _pack_tree(rho)
    if isinstance(rho, KDM):
        config, tensors = _pack_variables({"x": rho.components}, {"x": rho.kernel})
    else:
        config, tensors = _pack_variables(rho.components, rho.kernels)
    return config, {**tensors, "log_weights": rho.log_weights}


def unpack(config: dict[str, Any], tensors: dict[str, Tensor], user: UserModules) -> Any:
    kernels = {name: _kernel(name, c, tensors, user) for name, c in config["kernels"].items()}
    # The tensors of a file are in the order of their names; the variables are in that of the description.
    components = {name: tensors[f"components.{name}"] for name in kernels}
    if config["class"] == "TreeKDM":
        return _unpack_tree(config, components, kernels, tensors)
    log_weights = tensors["log_weights"]
    if config["class"] == "JointKDM":
        return JointKDM(components, None, kernels, log_weights=log_weights)
    return KDM(components["x"], None, kernels["x"], log_weights=log_weights)


def _pack_variables(
    components: dict[str, Tensor], kernels: dict[str, Kernel]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Descriptions of kernels, and the tensors of kernels and components."""
    tensors = {f"components.{name}": value for name, value in components.items()}
    for name, kernel in kernels.items():
        tensors |= {f"kernels.{name}.{key}": value for key, value in tensors_of(kernel).items()}
    return {"kernels": {name: kernel.config() for name, kernel in kernels.items()}}, tensors


def _kernel(name: str, config: dict[str, Any], tensors: dict[str, Tensor], user: UserModules) -> Kernel:
    encoder = user.lend("encoder", "module") if config["kernel"] == "Composed" else None
    kernel = kernel_from_config(config, encoder=encoder)
    put(kernel, under(f"kernels.{name}.", tensors), None if encoder is None else "encoder")
    check_values(kernel, ("encoder.",))
    return kernel.requires_grad_(False)


# ---- trees


def _pack_tree(tree: TreeKDM) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config, tensors = _pack_variables(tree.components, tree.kernels)
    config |= {"parents": tree.parents, "nodes": {node: list(names) for node, names in tree.nodes.items()}}
    tensors["log_root_weights"] = tree.log_root_weights
    tensors |= {f"log_edge_weights.{node}": table for node, table in tree.log_edge_weights.items()}
    evidence = tree._evidence()
    if evidence is not None:
        factors, log_weights, log_evidence = evidence
        tensors |= {f"evidence.{node}": factor for node, factor in factors.items()}
        tensors |= {} if log_weights is None else {"evidence_log_weights": log_weights}
        tensors["log_evidence"] = log_evidence
    return config, tensors


def _unpack_tree(
    config: dict[str, Any],
    components: dict[str, Tensor],
    kernels: dict[str, Kernel],
    tensors: dict[str, Tensor],
) -> TreeKDM:
    tree = TreeKDM(
        components,
        kernels,
        config["parents"],
        nodes=config["nodes"],
        log_root_weights=tensors["log_root_weights"],
        log_edge_weights=under("log_edge_weights.", tensors),
    )
    if "log_evidence" not in tensors:
        return tree
    factors = under("evidence.", tensors)
    _check_evidence(tree, factors, tensors)
    return tree._with_evidence(factors, tensors.get("evidence_log_weights"), tensors["log_evidence"])


def _check_evidence(tree: TreeKDM, factors: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
    """Raises unless the factors of nodes are logarithms, of one batch, for the states of the nodes."""
    sizes, batches = tree.n_components, []
    weights = tensors.get("evidence_log_weights")
    pieces = 1 if weights is None else weights.shape[-1]
    for node, factor in factors.items():
        if factor.ndim < 2 or factor.shape[-1] != sizes[node] or factor.shape[0] not in (1, pieces):
            wanted = f"shape ({pieces}, ..., {sizes[node]})"
            raise ValueError(bad_argument(f"evidence.{node}", wanted, tuple(factor.shape)))
        batches.append(factor.shape[1:-1])
    if weights is not None:
        check_log_weights("evidence_log_weights", weights)
        batches.append(weights.shape[:-1])
    if tensors["log_evidence"].shape != torch.broadcast_shapes(*batches):
        got = tuple(tensors["log_evidence"].shape)
        raise ValueError(bad_argument("log_evidence", f"the batch of the evidence, {batches}", got))
    for name in [*(f"evidence.{node}" for node in factors), "log_evidence"]:
        value = tensors[name]
        if not value.is_floating_point() or bool(value.isnan().any()) or bool((value == torch.inf).any()):
            raise ValueError(bad_argument(name, "numbers below +∞", "others"))
