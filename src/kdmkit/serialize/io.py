"""`save` and `load`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, overload

import torch
from torch import nn

from kdmkit._core.checks import bad_argument
from kdmkit.serialize.folder import read_folder, write_folder
from kdmkit.serialize.modules import UserModules
from kdmkit.serialize.upgrade import upgrade

T = TypeVar("T")

# The module that packs and unpacks each class, imported when it is needed: estimators load scikit-learn.
_KINDS = {
    "KDMDensity": "estimators",
    "KDMClassifier": "estimators",
    "KDMRegressor": "estimators",
    "KDMProportionClassifier": "estimators",
    "JointLayer": "layers",
    "DensityLayer": "layers",
    "Predictor": "layers",
    "KDM": "distributions",
    "JointKDM": "distributions",
}


def save(model: Any, path: str | Path) -> None:
    """Writes a model as a folder: `model.safetensors` and `config.json`, no pickle.

    The folder appears as a whole: a save that is interrupted leaves an earlier model at `path` as it was.
    Encoders and decoders that you wrote are saved as weights; `load` takes the modules to put them into.
    In a distributed run, save on one process.

    Args:
        model: a fitted estimator (`KDMDensity`, `KDMClassifier`, `KDMRegressor`, `KDMProportionClassifier`),
            a module (`JointLayer`, `DensityLayer`, `Predictor`), or a distribution (`KDM`, `JointKDM`).
        path: a folder that does not exist, is empty, or holds a saved model, which is replaced.

    >>> import tempfile
    >>> import kdmkit as kdm
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     kdm.save(kdm.KDM.from_probs(torch.tensor([0.25, 0.75])), f"{folder}/coin")
    ...     kdm.load(f"{folder}/coin").probs
    tensor([0.2500, 0.7500])
    """
    name = type(model).__name__
    if name not in _KINDS or type(model) is not _kind(name).CLASSES[name]:
        raise TypeError(bad_argument("model", f"one of {', '.join(_KINDS)}", name))
    config, tensors = _kind(name).pack(model)
    write_folder(path, {"class": name, **config}, tensors)


@overload
def load(
    path: str | Path,
    encoder: nn.Module | None = None,
    decoder: nn.Module | None = None,
    device: str | torch.device = "cpu",
    *,
    kind: type[T],
) -> T: ...
@overload
def load(
    path: str | Path,
    encoder: nn.Module | None = None,
    decoder: nn.Module | None = None,
    device: str | torch.device = "cpu",
) -> Any: ...
def load(
    path: str | Path,
    encoder: nn.Module | None = None,
    decoder: nn.Module | None = None,
    device: str | torch.device = "cpu",
    *,
    kind: type | None = None,
) -> Any:
    """The model that `save` wrote, with the same answers.

    Args:
        path: the folder.
        encoder, decoder: for models saved with modules of your own: modules of the same shape. They are
            copied, and the copies get the saved weights.
        device: where the model goes, whatever it was saved from.
        kind: the class that the model must have, for example `KDMRegressor`; type checkers then know it.
    """
    config, tensors = read_folder(path, _checked_device(device))
    name = config.get("class")
    if name not in _KINDS:
        raise ValueError(bad_argument("config.json", f"class one of {', '.join(_KINDS)}", repr(name)))
    if kind is not None and not isinstance(kind, type):
        raise TypeError(bad_argument("kind", "a class, for example KDMRegressor", repr(kind)))
    if kind is not None and kind is not _kind(name).CLASSES[name]:
        raise TypeError(bad_argument("path", f"a saved {kind.__name__}", f"a {name}"))
    own = UserModules(encoder, decoder)
    try:
        model = _kind(name).unpack(*upgrade(config, tensors), own)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        wanted = f"the description of a {name}"
        raise ValueError(bad_argument("config.json", wanted, f"{type(error).__name__}: {error}")) from error
    own.check_used()
    return model


def _kind(name: str) -> Any:
    """The module for a class."""
    return import_module(f"kdmkit.serialize.{_KINDS[name]}")


def _checked_device(device: str | torch.device) -> torch.device:
    try:
        checked = torch.device(device)
        torch.empty(0, device=checked)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(bad_argument("device", "a device of this machine", repr(device))) from error
    return checked
