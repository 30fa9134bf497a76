"""The hardware and the versions that a result depends on."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

import kdmkit
from kdmlab.common.lines import Row


def machine() -> dict[str, Any]:
    """The processor, the cores that this process may use, torch's threads, and the accelerator."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {"cpu": _cpu(), "cores": _cores(), "threads": torch.get_num_threads(), "accelerator": device}


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def versions() -> dict[str, str]:
    return {
        "kdmkit": kdmkit.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "scikit-learn": version("scikit-learn"),
        "numpy": np.__version__,
    }


def provenance(rows: Iterable[Row]) -> str:
    """A sentence on the machines, versions, dates and time of some lines, as far as the lines tell."""
    rows = list(rows)
    if not rows:
        return "Nothing was measured yet."
    words = "Measured"
    if all("finished" in row for row in rows):
        dates = sorted(row["finished"][:10] for row in rows)
        span = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
        words += f" {span} in {sum(row['seconds'] for row in rows):,.0f} s altogether,"
    machines = _distinct(_machine_words(row["machine"]) for row in rows)
    used = _distinct(", ".join(f"{k} {v}" for k, v in row["versions"].items()) for row in rows)
    return f"{words} on {machines}; {used}."


def _machine_words(machine: Mapping[str, Any]) -> str:
    units = {"cores": " cores", "threads": " threads"}
    return ", ".join(f"{value}{units.get(name, '')}" for name, value in machine.items() if value != "none")


def _distinct(texts: Iterable[str]) -> str:
    return " and ".join(dict.fromkeys(texts))
