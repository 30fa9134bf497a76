"""Checks of the parts that users give a tree, and its states from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from kdmkit._core.checks import as_tensor, bad_argument, check_instance
from kdmkit.distributions.arguments import check_components, common_batch
from kdmkit.distributions.tree.states import States, Topology
from kdmkit.distributions.weights import as_log_weights
from kdmkit.kernels import Kernel
from kdmkit.ops.messages import Tables


def count_states(
    topology: Topology, components: Mapping[str, Tensor], kernels: Mapping[str, Kernel]
) -> list[int | None]:
    """The number of components of every node; None for a latent node.

    Raises unless the nodes have exactly the variables of the kernels.
    """
    if set(topology.node_of) != set(kernels):
        wanted = f"the variables of components, {list(kernels)}"
        raise ValueError(bad_argument("parents, nodes", wanted, sorted(topology.node_of)))
    sizes: list[int | None] = []
    for node, variables in zip(topology.nodes, topology.variables, strict=True):
        counts = {}
        for name in variables:
            dim = check_components(f"components[{name!r}]", components[name], kernels[name])
            counts[name] = components[name].shape[dim]
        if len(set(counts.values())) > 1:
            wanted = f"the same number of components for all variables of node {node!r}"
            raise ValueError(bad_argument("components", wanted, counts))
        sizes.append(next(iter(counts.values()), None))
    return sizes


def build_states(
    topology: Topology,
    counts: list[int | None],
    root: tuple[Any, Any],
    edges: tuple[Any, Any],
    like: Tensor,
    *,
    validate: bool,
) -> States:
    """The tree of indices from weights or their logarithms.

    Args:
        counts: from `count_states`.
        root, edges: the weights, and their logarithms; one of each pair is None.
        like: a tensor with the dtype and device that plain numbers get.
    """
    argument, given, is_log = _either("edge_weights", *edges)
    given = {} if given is None else given
    check_instance(argument, given, Mapping, "a mapping from node to weights (k_parent, k_node)")
    if set(given) != set(topology.nodes[1:]):
        wanted = f"weights of every node but the root, {list(topology.nodes[1:])}"
        raise ValueError(bad_argument(argument, wanted, list(given)))
    tensors = {node: as_tensor(f"{argument}[{node!r}]", value, like=like) for node, value in given.items()}
    log_root = _root(topology, counts, root, like, validate)
    counts[0] = log_root.shape[-1]
    logs = []
    for i, node in enumerate(topology.nodes):
        if i:
            name, tensor = f"{argument}[{node!r}]", tensors[node]
            counts[i] = tensor.shape[-1] if counts[i] is None and tensor.ndim else counts[i]
            _check_shape(name, tensor, counts[topology.parents[i]], counts[i])
            logs.append(as_log_weights(name, tensor, is_log, like, validate))
    shapes = {f"{argument}[{n!r}]": log.shape[:-2] for n, log in zip(topology.nodes[1:], logs, strict=True)}
    common_batch({"root_weights": log_root.shape[:-1], **shapes})
    return States(topology, log_root, Tables.of(logs))


def _either(argument: str, weights: Any, log_weights: Any) -> tuple[str, Any, bool]:
    """The argument that the user gave: its name, its value, and whether it is the logarithm."""
    if weights is not None and log_weights is not None:
        raise ValueError(bad_argument(argument, f"either {argument} or log_{argument}", "both"))
    return (argument, weights, False) if log_weights is None else (f"log_{argument}", log_weights, True)


def _root(
    topology: Topology, counts: list[int | None], root: tuple[Any, Any], like: Tensor, validate: bool
) -> Tensor:
    argument, given, is_log = _either("root_weights", *root)
    k = counts[0]
    if given is None:
        if k is None:
            wanted = f"weights, since the root {topology.nodes[0]!r} holds no variable"
            raise ValueError(bad_argument(argument, wanted, None))
        return torch.full((k,), -math.log(k), dtype=like.dtype, device=like.device)
    tensor = as_tensor(argument, given, like=like)
    if tensor.ndim == 0 or tensor.shape[-1] == 0 or (k is not None and tensor.shape[-1] != k):
        wanted = f"shape (..., {'k' if k is None else k}), one per component of the root"
        raise ValueError(bad_argument(argument, wanted, tuple(tensor.shape)))
    return as_log_weights(argument, tensor, is_log, like, validate)


def _check_shape(argument: str, tensor: Tensor, k_parent: int | None, k: int | None) -> None:
    if tensor.ndim < 2 or tensor.shape[-2] != k_parent or tensor.shape[-1] != k or not k:
        wanted = f"shape (..., {k_parent}, {k}), a row per component of the parent"
        raise ValueError(bad_argument(argument, wanted, tuple(tensor.shape)))
