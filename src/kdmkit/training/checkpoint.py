"""Checkpoints of a fit: a kill at any moment leaves the last one readable."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit._core.files import replacing

_VERSION = 2
_FILE = "checkpoint.pt"


def fingerprint(identity: dict[str, Any], data: Sequence[Tensor]) -> str:
    """A digest of a configuration and of tensors; a checkpoint continues only the fit that wrote it.

    Args:
        identity: the configuration, JSON-serialisable.
        data: the tensors of the fit.

    >>> fingerprint({"seed": 0}, [torch.zeros(3)]) == fingerprint({"seed": 1}, [torch.zeros(3)])
    False
    """
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps(identity, sort_keys=True, default=str).encode())
    for tensor in data:
        digest.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


class Checkpoint:
    """One file in a folder, replaced as a whole after every epoch."""

    def __init__(self, folder: str | Path, identity: str) -> None:
        self.folder, self.identity = Path(folder), identity
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(bad_argument("checkpoint_dir", "a folder", f"the file {self.folder}"))

    @property
    def path(self) -> Path:
        return self.folder / _FILE

    def load(self) -> dict[str, Any] | None:
        """The saved state, or None; another fit's checkpoint is an error."""
        if not self.path.exists():
            return None
        state = self._read()
        if state["version"] != _VERSION:
            wanted = f"a checkpoint of version {_VERSION}"
            raise ValueError(bad_argument("checkpoint_dir", wanted, state["version"]))
        if state["identity"] != self.identity:
            wanted = "a checkpoint of this configuration and data, or an empty folder"
            raise ValueError(bad_argument("checkpoint_dir", wanted, f"one of another fit in {self.folder}"))
        return state

    def _read(self) -> dict[str, Any]:
        try:
            # torch writes checksums but does not check them.
            with zipfile.ZipFile(self.path) as archive:
                broken = archive.testzip()
            state = torch.load(self.path, map_location="cpu", weights_only=True)
            if broken is not None or not isinstance(state, dict) or not {"version", "identity"} <= set(state):
                raise ValueError("wrong contents")
        except Exception as error:  # a damaged file can raise almost anything
            wanted = "a folder with a readable checkpoint, or an empty one"
            raise ValueError(bad_argument("checkpoint_dir", wanted, f"{self.path} ({error})")) from error
        return state

    def save(self, state: dict[str, Any]) -> None:
        try:
            with replacing(self.path) as temporary, temporary.open("wb") as file:
                torch.save({**state, "version": _VERSION, "identity": self.identity}, file)
        except OSError as error:
            raise OSError(bad_argument("checkpoint_dir", "a folder to write to", error)) from error
