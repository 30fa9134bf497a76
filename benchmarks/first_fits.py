"""Fits of a classifier to 50,000 × 30 rows in fresh processes: the first, the next ones, seconds by phase.

    PYTHONPATH=src:lab python benchmarks/first_fits.py 1   # processes of each effort; $OUT/first_fits.jsonl

Imports count for the process, not for its first fit. Data and settings are those of `kdmlab bench`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from kdmlab.common import FORMAT, append_row, machine, versions

OUT = Path(os.environ.get("OUT", ".")) / "first_fits.jsonl"
_EFFORTS = ("default", "fast")
_NEXT = 2
_FITS = """
import json, sys, time
start = time.perf_counter()
import torch
from sklearn.datasets import make_classification
import kdmkit as kdm
from kdmkit import KDMClassifier
from kdmkit.estimators.classification import logits
from kdmkit.estimators.common import cross_fit

effort, fits = sys.argv[1], int(sys.argv[2])
X, y = make_classification(50_000, 30, n_informative=15, n_classes=10, random_state=0)
phases = {}

def timed(place, name):
    function = getattr(place, name)
    def wrapper(*args, **options):
        begin = time.perf_counter()
        try:
            return function(*args, **options)
        finally:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            phases[name] = phases.get(name, 0) + time.perf_counter() - begin
    setattr(place, name, wrapper)

for place, name in [(cross_fit, "start_linear"), (logits, "_fit_logits"), (logits, "_fit_label_memory"),
                    (logits, "_fit_offsets"), (logits, "maximize_density")]:
    timed(place, name)
if torch.cuda.is_available():
    torch.ones(1, device="cuda").item()
lines = [{"before": time.perf_counter() - start}]
for _ in range(fits):
    phases.clear()
    begin = time.perf_counter()
    model = KDMClassifier(n_components=256, effort=effort, random_state=0).fit(X, y)
    seconds, epochs = time.perf_counter() - begin, len(model.pretraining_history_)
    lines.append({"seconds": seconds, "epochs": epochs, "steps": len(model.history_), **phases})
print(json.dumps(lines))
"""


def _measure(effort: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-c", _FITS, effort, str(1 + _NEXT)]
    lines: list[dict[str, Any]] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return lines


def main() -> None:
    for effort in _EFFORTS:
        for process in range(int(sys.argv[1])):
            before, *fits = _measure(effort)
            for place, fit in enumerate(fits):
                key = {"effort": effort, "process": process, "fit": place, **before, **fit}
                append_row(OUT, {"format": FORMAT, **key, **versions(), **machine()})
                print(effort, process, place, {k: round(v, 3) for k, v in fit.items()}, flush=True)


if __name__ == "__main__":
    main()
