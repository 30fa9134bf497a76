"""The effect of each optimisation of the CPU path: the same reductions with one of them removed at a time.

    python benchmarks/cpu_steps.py          # about a minute, writes results/cpu-steps.jsonl

Medians of repeated calls with two threads; run it on a machine that does nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from kdmkit._core import logspace
from kdmkit.distributions import mixing
from kdmkit.ops import api, chunked, dense_explicit, scaled_points
from kdmlab.bench.cases import Case
from kdmlab.bench.measure import time_calls
from kdmlab.common import Task, run_tasks

CPU = torch.device("cpu")


def _slow_exp(x: torch.Tensor) -> torch.Tensor:
    return x.exp_()


def _slow_exp2(x: torch.Tensor) -> torch.Tensor:
    return x.mul_(math.log(2)).exp_()


def _without(name: str) -> Any:
    """A patch that takes an implementation out of the table."""
    left = tuple(i for i in api.IMPLEMENTATIONS if i.name != name)
    return mock.patch.object(api, "IMPLEMENTATIONS", left)


@contextmanager
def taken_back(step: str) -> Iterator[None]:
    """The library without one optimisation."""
    patches = {
        "nothing": [],
        "the short path of labels": [mock.patch.object(mixing, "log_labels_given", return_value=None)],
        "written-out derivatives": [
            _without("dense, explicit gradients"),
            mock.patch.object(mixing, "log_labels_given", return_value=None),
        ],
        "one set of exponentials for p(x) and p(x, y)": [
            mock.patch.object(dense_explicit, "MIN_LABEL_PROBABILITY", math.inf)
        ],
        "float32 products where they are exact enough": [
            mock.patch.object(scaled_points, "_FLOAT32_REACH", -1.0)
        ],
        "buffers that stay in the caches": [_without("chunked on a CPU")],
        "exponentials by powers of two": [
            *(mock.patch.object(module, "exp_", _slow_exp) for module in (logspace, scaled_points, chunked)),
            mock.patch.object(torch.Tensor, "exp2_", _slow_exp2),
        ],
    }[step]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


def main() -> None:
    torch.set_num_threads(2)
    in_steps = (
        "nothing",
        "the short path of labels",
        "written-out derivatives",
        "one set of exponentials for p(x) and p(x, y)",
        "float32 products where they are exact enough",
    )
    in_densities = ("nothing", "buffers that stay in the caches", "exponentials by powers of two")
    cases = [
        (Case("training step", 256, 512, 128, 10, CPU), in_steps),
        (Case("training step", 256, 4096, 64, 10, CPU), in_steps),
        (Case("density", 2_000, 100_000, 8, 1, CPU), in_densities),
        (Case("density", 2_000, 100_000, 2, 1, CPU), in_densities),
    ]
    tasks = [
        Task({"case": case.name, "taken back": step}, partial(measure, case, step))
        for case, steps in cases
        for step in steps
    ]
    path = Path(__file__).resolve().parents[1] / "results" / "cpu-steps.jsonl"
    for row in run_tasks(tasks, path, fresh=True):
        print(f"{row['case']:50} without {row['taken back']:48} {1e3 * row['median']:9.2f} ms")


def measure(case: Case, step: str) -> dict[str, Any]:
    call = case.peers()["kdmkit"](case.inputs())
    with taken_back(step):
        return asdict(time_calls(call, seconds=2.0, device=CPU))


if __name__ == "__main__":
    main()
