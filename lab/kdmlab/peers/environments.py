"""An environment for every library, below `.venv-peers`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LAB = Path(__file__).parents[2]
_ROOT = _LAB.parent


@dataclass(frozen=True)
class Library:
    """A library that is measured.

    Args:
        label: its name in reports.
        packages: what its environment needs; the versions of these are reported.
        environment: the folder of its environment; two models may share one. Empty: this environment.
        unwanted: packages that are removed again.
    """

    label: str
    packages: tuple[str, ...]
    environment: str = ""
    unwanted: tuple[str, ...] = ()


# Every one has torch and pandas; torch's version is pinned, so that the build without CUDA does for all.
_COMMON = ("torch==2.13.0", "pandas")

LIBRARIES = {
    "kdm": Library("kdmkit", ("kdmkit",)),
    "spflow": Library("SPFlow", ("spflow",), "spflow"),
    "pylace": Library("Lace", ("pylace",), "pylace"),
    "pomegranate": Library("pomegranate", ("pomegranate",), "pomegranate"),
    "sdv": Library("SDV, Gaussian copula", ("sdv", "copulas"), "sdv"),
    "sdv_ctgan": Library("SDV, CTGAN", ("sdv", "ctgan"), "sdv"),
    # Of torchvision, installers choose a build with CUDA, which fails beside a torch without it.
    "mostlyai": Library(
        "mostlyai-engine", ("mostlyai-engine",), "mostlyai", unwanted=("torchvision", "torchaudio")
    ),
}

#: Libraries that were tried and could not be measured on a CPU without accounts.
NOT_MEASURED = {
    "pyjuice 2.6.3": "its circuits are compiled for CUDA by Triton; on a CPU, `TensorCircuit` ends with "
    "“Torch not compiled with CUDA enabled”.",
    "TabPFN 9.2.0": "its weights are behind terms of use and a log-in. It has no joint density without "
    "extensions: it predicts one column from all others.",
}


def interpreter(name: str, folder: Path) -> Path:
    """The interpreter of a library's environment, which is made if there is none."""
    library = LIBRARIES[name]
    if not library.environment:
        return Path(sys.executable)
    place = folder / library.environment
    python = place / "bin" / "python"
    ready = place / ".ready"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        _pip(python, "install", *_COMMON, *library.packages)
        if library.unwanted:
            _pip(python, "uninstall", "-y", *library.unwanted)
        ready.touch()
    return python


def ask_worker(name: str, data: dict[str, Any], python: Path, folder: Path) -> dict[str, Any]:
    """What `worker` measured of a library on a table, with one thread."""
    table, answers = folder / "table.json", folder / "answers.json"
    table.write_text(json.dumps({**data, "packages": LIBRARIES[name].packages}), encoding="utf-8")
    paths = [str(_LAB)] if LIBRARIES[name].environment else [str(_LAB), str(_ROOT / "src")]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"), "1")
    subprocess.run(
        [python, "-W", "ignore", "-m", "kdmlab.peers.worker", name, table, answers],
        check=True,
        env={**os.environ, **threads, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.DEVNULL,
    )
    measured: dict[str, Any] = json.loads(answers.read_text(encoding="utf-8"))
    return measured


def _pip(python: Path, *arguments: str) -> None:
    subprocess.run([python, "-m", "pip", *arguments], check=True)
