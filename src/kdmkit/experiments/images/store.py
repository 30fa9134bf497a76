"""Trained weights on disk: what a killed command had finished, the next one takes up."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from safetensors.torch import load_file, save_file
from torch import nn

M = TypeVar("M", bound=nn.Module)


class Store:
    """A folder of weights, one file per phase and choice of the settings that it depends on.

    Args:
        folder: where the weights of a run are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: Seconds of the phases that were trained here and now.
        self.seconds: dict[str, float] = {}

    def settled(self, phase: str, settings: Mapping[str, Any], module: M, train: Callable[[M], None]) -> M:
        """The module with the weights of a phase: read where they are, else trained and kept."""
        digest = hashlib.sha256(json.dumps(dict(settings), sort_keys=True).encode()).hexdigest()
        path = self.folder / f"{phase}-{digest[:12]}.safetensors"
        if path.exists():
            module.load_state_dict(load_file(path, device=str(next(module.parameters()).device)))
            return module.eval()
        start = time.perf_counter()
        train(module)
        self.seconds[phase] = round(time.perf_counter() - start, 2)
        self._write(module, path)
        return module.eval()

    def _write(self, module: nn.Module, path: Path) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            save_file(
                {key: value.detach().contiguous() for key, value in module.state_dict().items()}, temporary
            )
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
