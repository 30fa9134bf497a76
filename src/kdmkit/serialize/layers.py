"""Layers and predictors: their configurations and their states."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, nn

from kdmkit.nn import DensityLayer, JointLayer, Predictor
from kdmkit.serialize.modules import UserModules, put, tensors_of, under

CLASSES: dict[str, type] = {"JointLayer": JointLayer, "DensityLayer": DensityLayer, "Predictor": Predictor}


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
    layer: nn.Module = CLASSES[config["class"]].from_config(description, encoders=encoders)  # type: ignore[attr-defined]
    put(layer, tensors, "model.safetensors")
    return layer


def predictor_from(config: dict[str, Any], tensors: dict[str, Tensor], own: UserModules) -> Predictor:
    """A predictor with the saved numbers, and with the caller's encoder and decoder where it had such."""
    parts: tuple[Literal["encoder", "decoder"], ...] = ("encoder", "decoder")
    lent = {part: _own_part(part, config[part], tensors, own) for part in parts}
    predictor = Predictor.from_config(config, **lent)
    put(predictor, tensors, "model.safetensors")
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
