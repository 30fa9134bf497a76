"""`save` and `load`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from kdmkit._core.checks import bad_argument
from kdmkit.serialize import distributions, estimators, layers
from kdmkit.serialize.folder import read_folder, write_folder
from kdmkit.serialize.modules import Own
from kdmkit.serialize.upgrade import upgrade

_KINDS = (estimators, layers, distributions)
_CLASSES = {name: kind for kind in _KINDS for name in kind.CLASSES}


def save(model: Any, path: str | Path) -> None:
    """Writes a model as a folder: `model.safetensors` and `config.json`, no pickle.

    The folder appears as a whole: a save that is interrupted leaves an earlier model at `path` as it was.
    Encoders and decoders that you wrote are saved as weights; `load` takes the modules to put them into.
    In a distributed run, save on one process.

    Args:
        model: a fitted estimator (`KDMDensity`, `KDMClassifier`, `KDMRegressor`, `KDMProportionClassifier`),
            a layer (`JointLayer`, `DensityLayer`), or a distribution (`KDM`, `JointKDM`).
        path: a folder that does not exist, is empty, or holds a saved model, which is replaced.

    >>> import tempfile
    >>> import kdmkit as kdm
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     kdm.save(kdm.KDM.from_probs(torch.tensor([0.25, 0.75])), f"{folder}/coin")
    ...     kdm.load(f"{folder}/coin").probs
    tensor([0.2500, 0.7500])
    """
    name = type(model).__name__
    kind = _CLASSES.get(name)
    if kind is None or type(model) is not kind.CLASSES[name]:
        raise TypeError(bad_argument("model", f"one of {', '.join(_CLASSES)}", name))
    config, tensors = kind.pack(model)
    write_folder(path, {"class": name, **config}, tensors)


def load(
    path: str | Path,
    encoder: nn.Module | None = None,
    decoder: nn.Module | None = None,
    device: str | torch.device = "cpu",
) -> Any:
    """The model that `save` wrote, with the same answers.

    Args:
        path: the folder.
        encoder, decoder: for models saved with modules of your own: modules of the same shape. They are
            copied, and the copies get the saved weights.
        device: where the model goes, whatever it was saved from.
    """
    config, tensors = read_folder(path, _checked_device(device))
    name = config.get("class")
    if name not in _CLASSES:
        raise ValueError(bad_argument("config.json", f"class one of {', '.join(_CLASSES)}", repr(name)))
    own = Own(encoder, decoder)
    try:
        config, tensors = upgrade(config, tensors)
        model = _CLASSES[name].unpack(config, tensors, own)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        wanted = f"the description of a {name}"
        raise ValueError(bad_argument("config.json", wanted, f"{type(error).__name__}: {error}")) from error
    own.check_used()
    return model


def _checked_device(device: str | torch.device) -> torch.device:
    try:
        checked = torch.device(device)
        torch.empty(0, device=checked)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(bad_argument("device", "a device of this machine", repr(device))) from error
    return checked
