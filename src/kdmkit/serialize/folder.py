"""The folder on disk: two files that appear together or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from kdmkit._core.checks import bad_argument

FORMAT = 2
CONFIG, WEIGHTS = "config.json", "model.safetensors"
_CHUNK = 1 << 20


def write_folder(path: str | Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Writes a folder beside `path` and then renames it: an interrupted save leaves `path` as it was."""
    folder = Path(path).resolve()
    _check_replaceable(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = folder.parent / f".{folder.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        fresh.mkdir()
        # Copies: safetensors takes neither views nor tensors that share memory.
        plain = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
        save_file(plain, fresh / WEIGHTS)
        header = {"format": FORMAT, "kdmkit": _version(), "sha256": _digest(fresh / WEIGHTS)}
        text = json.dumps({**header, **config}, indent=1, ensure_ascii=False, allow_nan=False)
        (fresh / CONFIG).write_text(text + "\n", encoding="utf-8")
        for file in (CONFIG, WEIGHTS):
            _flush(fresh / file)
        _swap(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _check_replaceable(folder: Path) -> None:
    wanted = "a new folder, or one that holds nothing but a saved model"
    if folder.exists() and not folder.is_dir():
        raise ValueError(bad_argument("path", wanted, f"the file {folder}"))
    others = sorted({p.name for p in folder.iterdir()} - {CONFIG, WEIGHTS}) if folder.exists() else []
    if others:
        raise ValueError(bad_argument("path", wanted, f"{folder} with {', '.join(others[:3])}"))


def _swap(fresh: Path, folder: Path) -> None:
    """Two renames where there is an earlier model; between them `read_folder` finds it as `_earlier`."""
    earlier = _earlier(folder)
    if folder.exists():
        shutil.rmtree(earlier, ignore_errors=True)
        try:
            os.rename(folder, earlier)
            os.rename(fresh, folder)
        except BaseException:
            if not folder.exists():
                os.rename(earlier, folder)
            raise
    else:
        os.rename(fresh, folder)
    shutil.rmtree(earlier, ignore_errors=True)
    _flush(folder.parent)


def _earlier(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.earlier"


def _flush(path: Path) -> None:
    """Writes a file's or folder's cached contents to the disk."""
    if os.name != "posix" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_folder(path: str | Path, device: torch.device) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Configuration and tensors, or a ValueError that says what is wrong with them."""
    folder = Path(path).resolve()
    if not folder.exists() and _earlier(folder).is_dir():
        # A save was killed between its two renames.
        folder = _earlier(folder)
    if not folder.is_dir():
        raise ValueError(bad_argument("path", "a folder that kdmkit.save wrote", folder))
    for file in (CONFIG, WEIGHTS):
        if not (folder / file).is_file():
            raise ValueError(
                bad_argument("path", f"a folder with {CONFIG} and {WEIGHTS}", f"{folder} without {file}")
            )
    config = _read_config(folder / CONFIG)
    if _digest(folder / WEIGHTS) != config.get("sha256"):
        wanted = f"the file that {CONFIG} was written with"
        raise ValueError(bad_argument(WEIGHTS, wanted, f"another or a damaged one in {folder}"))
    try:
        return config, load_file(folder / WEIGHTS, device=str(device))
    except SafetensorError as error:
        raise ValueError(bad_argument(WEIGHTS, "a safetensors file", f"{error} in {folder}")) from error


def _read_config(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(bad_argument(CONFIG, "JSON", f"{error} in {file}")) from error
    if not isinstance(config, dict) or not isinstance(config.get("format"), int):
        raise ValueError(bad_argument(CONFIG, "an object with a format number", f"something else in {file}"))
    if config["format"] > FORMAT:
        writer = config.get("kdmkit")
        wanted = f"format {FORMAT}, which kdmkit {_version()} reads"
        raise ValueError(
            bad_argument(CONFIG, wanted, f"{config['format']}, written by kdmkit {writer}: update kdmkit")
        )
    if config["format"] < 1:
        raise ValueError(bad_argument(CONFIG, f"format 1 to {FORMAT}", config["format"]))
    return config


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(_CHUNK):
            digest.update(block)
    return digest.hexdigest()


def _version() -> str:
    from kdmkit import __version__

    return __version__
