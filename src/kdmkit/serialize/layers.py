"""Layers: their own configuration, and their state."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from kdmkit.nn import DensityLayer, JointLayer
from kdmkit.serialize.modules import Own, put, tensors_of

CLASSES: dict[str, type] = {"JointLayer": JointLayer, "DensityLayer": DensityLayer}


def pack(layer: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    return {"layer": layer.config()}, tensors_of(layer)


def unpack(config: dict[str, Any], tensors: dict[str, Tensor], own: Own) -> Any:
    description = config["layer"]
    if config["class"] == "DensityLayer":
        layer: JointLayer | DensityLayer = DensityLayer.from_config(description)
    else:
        composed = [v["name"] for v in description["variables"] if v["kernel"]["kernel"] == "Composed"]
        encoders = {name: own.lend("encoder", "module") for name in composed}
        layer = JointLayer.from_config(description, encoders=encoders)
    put(layer, tensors, "model.safetensors")
    return layer
