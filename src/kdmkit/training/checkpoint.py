"""The state of a fit between epochs, in memory and on disk."""

from __future__ import annotations

import hashlib
import json
import math
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument
from kdmkit._core.files import replacing

_VERSION = 2
_FILE = "checkpoint.pt"


@dataclass
class Progress:
    """The history of losses and the state of early stopping."""

    history: list[dict[str, float]] = field(default_factory=list)
    best_loss: float = math.inf
    best_epoch: int = -1
    best_weights: dict[str, Tensor] = field(default_factory=dict)

    def record(
        self,
        entry: dict[str, float],
        model: nn.Module,
        *,
        min_improvement: float = 0.0,
        tolerance: float = 0.0,
    ) -> None:
        """Adds an epoch, and keeps the model's weights if its validation loss is the best so far.

        After the first epoch a loss l counts only if l < l_first − min_improvement·|l_first|. A loss that is
        less than `tolerance` above the best one counts as well.
        """
        loss, limit = entry.get("validation_loss"), self.best_loss + tolerance
        first = self.history[0].get("validation_loss", math.inf) if self.history else math.inf
        if not math.isinf(first):
            limit = min(limit, first - min_improvement * abs(first))
        self.history.append(entry)
        if loss is not None and loss < limit:
            self.best_loss, self.best_epoch = min(loss, self.best_loss), len(self.history) - 1
            self.best_weights = {k: v.detach().clone() for k, v in model.state_dict().items()}

    def should_stop(self, patience: int | None) -> bool:
        """Whether the validation loss has not improved for `patience` epochs."""
        if patience is None or not self.history or "validation_loss" not in self.history[-1]:
            return False
        return len(self.history) - 1 - self.best_epoch >= patience

    @classmethod
    def from_state(cls, state: dict[str, Any], device: torch.device) -> Progress:
        """The progress whose `vars` a checkpoint holds."""
        weights = {k: v.to(device) for k, v in state["best_weights"].items()}
        return cls(**{**state, "best_weights": weights})


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
    """One file in a folder, replaced as a whole after every epoch: a kill leaves the last one readable."""

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
