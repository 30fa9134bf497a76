"""Models of earlier formats, brought up to date before they are read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kdmkit.nn.scaler import LARGEST_INPUT

# Format 1 (kdmkit 0.1): names of a regressor's trend.
_TREND_KEYS = {
    "trend.committee.": "trend.ensemble.",
    "trend.typical": "trend.typical_variance",
}
# Scalers, which had no limit in earlier versions.
_SCALERS = ("scaler.", "trend.x.", "trend.y.")


def upgrade(config: dict[str, Any], tensors: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Configuration and tensors as the present format has them."""
    for scaler in _SCALERS:
        if f"{scaler}shift" in tensors:
            limit = torch.tensor(LARGEST_INPUT, dtype=torch.float64)
            tensors = {f"{scaler}limit": limit, **tensors}
    if config["format"] >= 2:
        return config, tensors
    if "parameters" in config:
        config = {**config, "parameters": {**config["parameters"], "checkpoint_dir": None}}
    trend = (config.get("module") or {}).get("trend")
    if trend is None:
        return config, tensors
    trend = {"ensemble": trend["committee"], "memory": trend["memory"]}
    config = {**config, "module": {**config["module"], "trend": trend}}
    return config, {_renamed(name): tensor for name, tensor in tensors.items()}


def _renamed(name: str) -> str:
    for old, new in _TREND_KEYS.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name
