"""Layers, predictors and distributions: their descriptions and tensors, with the caller's encoders.

The weights of an inferred KDM are computed and saved as numbers. The file holds neither the joint nor the
evidence: a loaded KDM has no `log_evidence`. A tree is saved with its evidence as numbers.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_type_hints

import torch
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument, check_finite, check_log_weights, check_positive
from kdmkit.distributions import KDM, JointKDM
from kdmkit.distributions.tree import TreeKDM
from kdmkit.kernels import Bandwidth, Kernel, kernel_from_config
from kdmkit.nn import MLP, ChainLayer, DensityLayer, JointLayer, KDMLayer, Predictor, Scaler, TreeLayer
from kdmkit.serialize.description import check_types

_DISTRIBUTIONS: dict[str, type] = {"KDM": KDM, "JointKDM": JointKDM, "TreeKDM": TreeKDM}
CLASSES: dict[str, type] = {
    "JointLayer": JointLayer,
    "DensityLayer": DensityLayer,
    "TreeLayer": TreeLayer,
    "ChainLayer": ChainLayer,
    "Predictor": Predictor,
    **_DISTRIBUTIONS,
}


class UserModuleError(ValueError):
    """The encoder or decoder that was given to `load` does not fit."""


@dataclass
class UserModules:
    """The encoder and decoder given to `load`; models get copies of them."""

    encoder: nn.Module | None = None
    decoder: nn.Module | None = None
    _lent: set[str] = field(default_factory=set)

    def lend(self, part: Literal["encoder", "decoder"], saved: str) -> nn.Module:
        """A copy of the encoder or decoder, for a model that was saved with one of class `saved`."""
        module = getattr(self, part)
        if not isinstance(module, nn.Module):
            wanted = (
                f"load(path, {part}=...) with the {saved} it was saved with: only its weights are on disk"
            )
            raise UserModuleError(bad_argument(part, wanted, module))
        self._lent.add(part)
        return copy.deepcopy(module)

    def check_used(self) -> None:
        for part in ("encoder", "decoder"):
            if getattr(self, part) is not None and part not in self._lent:
                wanted = f"None: the model was not saved with {part} of the caller's"
                raise ValueError(bad_argument(part, wanted, type(getattr(self, part)).__name__))


def pack(model: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if isinstance(model, TreeKDM):
        return _pack_tree(model)
    if isinstance(model, KDM | JointKDM):
        return _pack_mixture(model)
    key = "module" if isinstance(model, Predictor) else "layer"
    return {key: model.config()}, tensors_of(model)


def unpack(config: dict[str, Any], tensors: dict[str, Tensor], user: UserModules) -> Any:
    if config["class"] in _DISTRIBUTIONS:
        return _unpack_mixture(config, tensors, user)
    if config["class"] == "Predictor":
        return predictor_from(config["module"], tensors, user)
    return _unpack_layer(config, tensors, user)


# ---- layers and predictors


def _unpack_layer(config: dict[str, Any], tensors: dict[str, Tensor], user: UserModules) -> nn.Module:
    description = config["layer"]
    variables = description["variables"] if "variables" in description else [description["variable"]]
    composed = [v["name"] for v in variables if v["kernel"]["kernel"] == "Composed"]
    encoders = {name: user.lend("encoder", "module") for name in composed}
    layer = cast("type[KDMLayer]", CLASSES[config["class"]]).from_config(description, encoders=encoders)
    return filled(layer, tensors, tuple(f"kernels.{name}.encoder." for name in composed))


def filled(layer: Any, tensors: dict[str, Tensor], user_prefixes: tuple[str, ...] = ()) -> Any:
    """A layer with the saved numbers, which have to be those of a joint KDM or of a tree."""
    put(layer, tensors)
    check_values(layer, user_prefixes)
    components = {name: value.detach() for name, value in layer.components.items()}
    kernels = {name: layer.kernel(name) for name in components}
    # One index of components, also for a tree: its logits only have to be finite.
    log_weights = torch.log_softmax(layer.weight_logits.detach(), -1)
    JointKDM(components, None, kernels, log_weights=log_weights)
    return layer


def predictor_from(config: dict[str, Any], tensors: dict[str, Tensor], user: UserModules) -> Predictor:
    """A predictor with the saved numbers; the caller's encoder and decoder, if it was saved with such."""
    parts: tuple[Literal["encoder", "decoder"], ...] = ("encoder", "decoder")
    for part in parts:
        check_types((config[part] or {}).get("mlp") or {}, get_type_hints(MLP.__init__))
    lent = {part: _user_part(part, config[part], tensors, user) for part in parts}
    predictor = Predictor.from_config(config, **lent)
    put(predictor, tensors)
    check_values(predictor, tuple(f"{part}." for part in parts if lent[part] is not None))
    predictor.joint()
    return predictor


