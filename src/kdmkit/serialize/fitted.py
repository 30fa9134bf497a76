"""Fitted estimators: parameters, fitted attributes, the schema of a table, and the module behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Literal, get_type_hints

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument
from kdmkit.estimators import (
    KDMClassifier,
    KDMDensity,
    KDMProportionClassifier,
    KDMRegressor,
    KDMSequence,
    KDMTable,
)
from kdmkit.estimators.density.novelty import UsualRows
from kdmkit.estimators.sequence.timeline import Timeline
from kdmkit.estimators.table.answering.support import Margins
from kdmkit.estimators.table.schema import Schema
from kdmkit.nn import DensityLayer
from kdmkit.nn.mixture_layer import prepare_layers
from kdmkit.nn.pair_information import PairInformation
from kdmkit.serialize import modules
from kdmkit.serialize.description import check_sizes, check_types, decode, encode
from kdmkit.serialize.modules import UserModules, filled, predictor_from, tensors_of, under
from kdmkit.serialize.schemas import check_schema, check_timeline

CLASSES: dict[str, Any] = {
    "KDMDensity": KDMDensity,
    "KDMClassifier": KDMClassifier,
    "KDMRegressor": KDMRegressor,
    "KDMProportionClassifier": KDMProportionClassifier,
    "KDMTable": KDMTable,
    "KDMSequence": KDMSequence,
}

# The seed of draws, the number of draws so far, and whether targets were one-dimensional.
_PRIVATE = ("_seed", "_n_draws", "_flat_target", "_calibration")

# Types of parameters that constructors annotate as Any.
_PARAMETERS: dict[str, Any] = {
    "encoder": nn.Module | Literal["mlp"] | None,
    "decoder": nn.Module | Literal["mlp"] | None,
    "class_weight": dict[str | float, float] | Literal["balanced"] | None,
    "types": dict[str, str] | None,
    "schema": None,
    "targets": list[str] | str | None,
    "rules": bool | list[str],
    "checkpoint_dir": None,
    "random_state": int | None,
    "key": str | None,
    "time": str | None,
}
_FITTED: dict[str, Any] = {
    "n_features_in_": int,
    "classes_": np.ndarray,
    "class_prior_": np.ndarray,
    "loss_": str,
    "feature_names_in_": np.ndarray,
    "n_samples_seen_": int,
    "targets_": list[str],
    "method_": dict[str, float],
    "method_scores_": dict[str, float],
    "_seed": int,
    "_n_draws": int,
    "_flat_target": bool,
    "_calibration": np.ndarray | None,
    "typical_length_": int,
}
# The tensors of rows for `novelty`, which models of version 0.2 lack.
_USUAL = "usual."
# The tensor of `KDMTable.pair_information_`, which models of version 0.2 lack.
_INFORMATION = "pair_information"
# The tensor of `Margins` of a table: those of its columns, and the joint one. Models of version 0.2 lack it.
_MARGINS = "margins"
# The fitted attributes of a table, beside its schema and its module.
_TABLE_FITTED = (
    *("history_", "n_features_in_", "feature_names_in_", "n_samples_seen_", "targets_"),
    *("_seed", "_n_draws"),
)
# Those of sequences, beside schema, timeline and module.
_SEQUENCE_FITTED = (
    *("history_", "n_features_in_", "feature_names_in_", "typical_length_"),
    *("_seed", "_n_draws"),
)


def pack(estimator: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    check_is_fitted(estimator)
    parameters = _saved_parameters(estimator)
    encoded = {name: encode(name, value) for name, value in parameters.items()}
    plain = {k: v if isinstance(v, nn.Module) else decode(encoded[k]) for k, v in parameters.items()}
    check_types(plain, _types(type(estimator)))
    is_table, is_sequence = isinstance(estimator, KDMTable), isinstance(estimator, KDMSequence)
    names: Any = _TABLE_FITTED if is_table else _SEQUENCE_FITTED
    if not is_table and not is_sequence:
        names = [name for name in vars(estimator) if _is_fitted_state(name)]
    config = {
        "parameters": encoded,
        "fitted": {name: encode(name, getattr(estimator, name)) for name in names},
        **({"schema": encode("schema", estimator.schema_.config())} if is_table or is_sequence else {}),
        **({"timeline": encode("timeline", estimator.timeline_.config())} if is_sequence else {}),
        "module": estimator.module_.config(),
    }
    tensors = tensors_of(estimator.module_)
    if is_table and estimator.pair_information_ is not None:
        tensors[_INFORMATION] = torch.stack(estimator.pair_information_)
    if is_table and (margins := estimator._engine().support.measure()).single:
        pairs = [margins.single[name] for name in estimator.schema_.roots]
        tensors[_MARGINS] = torch.tensor([*pairs, (margins.joint, 0.0)], dtype=torch.float64)
    usual = getattr(estimator, "_usual", None)
    if usual is not None:
        tensors |= {f"{_USUAL}{name}": tensor for name, tensor in usual.tensors().items()}
    return config, tensors


def _saved_parameters(estimator: Any) -> dict[str, Any]:
    """Constructor parameters, without what belongs to this computer and process."""
    parameters: dict[str, Any] = estimator.get_params(deep=False)
    parameters["checkpoint_dir"] = None  # whoever loads the model has other folders
    if "schema" in parameters:
        parameters["schema"] = None  # a file of this computer; `schema_` has what it decided
    if not isinstance(parameters["random_state"], int | np.integer):
        parameters["random_state"] = None  # a stream of random numbers is not saved
    return parameters


def _types(cls: Any) -> dict[str, Any]:
    """The types of constructor parameters."""
    return {**get_type_hints(cls.__init__), **_PARAMETERS}


def _is_fitted_state(name: str) -> bool:
    """Whether an attribute was set by `fit`, rather than by the constructor or by scikit-learn."""
    return name in _PRIVATE or (name.endswith("_") and name != "module_")


def unpack(config: dict[str, Any], tensors: dict[str, Tensor], user: UserModules) -> Any:
    cls = CLASSES[config["class"]]
    if cls is KDMTable and config["parameters"].pop("model", "tree") != "tree":
        raise ValueError(bad_argument("model", "'tree': only kdmkit 0.2 loads other tables", "'flat'"))
    parameters = {name: _parameter(name, value, user) for name, value in config["parameters"].items()}
    check_types(parameters, _types(cls))
    estimator = cls(**parameters)
    fitted = {name: decode(value) for name, value in config["fitted"].items()}
    histories = {name: list[dict[str, float]] for name in fitted if name.endswith("history_")}
    check_types(fitted, {**_FITTED, **histories})
    if cls is KDMTable:
        return _fill_table(estimator, fitted, config, tensors, user)
    if cls is KDMSequence:
        return _fill_sequence(estimator, fitted, config, tensors, user)
    if cls is KDMDensity:
        module = filled(DensityLayer.from_config(config["module"]), tensors)
    else:
        estimator._usual = _usual_rows(under(_USUAL, tensors))
        others = {name: tensor for name, tensor in tensors.items() if not name.startswith(_USUAL)}
        module = predictor_from(config["module"], others, user)
    for name, value in fitted.items():
        if hasattr(cls, name) or not _is_fitted_state(name):
            raise ValueError(f"{name!r} among the fitted attributes")
        setattr(estimator, name, value)
    estimator.module_ = prepare_layers(module.requires_grad_(False).eval())
    _check_answers(estimator)
    return estimator


def _parameter(name: str, value: Any, user: UserModules) -> Any:
    if isinstance(value, dict) and "$module" in value:
        return getattr(user, name)
    return decode(value)


def _check_answers(estimator: Any) -> None:
    """Raises unless the parts of the module and the fitted attributes fit together: one row is answered."""
    module, n = estimator.module_, estimator.n_features_in_
    check_sizes(n, 0)
    parameters = estimator.get_params(deep=False).values()
    if any(isinstance(value, nn.Module) for value in parameters):
        return  # only the caller knows the shape of its rows
    row = torch.zeros(1, n, dtype=torch.float64, device="cpu")
    usual = getattr(estimator, "_usual", None)
    if usual is not None and usual.x.shape[1] != n:
        raise ValueError(bad_argument(_USUAL, f"rows of {n} columns", tuple(usual.x.shape)))
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


def _usual_rows(saved: dict[str, Tensor]) -> UsualRows | None:
    """Rows for `novelty`; raises unless they are finite, and have weights > 0 and labels ≥ 0."""
    if not saved:
        return None
    names = {field.name for field in fields(UsualRows)}
    if saved.keys() != names:
        raise ValueError(bad_argument(_USUAL, ", ".join(sorted(names)), ", ".join(sorted(saved))))
    x, weights, labels = [saved[name].cpu() for name in ("x", "weights", "labels")]
    is_right = x.ndim == 2 and len(x) > 0 and weights.shape == labels.shape == x.shape[:1]
    is_right = is_right and x.is_floating_point() and weights.is_floating_point()
    is_right = is_right and labels.dtype == torch.int64 and bool((labels >= 0).all())
    if not is_right or not bool(x.isfinite().all() & weights.isfinite().all() & (weights > 0).all()):
        raise ValueError(bad_argument(_USUAL, "finite rows, weights > 0 and labels ≥ 0", tuple(x.shape)))
    return UsualRows(x, weights, labels)


# ---- tables


def _fill_table(
    table: KDMTable,
    fitted: dict[str, Any],
    config: dict[str, Any],
    tensors: dict[str, Tensor],
    user: UserModules,
) -> KDMTable:
    fitted.setdefault("targets_", list(table.targets or ()))  # models of 0.2 lack them
    if fitted.keys() != set(_TABLE_FITTED):
        raise ValueError(bad_argument("fitted", f"{', '.join(_TABLE_FITTED)}", ", ".join(fitted)))
    _fill_attributes(table, fitted, config)
    tensors = dict(tensors)
    table.pair_information_ = _information(tensors.pop(_INFORMATION, None), len(table.schema_.modelled))
    table._margins = _margins(tensors.pop(_MARGINS, None), list(table.schema_.roots))
    _fill_layer(table, config, tensors, user)
    return table


def _margins(saved: Tensor | None, names: Sequence[str]) -> Margins:
    """The margins of a table; raises unless they are finite, and rows are less probable than draws."""
    if saved is None:
        return Margins()
    pairs = saved.cpu().double()
    is_right = pairs.shape == (len(names) + 1, 2) and bool(pairs.isfinite().all())
    if not is_right or not bool((pairs[:, 1] <= pairs[:, 0]).all()):
        wanted = f"finite numbers of shape ({len(names) + 1}, 2) that do not ascend in a row"
        raise ValueError(bad_argument(_MARGINS, wanted, tuple(saved.shape)))
    *single, (joint, _) = pairs.tolist()
    return Margins(
        {name: (least, of_rows) for name, (least, of_rows) in zip(names, single, strict=True)}, joint
    )


def _fill_sequence(
    model: KDMSequence,
    fitted: dict[str, Any],
    config: dict[str, Any],
    tensors: dict[str, Tensor],
    user: UserModules,
) -> KDMSequence:
    if fitted.keys() != set(_SEQUENCE_FITTED):
        raise ValueError(bad_argument("fitted", f"{', '.join(_SEQUENCE_FITTED)}", ", ".join(fitted)))
    check_sizes(fitted["typical_length_"], 0)
    _fill_attributes(model, fitted, config)
    described = decode(config["timeline"])
    check_timeline(described, model.key, model.time)
    model.timeline_ = Timeline.from_config(described)
    _fill_layer(model, config, tensors, user)
    return model


def _fill_attributes(model: Any, fitted: dict[str, Any], config: dict[str, Any]) -> None:
    """Fitted attributes and the schema."""
    for name, value in fitted.items():
        setattr(model, name, value)
    check_sizes(model.n_features_in_, 0)
    described = decode(config["schema"])
    check_schema(described)
    model.schema_ = Schema.from_config(described)


def _fill_layer(model: Any, config: dict[str, Any], tensors: dict[str, Tensor], user: UserModules) -> None:
    """The layer behind a table or sequences."""
    description = config["module"]
    wanted = "ChainLayer" if isinstance(model, KDMSequence) else "TreeLayer"
    if description["layer"] != wanted:
        raise ValueError(bad_argument("module", f"a {wanted}", description["layer"]))
    layer: Any = modules.unpack({"class": description["layer"], "layer": description}, tensors, user)
    _check_variables(model.schema_, layer)
    model.module_ = layer.requires_grad_(False).eval()


def _information(saved: Tensor | None, n: int) -> PairInformation | None:
    """The information of n columns; raises unless it is numbers ≥ 0 for every pair."""
    if saved is None:
        return None
    if saved.shape != (3, n, n) or not saved.is_floating_point() or not bool((saved >= 0).all()):
        raise ValueError(
            bad_argument(_INFORMATION, f"numbers ≥ 0 of shape (3, {n}, {n})", tuple(saved.shape))
        )
    return PairInformation(*saved.cpu())


def _check_variables(schema: Schema, layer: Any) -> None:
    """Raises unless the layer's variables are those of the schema, with kernels of the same classes."""
    expected = {v.name: (type(v.kernel), v.shape) for v in schema.variables(layer.n_components)}
    got = {name: (type(v.kernel), v.shape) for name, v in layer.variables.items()}
    if expected != got:
        raise ValueError(bad_argument("module", f"variables {list(expected)}", list(got)))
