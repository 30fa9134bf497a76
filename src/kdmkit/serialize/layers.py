"""Layers and predictors: their configurations and their states."""

from __future__ import annotations

from typing import Any, Literal, cast, get_type_hints

import torch
from torch import Tensor, nn

from kdmkit.distributions import JointKDM
from kdmkit.nn import MLP, DensityLayer, JointLayer, KDMLayer, Predictor, TreeLayer
from kdmkit.serialize.modules import UserModules, check_values, put, tensors_of, under
from kdmkit.serialize.values import check_types

CLASSES: dict[str, type] = {
    "JointLayer": JointLayer,
    "DensityLayer": DensityLayer,
    "TreeLayer": TreeLayer,
    "Predictor": Predictor,
}


def pack(module: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    key = "module" if isinstance(module, Predictor) else "layer"
    return {key: module.config()}, tensors_of(module)


def unpack(config: dict[str, Any], tensors: dict[str, Tensor], own: UserModules) -> nn.Module:
    if config["class"] == "Predictor":
        return predictor_from(config["module"], tensors, own)
    description = config["layer"]
    variables = description["variables"] if "variables" in description else [description["variable"]]
    composed = [v["name"] for v in variables if v["kernel"]["kernel"] == "Composed"]
    encoders = {name: own.lend("encoder", "module") for name in composed}
    layer = cast("type[KDMLayer]", CLASSES[config["class"]]).from_config(description, encoders=encoders)
    return filled(layer, tensors, tuple(f"kernels.{name}.encoder." for name in composed))


def filled(layer: Any, tensors: dict[str, Tensor], own: tuple[str, ...] = ()) -> Any:
    """A layer with the saved numbers, which have to be those of a joint KDM or of a tree."""
    put(layer, tensors)
    check_values(layer, own)
    components = {name: value.detach() for name, value in layer.components.items()}
    kernels = {name: layer.kernel(name) for name in components}
    # One index of components, also for a tree: its logits have no other demand than to be finite.
    log_weights = torch.log_softmax(layer.weight_logits.detach(), -1)
    JointKDM(components, None, kernels, log_weights=log_weights)
    return layer


def predictor_from(config: dict[str, Any], tensors: dict[str, Tensor], own: UserModules) -> Predictor:
    """A predictor with the saved numbers, and with the caller's encoder and decoder where it had such."""
    parts: tuple[Literal["encoder", "decoder"], ...] = ("encoder", "decoder")
    for part in parts:
        check_types((config[part] or {}).get("mlp") or {}, get_type_hints(MLP.__init__))
    lent = {part: _own_part(part, config[part], tensors, own) for part in parts}
    predictor = Predictor.from_config(config, **lent)
    put(predictor, tensors)
    check_values(predictor, tuple(f"{part}." for part in parts if lent[part] is not None))
    predictor.joint()
    return predictor


def _own_part(
    part: Literal["encoder", "decoder"],
    config: dict[str, Any] | None,
    tensors: dict[str, Tensor],
    own: UserModules,
) -> nn.Module | None:
    """The caller's module with its weights, where the predictor was saved with one."""
    if config is None or "own" not in config:
        return None
    module = own.lend(part, config["own"])
    put(module, under(f"{part}.", tensors), part)
    return module
