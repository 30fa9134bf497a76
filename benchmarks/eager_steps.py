"""Eager and compiled training steps of a layer beside plain torch, in turns, and the first fit of a process.

    PYTHONPATH=src:lab python benchmarks/eager_steps.py     # a minute on a GPU; writes $OUT/eager_steps.jsonl
    PYTHONPATH=src:lab python benchmarks/eager_steps.py --profile    # also writes $OUT/eager_steps.txt

The ratio is that of medians; the calls of the methods alternate. `launches` is the number of kernels and
copies that a step queues on a GPU.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from kdmkit.distributions import mixing
from kdmlab.bench.peers import Inputs, KdmkitHead, PlainHead, training_step
from kdmlab.common import FORMAT, append_row, machine, versions

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
OUT = Path(os.environ.get("OUT", ".")) / "eager_steps.jsonl"
_ROUNDS, _CALLS = 15, 20
_LAUNCH = re.compile(r"cu(da)?(Launch|Memcpy|Memset)")
# The fit of a classifier to a hundred rows, in a process of its own.
_FIRST_FIT = """
import time
start = time.perf_counter()
from sklearn.datasets import load_iris
import kdmkit as kdm
kdm.KDMClassifier(max_epochs=5, random_state=0).fit(*load_iris(return_X_y=True))
first = time.perf_counter() - start
kdm.KDMClassifier(max_epochs=5, random_state=0).fit(*load_iris(return_X_y=True))
print(first, time.perf_counter() - start - first)
"""


def _milliseconds(step: Callable[[], Any]) -> float:
    start = time.perf_counter()
    for _ in range(_CALLS):
        step()
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / _CALLS * 1000


def _general(step: Callable[[], Any]) -> Callable[[], Any]:
    def without_short_path() -> Any:
        with mock.patch.object(mixing, "log_labels_given", return_value=None):
            return step()

    return without_short_path


def _profile(step: Callable[[], Any]) -> torch.profiler.profile:
    """What twenty steps do."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if DEVICE.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        _milliseconds(step)
    return profile


def _launches(profile: torch.profiler.profile) -> float:
    """Kernels and copies that a step queues."""
    queued = [event for event in profile.events() if _LAUNCH.match(event.name)]
    return len(queued) / _CALLS


def compare(n: int, m: int, d: int, *, show: bool) -> None:
    """Medians of all steps of one size, in turns."""
    p = Inputs.random(n, m, d, 10, DEVICE)
    steps: dict[str, Callable[[], Any]] = {
        "plain torch": training_step(PlainHead(p), p),
        "kdmkit": training_step(KdmkitHead(p), p),
        "kdmkit, general path": _general(training_step(KdmkitHead(p), p)),
    }
    if DEVICE.type == "cuda":
        steps["plain torch, compiled"] = training_step(torch.compile(PlainHead(p)), p)  # type: ignore[arg-type]
        steps["kdmkit, compiled"] = training_step(torch.compile(KdmkitHead(p)), p)  # type: ignore[arg-type]
    for step in steps.values():
        _milliseconds(step)
    profiles = {name: _profile(step) for name, step in steps.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(_ROUNDS):
        for name, step in steps.items():
            times[name].append(_milliseconds(step))
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, median in medians.items():
        plain = medians["plain torch, compiled" if "compiled" in name else "plain torch"]
        fields: Any = {"n": n, "m": m, "d": d, "method": name, "ms": median, "ratio": median / plain}
        fields["launches"] = _launches(profiles[name])
        append_row(OUT, {"format": FORMAT, **fields, "machine": machine(), "versions": versions()})
        print(fields, flush=True)
        if show:
            averages = profiles[name].key_averages()
            table = averages.table(sort_by="self_cpu_time_total", row_limit=60, max_name_column_width=60)
            with torch.compiler.set_stance(skip_guard_eval_unsafe=True):
                without_guards = _milliseconds(steps[name])
            with OUT.with_suffix(".txt").open("a") as file:
                file.write(f"{fields}\nwithout guards: {without_guards} ms\n{table}\n")


def main() -> None:
    show = "--profile" in sys.argv[1:]
    compare(256, 512, 128, show=show)
    compare(256, 4096, 64, show=False)
    fits = subprocess.run([sys.executable, "-c", _FIRST_FIT], capture_output=True, text=True, check=False)
    print("first and second fit, s:", fits.stdout.strip() or fits.stderr[-500:])


if __name__ == "__main__":
    main()
