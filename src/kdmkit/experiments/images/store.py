"""Trained weights on disk: what a killed command had finished, the next one takes up."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from safetensors.torch import load_file, save_file
from torch import nn

M = TypeVar("M", bound=nn.Module)


class Store:
    """A folder of weights, one file per phase, named after everything they depend on.

    Args:
        folder: where all runs keep theirs.
        identity: what these weights depend on, JSON-ready.
    """

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        text = json.dumps(identity, sort_keys=True)
        words = "-".join(str(value) for value in identity.values() if isinstance(value, str | int))
        self.folder = folder / f"{words}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        #: Seconds of the phases that were trained here and now.
        self.seconds: dict[str, float] = {}

    def settled(self, phase: str, module: M, train: Callable[[M], None]) -> M:
        """The module with the weights of a phase: read where they are, else trained and kept."""
        path = self.folder / f"{phase}.safetensors"
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
