"""`save` and `load`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar, overload

import torch
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument, check_device
from kdmkit.serialize import mixtures, modules
from kdmkit.serialize.description import Budget, check_agrees, check_sizes, shortened
from kdmkit.serialize.model_file import read_model, write_model
from kdmkit.serialize.modules import UserModuleError, UserModules

T = TypeVar("T")

#: The classes of estimators. Their module is imported when it is needed: it loads scikit-learn.
_ESTIMATORS = ("KDMDensity", "KDMClassifier", "KDMRegressor", "KDMProportionClassifier", "KDMTable")
#: The names of all classes that can be saved.
KINDS = (*_ESTIMATORS, *modules.CLASSES, *mixtures.CLASSES)


def save(model: Any, path: str | Path) -> None:
    """Writes a model as one file in the safetensors format, with its description as JSON; no pickle.

    The file appears as a whole. An interrupted save leaves an earlier model at `path` as it was, and the next
    save removes what a killed one left behind. Several processes may save to one path and load from it at the
    same time. Encoders and decoders that you wrote are saved as weights; `load` takes the modules to put them
    into. `checkpoint_dir` is not saved. In a distributed run, save on one process.

    Args:
        model: a fitted estimator (`KDMDensity`, `KDMClassifier`, `KDMRegressor`, `KDMProportionClassifier`,
            `KDMTable`), a module (`JointLayer`, `DensityLayer`, `TreeLayer`, `Predictor`), or a distribution
            (`KDM`, `JointKDM`, `TreeKDM`).
        path: the file, under exactly this name; folders above it are made. A saved model is replaced, any
            other file or folder is left alone and raises a ValueError.

    >>> import tempfile
    >>> import kdmkit as kdm
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     kdm.save(kdm.KDM.from_probs(torch.tensor([0.25, 0.75])), f"{folder}/coin.safetensors")
    ...     kdm.load(f"{folder}/coin.safetensors").probs
    tensor([0.2500, 0.7500])
    """
    name = type(model).__name__
    if name not in KINDS or type(model) is not _packer(name).CLASSES[name]:
        raise TypeError(bad_argument("model", f"one of {', '.join(KINDS)}", name))
    config, tensors = _packer(name).pack(model)
    write_model(path, {"class": name, **config}, tensors)


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

    Files of strangers are safe to load: nothing in them is executed, and memory is taken only for tensors
    that the file really holds. A file that is not a whole model raises a ValueError.

    Args:
        path: the file.
        encoder, decoder: modules of the same shape, for models saved with modules that you wrote. They are
            copied, and the copies get the saved weights.
        device: the device of the model, whatever it was saved from.
        kind: the class that the model must have, for example `KDMRegressor`; type checkers then know it.

    Returns:
        The model, of the class that was saved.

    >>> import tempfile, kdmkit as kdm
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     kdm.save(kdm.KDMDensity(sigma=0.5).fit([[0.0], [1.0], [3.0]]), f"{folder}/density.safetensors")
    ...     kdm.load(f"{folder}/density.safetensors").n_samples_seen_
    3
    """
    place = check_device("device", device)
    config, tensors = read_model(path)
    name = config.get("class")
    if not isinstance(name, str) or name not in KINDS:
        raise ValueError(bad_argument(str(path), f"class one of {', '.join(KINDS)}", shortened(repr(name))))
    if kind is not None and not isinstance(kind, type):
        raise TypeError(bad_argument("kind", "a class, for example KDMRegressor", repr(kind)))
    if kind is not None and kind is not _packer(name).CLASSES[name]:
        raise TypeError(bad_argument("path", f"a saved {kind.__name__}", f"a {name}"))
    user = UserModules(encoder, decoder)
    try:
        model = _built(name, config, tensors, user)
    except UserModuleError:
        raise
    except Exception as error:  # whatever a description makes constructors do
        wanted, got = f"the description and the tensors of a {name}", f"{type(error).__name__}: {error}"
        raise ValueError(bad_argument(str(path), wanted, shortened(got))) from error
    user.check_used()
    if name not in _ESTIMATORS:
        return model.to(place)
    model.module_.to(place)
    return model


def _built(name: str, config: dict[str, Any], tensors: dict[str, Tensor], user: UserModules) -> Any:
    longest = max((size for tensor in tensors.values() for size in tensor.shape), default=0)
    for part in ("module", "layer", "kernels"):
        check_sizes(config.get(part), longest)
    with Budget(tensors):
        model = _packer(name).unpack(config, tensors, user)
    description, state = _packer(name).pack(model)
    other = sorted(state.keys() ^ tensors.keys()) or [k for k in state if state[k].shape != tensors[k].shape]
    if other:
        raise ValueError(f"other tensors than it describes: {other[0]}")
    check_agrees(config, {"format": config["format"], "kdmkit": "", "class": name, **description})
    return model


def _packer(name: str) -> Any:
    """The module with `pack` and `unpack` for a class."""
    if name in _ESTIMATORS:
        from kdmkit.serialize import fitted

        return fitted
    return modules if name in modules.CLASSES else mixtures
