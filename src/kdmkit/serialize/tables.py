"""Tables: parameters, what columns were taken for, and the layer behind them."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.estimators import KDMTable
from kdmkit.estimators.table.schema import Schema
from kdmkit.serialize import layers
from kdmkit.serialize.description import check_sizes
from kdmkit.serialize.estimators import saved_parameters
from kdmkit.serialize.modules import UserModules, tensors_of
from kdmkit.serialize.values import check_types, decode, encode

CLASSES: dict[str, type] = {"KDMTable": KDMTable}

_PARAMETERS: dict[str, Any] = {
    "types": dict[str, str] | None,
    "targets": list[str] | None,
    "max_rows": int | None,
    "checkpoint_dir": None,
    "random_state": int | None,
}
_FITTED: dict[str, Any] = {
    "history_": list[dict[str, float]],
    "n_features_in_": int,
    "feature_names_in_": np.ndarray,
    "n_samples_seen_": int,
    "_seed": int,
    "_n_draws": int,
}


def pack(table: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    check_is_fitted(table)
    encoded = {name: encode(name, value) for name, value in saved_parameters(table).items()}
    check_types({name: decode(value) for name, value in encoded.items()}, _PARAMETERS)
    config = {
        "parameters": encoded,
        "fitted": {name: encode(name, getattr(table, name)) for name in _FITTED},
        "schema": encode("schema", table.schema_.config()),
        "module": table.module_.config(),
    }
    return config, tensors_of(table.module_)


def unpack(config: dict[str, Any], tensors: dict[str, Tensor], own: UserModules) -> Any:
    parameters = {name: decode(value) for name, value in config["parameters"].items()}
    if parameters.pop("model", "tree") != "tree":  # version 0.2 had others
        wanted = "a tree; tables with model='flat' load in kdmkit 0.2"
        raise ValueError(bad_argument("model", wanted, "'flat'"))
    check_types(parameters, _PARAMETERS)
    table = KDMTable(**parameters)
    fitted = {name: decode(value) for name, value in config["fitted"].items()}
    if fitted.keys() != _FITTED.keys():
        raise ValueError(bad_argument("fitted", f"{', '.join(_FITTED)}", ", ".join(fitted)))
    check_types(fitted, _FITTED)
    for name, value in fitted.items():
        setattr(table, name, value)
    check_sizes(table.n_features_in_, 0)
    table.schema_ = Schema.from_config(decode(config["schema"]))
    description = config["module"]
    layer = layers.unpack({"class": description["layer"], "layer": description}, tensors, own)
    _check_variables(table.schema_, layer)
    table.module_ = layer.requires_grad_(False).eval()
    return table


def _check_variables(schema: Schema, layer: Any) -> None:
    """The layer's variables are those of the schema, with kernels of the same classes."""
    wanted = {v.name: (type(v.kernel), v.shape) for v in schema.variables(layer.n_components)}
    found = {name: (type(v.kernel), v.shape) for name, v in layer.variables.items()}
    if wanted != found:
        raise ValueError(bad_argument("module", f"variables {list(wanted)}", list(found)))
