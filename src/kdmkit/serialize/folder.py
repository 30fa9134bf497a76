"""Models of format 1 (kdmkit 0.1): folders with `config.json` and `model.safetensors`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.serialize.description import parse
from kdmkit.serialize.weights import check_length, read_tensors

_CONFIG, _WEIGHTS = "config.json", "model.safetensors"


def is_folder(path: Path) -> bool:
    return path.is_dir() or (not path.exists() and _earlier(path).is_dir())


def _earlier(path: Path) -> Path:
    """Where version 0.1 left the model when it was killed while it replaced one."""
    return path.parent / f".{path.name}.earlier"


def read_folder(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    folder = (path if path.is_dir() else _earlier(path)).resolve()
    files = [folder / name for name in (_CONFIG, _WEIGHTS)]
    for file in files:
        if not file.is_file():
            wanted = f"a saved model: a file, or a folder with {_CONFIG} and {_WEIGHTS}"
            raise ValueError(bad_argument(str(path), wanted, f"a folder without {file.name}"))
        if file.resolve().parent != folder:
            got = f"a link to {file.resolve()}"
            raise ValueError(bad_argument(str(file), "a file in its folder", got))
    description, weights = files
    size = weights.stat().st_size
    check_length(str(description), description.stat().st_size, size)
    try:
        config = parse(str(description), description.read_text(encoding="utf-8"), size)
    except (OSError, UnicodeError) as error:
        raise ValueError(bad_argument(str(description), "JSON", error)) from error
    if config.get("format") != 1 or isinstance(config["format"], bool):
        raise ValueError(bad_argument(str(description), "format 1", f"format {config.get('format')!r:.40}"))
    _, tensors, digest = read_tensors(weights)
    if digest != config.pop("sha256", None):
        wanted = f"the file that {_CONFIG} was written with"
        raise ValueError(bad_argument(str(weights), wanted, "another or a damaged one"))
    return config, tensors
