"""Trained weights on disk: a command that was killed continues after the last finished phase."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from kdmlab.common.checks import bad_argument
from kdmlab.common.files import replacing

M = TypeVar("M", bound=nn.Module)

#: Part of what weights are named by, increased when training changes so that they would be others.
FORMAT = 1


class Store:
    """A folder of weights, one file per phase and per values of the settings that it depends on.

    Args:
        folder: where the weights of a run are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: Seconds of every phase, those of earlier commands included.
        self.seconds: dict[str, float] = {}

    def cached(self, phase: str, settings: Mapping[str, Any], module: M, train: Callable[[M], None]) -> M:
        """The module with the weights of a phase: read where there are some, else trained and written."""
        named_by = json.dumps({"format": FORMAT, **settings}, sort_keys=True)
        digest = hashlib.sha256(named_by.encode()).hexdigest()
        path = self.folder / f"{phase}-{digest[:12]}.safetensors"
        if path.exists():
            self.seconds[phase] = self._read(module, path)
            return module.eval()
        start = time.perf_counter()
        train(module)
        self.seconds[phase] = round(time.perf_counter() - start, 2)
        self._write(module, path, self.seconds[phase])
        return module.eval()

    def _read(self, module: nn.Module, path: Path) -> float:
        device = str(next(module.parameters()).device)
        try:
            with safe_open(path, framework="pt", device=device) as file:
                names = file.keys()
                module.load_state_dict({name: file.get_tensor(name) for name in names})
                return float(file.metadata()["seconds"])
        except (SafetensorError, RuntimeError, TypeError, KeyError) as error:
            wanted = "weights that this command has kept (without the file they are trained again)"
            raise ValueError(bad_argument(str(path), wanted, f"something else ({error})")) from error

    def _write(self, module: nn.Module, path: Path, seconds: float) -> None:
        weights = {key: value.detach().contiguous() for key, value in module.state_dict().items()}
        with replacing(path) as temporary:
            save_file(weights, temporary, {"seconds": str(seconds)})
