"""Estimators: parameters, fitted attributes, and the module behind them."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument
from kdmkit.estimators import KDMClassifier, KDMDensity, KDMProportionClassifier, KDMRegressor
from kdmkit.nn import DensityLayer
from kdmkit.serialize.layers import predictor_from
from kdmkit.serialize.modules import UserModules, put, tensors_of
from kdmkit.serialize.values import decode, encode

CLASSES: dict[str, type[BaseEstimator]] = {
    "KDMDensity": KDMDensity,
    "KDMClassifier": KDMClassifier,
    "KDMRegressor": KDMRegressor,
    "KDMProportionClassifier": KDMProportionClassifier,
}

# The seed of draws, the number of draws so far, and whether targets were one-dimensional.
_PRIVATE = ("_seed", "_n_draws", "_flat_target")


def pack(estimator: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    check_is_fitted(estimator)
    parameters = estimator.get_params(deep=False)
    if not isinstance(parameters["random_state"], int | np.integer):
        parameters["random_state"] = None  # a stream of random numbers is not saved
    fitted = {k: v for k, v in vars(estimator).items() if _is_fitted_state(k)}
    config = {
        "parameters": {name: encode(name, value) for name, value in parameters.items()},
        "fitted": {name: encode(name, value) for name, value in fitted.items()},
        "module": estimator.module_.config(),
    }
    return config, tensors_of(estimator.module_)


def _is_fitted_state(name: str) -> bool:
    """Whether an attribute was set by `fit`, rather than by the constructor or by scikit-learn."""
    return name in _PRIVATE or (name.endswith("_") and name != "module_")


def unpack(config: dict[str, Any], tensors: dict[str, Tensor], own: UserModules) -> Any:
    cls = CLASSES[config["class"]]
    module = _module(cls, config["module"], tensors, own)
    parameters = {name: _parameter(name, value, own) for name, value in config["parameters"].items()}
    estimator = cls(**parameters)
    for name, value in config["fitted"].items():
        if hasattr(cls, name):
            raise ValueError(
                bad_argument("config.json", "fitted attributes", f"{name!r}, which belongs to the class")
            )
        setattr(estimator, name, decode(value))
    estimator.module_ = module.requires_grad_(False).eval()
    return estimator


def _parameter(name: str, value: Any, own: UserModules) -> Any:
    if isinstance(value, dict) and "$module" in value:
        return getattr(own, name)
    return decode(value)


def _module(cls: type, config: dict[str, Any], tensors: dict[str, Tensor], own: UserModules) -> nn.Module:
    if cls is not KDMDensity:
        return predictor_from(config, tensors, own)
    layer = DensityLayer.from_config(config)
    put(layer, tensors, "model.safetensors")
    return layer
