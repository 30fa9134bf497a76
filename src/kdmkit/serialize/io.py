"""`save` and `load`: a safetensors file whose header holds the model's description as JSON.

Headers and descriptions are read within bounds: a file may ask for memory only in proportion to its tensors.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar, overload

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument, check_device
from kdmkit._core.files import checked_path, replacing
from kdmkit.serialize import modules
from kdmkit.serialize.description import Budget, check_agrees, check_sizes, parse, shortened
from kdmkit.serialize.modules import UserModuleError, UserModules

T = TypeVar("T")

FORMAT = 2
# The entry of the header's metadata. There is one, because safetensors writes several in random order.
_MODEL = "kdmkit"
# The longest header beside tiny tensors; large models may have longer ones.
_HEADER_BYTES = 8 << 20
_HEADER_BYTES_PER_BYTE = 8
# What a damaged file can raise.
_DAMAGE = (SafetensorError, OSError, MemoryError, RecursionError, json.JSONDecodeError, KeyError, TypeError)
_DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL")

#: The classes of estimators. Their module is imported when it is needed: it loads scikit-learn.
_ESTIMATORS = (
    *("KDMDensity", "KDMClassifier", "KDMRegressor", "KDMProportionClassifier"),
    *("KDMTable", "KDMSequence"),
)
#: The names of all classes that can be saved.
KINDS = (*_ESTIMATORS, *modules.CLASSES)


def save(model: Any, path: str | Path) -> None:
    """Writes a model as one file in the safetensors format, with its description as JSON; no pickle.

    The file appears as a whole. An interrupted save leaves an earlier model at `path` as it was, and the next
    save removes what a killed one left behind. Several processes may save to one path and load from it at the
    same time. Encoders and decoders that you wrote are saved as weights; `load` takes the modules to put them
    into. `checkpoint_dir` is not saved. In a distributed run, save on one process.

    Args:
        model: a fitted estimator (`KDMDensity`, `KDMClassifier`, `KDMRegressor`, `KDMProportionClassifier`,
            `KDMTable`, `KDMSequence`), a module (`JointLayer`, `DensityLayer`, `TreeLayer`, `ChainLayer`,
            `Predictor`), or a distribution (`KDM`, `JointKDM`, `TreeKDM`).
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
    return modules


# ---- the file


def write_model(path: Any, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Writes a model to `path`, which holds the whole of it or what was there before."""
    file = checked_path(path).resolve()
    _check_replaceable(file)
    # Copies: safetensors takes neither views nor tensors that share memory.
    plain = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    _check_no_nan("model", plain)
    described = {"format": FORMAT, "kdmkit": _version(), **config}
    text = json.dumps(described, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    data = safetensors.torch.save(plain, {_MODEL: _digest_entry(digest(text, plain)) + text[1:]})
    header = int.from_bytes(data[:8], "little")
    tensor_bytes = len(data) - 8 - header
    _check_length("model", header, tensor_bytes)
    parse("model", text, tensor_bytes)
    with ExitStack() as stack:
        try:
            temporary = stack.enter_context(replacing(file))
        except OSError as error:
            raise ValueError(bad_argument("path", "a place where files can be written", error)) from error
        temporary.write_bytes(data)


def _check_replaceable(file: Path) -> None:
    if not file.exists():
        return
    is_model = False
    with suppress(ValueError), _clear_errors(file):
        if file.is_file():
            with file.open("rb") as stream:
                is_model = _MODEL in json.loads(_read_header(file, stream)[8:])["__metadata__"]
    if not is_model:
        raise ValueError(bad_argument("path", "a new file, or one that holds a saved model", file))


def read_model(path: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Description and tensors, or a ValueError that says what is wrong with them."""
    file = checked_path(path)
    if (file / "config.json").is_file():
        got = "a folder saved by kdmkit 0.1: load and save it with kdmkit 0.2 first"
        raise ValueError(bad_argument(str(file), f"format {FORMAT}", got))
    if not file.is_file():
        raise ValueError(bad_argument("path", "a model that kdmkit.save wrote", f"{file}, which is no file"))
    text, tensors = read_tensors(file)
    config = parse(str(file), text, sum(t.nbytes for t in tensors.values()))
    _check_format(file, config)
    checksum = config.pop("sha256", None)
    if digest(text.replace(_digest_entry(checksum), "{", 1), tensors) != checksum:
        raise ValueError(bad_argument(str(file), "the file as it was saved", "a damaged one"))
    _check_no_nan(str(file), tensors)
    return config, tensors


def read_tensors(file: Path) -> tuple[str, dict[str, Tensor]]:
    """The description of a model as text, and its tensors.

    The file is opened once and read as a whole: at any later time another one may be at its place.
    """
    with _clear_errors(file):
        with file.open("rb") as stream:
            start = _read_header(file, stream)
            data = start + stream.read()
        try:
            tensors = safetensors.torch.load(data)
        except ValueError as error:  # the oldest releases of safetensors: a tensor without elements
            raise SafetensorError(str(error)) from error
        header = json.loads(start[8:])
        metadata = header.pop("__metadata__", {})
        for name, entry in header.items():
            if entry["dtype"] not in _DTYPES:
                raise TypeError(f"{entry['dtype']} in {name}; supported are {', '.join(_DTYPES)}")
    if _MODEL not in metadata:
        raise ValueError(bad_argument(str(file), "a model that kdmkit.save wrote", "other tensors"))
    return metadata[_MODEL], tensors


@contextmanager
def _clear_errors(file: Path) -> Iterator[None]:
    """Turns errors of a damaged file into a ValueError about the file."""
    try:
        yield
    except _DAMAGE as error:
        got = shortened(f"{type(error).__name__}: {error}")
        raise ValueError(bad_argument(str(file), "a safetensors file", got)) from error


def _read_header(file: Path, stream: IO[bytes]) -> bytes:
    """The length of the header and the header itself, if it is not too long."""
    size = os.fstat(stream.fileno()).st_size
    start = stream.read(8)
    length = int.from_bytes(start, "little")
    if size < 8 or length > size - 8:
        raise ValueError(bad_argument(str(file), "a safetensors file", f"{size} bytes that are none"))
    _check_length(str(file), length, size - 8 - length)
    return start + stream.read(length)


def _check_length(what: str, length: int, tensor_bytes: int) -> None:
    limit = _HEADER_BYTES + _HEADER_BYTES_PER_BYTE * tensor_bytes
    if length > limit:
        raise ValueError(bad_argument(what, f"at most {limit:,} bytes of text", f"{length:,} bytes"))


def _check_format(file: Path, config: dict[str, Any]) -> None:
    number = config.get("format")
    if type(number) is int and number > FORMAT:
        got = f"format {number}, written by kdmkit {config.get('kdmkit')!r:.40}: update kdmkit"
        raise ValueError(bad_argument(str(file), f"format {FORMAT}, which kdmkit {_version()} reads", got))
    if type(number) is not int or number != FORMAT:
        raise ValueError(bad_argument(str(file), f"format {FORMAT}", f"format {number!r:.40}"))


def _check_no_nan(argument: str, tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and bool(tensor.isnan().any()):
            raise ValueError(bad_argument(argument, "numbers without NaN", f"NaN in {name}"))


def digest(text: str, tensors: dict[str, Tensor]) -> str:
    """SHA-256 of a description and of the names, dtypes, shapes and bytes of tensors."""
    total = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        total.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _digest_entry(checksum: object) -> str:
    """How a description starts: with the digest of the description without this entry."""
    return f'{{"sha256":"{checksum}",'


def _version() -> str:
    from kdmkit import __version__

    return __version__
