"""Trees of joint KDMs: components, log-weights of root and edges, states of kernels, evidence as numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kdmkit._core.checks import bad_argument, check_log_weights
from kdmkit.distributions import TreeKDM
from kdmkit.serialize.distributions import pack_variables, unpack_variables
from kdmkit.serialize.modules import UserModules, under

CLASSES: dict[str, type] = {"TreeKDM": TreeKDM}


def pack(tree: TreeKDM) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config, tensors = pack_variables(tree.components, tree.kernels)
    config |= {"parents": tree.parents, "nodes": {node: list(held) for node, held in tree.nodes.items()}}
    tensors["log_root_weights"] = tree.log_root_weights
    tensors |= {f"log_edge_weights.{node}": table for node, table in tree.log_edge_weights.items()}
    evidence = tree._evidence()
    if evidence is not None:
        factors, log_weights, log_evidence = evidence
        tensors |= {f"evidence.{node}": factor for node, factor in factors.items()}
        tensors |= {} if log_weights is None else {"evidence_log_weights": log_weights}
        tensors["log_evidence"] = log_evidence
    return config, tensors


def unpack(config: dict[str, Any], tensors: dict[str, Tensor], own: UserModules) -> TreeKDM:
    components, kernels = unpack_variables(config, tensors, own)
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
    """Raises where factors of nodes are not logarithms, of one batch, for the states of the nodes."""
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