def _user_part(
    part: Literal["encoder", "decoder"],
    config: dict[str, Any] | None,
    tensors: dict[str, Tensor],
    user: UserModules,
) -> nn.Module | None:
    """The caller's module with the saved weights; None if the predictor was saved without one."""
    if config is None or "own" not in config:
        return None
    module = user.lend(part, config["own"])
    put(module, under(f"{part}.", tensors), part)
    return module


# ---- distributions


def _pack_mixture(rho: KDM | JointKDM) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if isinstance(rho, KDM):
        config, tensors = _pack_variables({"x": rho.components}, {"x": rho.kernel})
    else:
        config, tensors = _pack_variables(rho.components, rho.kernels)
    return config, {**tensors, "log_weights": rho.log_weights}


def _unpack_mixture(config: dict[str, Any], tensors: dict[str, Tensor], user: UserModules) -> Any:
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


# ---- states


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """A module's state, which must consist of tensors."""
    state = module.state_dict()
    other = [name for name, value in state.items() if not isinstance(value, Tensor)]
    if other:
        raise ValueError(
            bad_argument("model", "a state of tensors", f"{type(state[other[0]]).__name__} in {other[0]}")
        )
    return state


def put(module: nn.Module, tensors: dict[str, Tensor], argument: str | None = None) -> None:
    """Loads saved tensors into a module; dtypes are those of the tensors.

    Args:
        argument: the argument of `load` that the module came from, if it did.
    """
    try:
        _check_kinds(module.state_dict(), tensors)
        module.load_state_dict(tensors, assign=True)
    except (RuntimeError, ValueError) as error:
        if argument is None:
            raise
        reasons = " ".join(str(error).split())
        raise UserModuleError(bad_argument(argument, "parameters as they were saved", reasons)) from error


def _check_kinds(state: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
    """Raises if dtypes differ; floating-point numbers may have another precision."""
    for name in state.keys() & tensors.keys():
        new, old = tensors[name].dtype, state[name].dtype
        if new != old and not (new.is_floating_point and old.is_floating_point):
            raise ValueError(f"{new} in {name}, which holds {old}")


def check_values(module: nn.Module, user_prefixes: tuple[str, ...] = ()) -> None:
    """Raises if a module holds numbers that no fit gives it.

    Args:
        user_prefixes: prefixes of the names of the caller's tensors, which may hold anything.
    """
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point() and not name.startswith(user_prefixes):
            # The logarithm of zero is legal.
            logarithm = name.rpartition(".")[-1].startswith("log")
            check_finite(name, tensor[tensor != -torch.inf] if logarithm else tensor)
    for part in module.modules():
        if isinstance(part, Bandwidth):
            check_positive(part.name, part.value.detach())
        if isinstance(part, Scaler):
            check_positive("scale", part.scale)
        if isinstance(part, KDMLayer):
            flags = part.config()["train"]
            check_types(flags, dict.fromkeys(flags, bool))


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names start with a prefix, without it."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
