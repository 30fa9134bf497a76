"""Estimators: parameters, fitted attributes, and the module behind them."""

from __future__ import annotations

from typing import Any, Literal, get_type_hints

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument
from kdmkit.estimators import KDMClassifier, KDMDensity, KDMProportionClassifier, KDMRegressor
from kdmkit.nn import DensityLayer
from kdmkit.nn.mixture_layer import prepare_layers
from kdmkit.serialize.description import check_sizes
from kdmkit.serialize.layers import filled, predictor_from
from kdmkit.serialize.modules import UserModules, tensors_of
from kdmkit.serialize.values import check_types, decode, encode

CLASSES: dict[str, type[BaseEstimator]] = {
    "KDMDensity": KDMDensity,
    "KDMClassifier": KDMClassifier,
    "KDMRegressor": KDMRegressor,
    "KDMProportionClassifier": KDMProportionClassifier,
}

# The seed of draws, the number of draws so far, and whether targets were one-dimensional.
_PRIVATE = ("_seed", "_n_draws", "_flat_target")


# Parameters whose constructors take anything.
_PARAMETERS: dict[str, Any] = {
    "encoder": nn.Module | Literal["mlp"] | None,
    "decoder": nn.Module | Literal["mlp"] | None,
    "checkpoint_dir": None,
    "random_state": int | None,
}
_FITTED: dict[str, Any] = {
    "n_features_in_": int,
    "classes_": np.ndarray,
    "class_prior_": np.ndarray,
    "feature_names_in_": np.ndarray,
    "n_samples_seen_": int,
    "_seed": int,
    "_n_draws": int,
    "_flat_target": bool,
}


def pack(estimator: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    check_is_fitted(estimator)
    parameters = saved_parameters(estimator)
    fitted = {k: v for k, v in vars(estimator).items() if _is_fitted_state(k)}
    encoded = {name: encode(name, value) for name, value in parameters.items()}
    plain = {k: v if isinstance(v, nn.Module) else decode(encoded[k]) for k, v in parameters.items()}
    check_types(plain, _types(type(estimator)))
    config = {
        "parameters": encoded,
        "fitted": {name: encode(name, value) for name, value in fitted.items()},
        "module": estimator.module_.config(),
    }
    return config, tensors_of(estimator.module_)


def saved_parameters(estimator: Any) -> dict[str, Any]:
    """Constructor parameters, without what belongs to this computer and process."""
    parameters: dict[str, Any] = estimator.get_params(deep=False)
    parameters["checkpoint_dir"] = None  # whoever loads the model has folders of their own
    if not isinstance(parameters["random_state"], int | np.integer):
        parameters["random_state"] = None  # a stream of random numbers is not saved
    return parameters


def _types(cls: Any) -> dict[str, Any]:
    """The types of constructor parameters."""
    return {**get_type_hints(cls.__init__), **_PARAMETERS}


def _is_fitted_state(name: str) -> bool:
    """Whether an attribute was set by `fit`, rather than by the constructor or by scikit-learn."""
    return name in _PRIVATE or (name.endswith("_") and name != "module_")


def unpack(config: dict[str, Any], tensors: dict[str, Tensor], own: UserModules) -> Any:
    cls = CLASSES[config["class"]]
    module = _module(cls, config["module"], tensors, own)
    parameters = {name: _parameter(name, value, own) for name, value in config["parameters"].items()}
    estimator = cls(**parameters)
    check_types(parameters, _types(cls))
    fitted = {name: decode(value) for name, value in config["fitted"].items()}
    for name, value in fitted.items():
        if hasattr(cls, name) or not _is_fitted_state(name):
            raise ValueError(f"{name!r} among the fitted attributes")
        setattr(estimator, name, value)
    check_types(fitted, {name: list[dict[str, float]] for name in fitted if name.endswith("history_")})
    check_types(fitted, _FITTED)
    estimator.module_ = prepare_layers(module.requires_grad_(False).eval())
    _check_answers(estimator)
    return estimator


def _check_answers(estimator: Any) -> None:
    """One row goes through the module: its parts fit together, and the attributes fit to it."""
    module, n = estimator.module_, estimator.n_features_in_
    check_sizes(n, 0)
    parameters = estimator.get_params(deep=False).values()
    if any(isinstance(value, nn.Module) for value in parameters):
        return  # the shape of its rows is the caller's
    row = torch.zeros(1, n, dtype=torch.float64, device="cpu")
    if isinstance(module, DensityLayer):
        module().log_prob(row)
        return
    rho = module.distribution(row)
    answer = rho.probs if rho.kernel.discrete else rho.mean
    for name in ("classes_", "class_prior_"):
        values = getattr(estimator, name, None)
        if values is not None and values.shape != answer.shape[-1:]:
            raise ValueError(bad_argument(name, f"{answer.shape[-1]} values", f"shape {values.shape}"))
    if getattr(estimator, "encoder", None) is None and module.encoder is not None:
        raise ValueError(bad_argument("encoder", "the module's", None))
    if getattr(estimator, "_flat_target", False) and answer.shape[-1] != 1:
        raise ValueError(bad_argument("_flat_target", "one output", answer.shape[-1]))


def _parameter(name: str, value: Any, own: UserModules) -> Any:
    if isinstance(value, dict) and "$module" in value:
        return getattr(own, name)
    return decode(value)


def _module(cls: type, config: dict[str, Any], tensors: dict[str, Tensor], own: UserModules) -> nn.Module:
    if cls is not KDMDensity:
        return predictor_from(config, tensors, own)
    return filled(DensityLayer.from_config(config), tensors)
