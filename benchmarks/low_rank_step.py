"""A training step of a density whose components lean, beside one with diagonal covariances.

    python benchmarks/low_rank_step.py          # a few seconds, writes $OUT/low-rank-step.jsonl

256 rows, 512 components, 64 dimensions, one thread. The densities take turns within a run; times are
processor seconds, on a GPU seconds, medians over the steps after the first five.
"""

from __future__ import annotations

import os
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

import kdmkit as kdm
from kdmlab.common import Task, run_tasks

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
OUT = Path(os.environ.get("OUT", "results")) / "low-rank-step.jsonl"
N, M, D = 256, 512, 64
STEPS, FIRST = 60, 5
RANKS = (1, 2, 4)


def make_layer(rank: int | None) -> kdm.nn.DensityLayer:
    """A layer with factors, or with an `RBF` for None."""
    sigma = torch.full((M, D), 8.0)
    kernel = kdm.RBF(sigma) if rank is None else kdm.LowRank(sigma, torch.zeros(M, D, rank))
    generator = torch.Generator().manual_seed(0)
    layer = kdm.nn.DensityLayer(D, M, kernel=kernel, dtype=torch.float32, generator=generator)
    return layer.initialize(torch.randn(2000, D, generator=generator), generator=generator).to(DEVICE)


def clock() -> float:
    if DEVICE.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def step(layer: kdm.nn.DensityLayer, x: torch.Tensor) -> float:
    start = clock()
    layer.zero_grad()
    (-layer().log_prob(x).mean()).backward()
    return clock() - start


def measure(rank: int) -> dict[str, Any]:
    x = torch.randn(N, D, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    layers = make_layer(None), make_layer(rank)
    times = [[step(layer, x) for layer in layers] for _ in range(STEPS)][FIRST:]
    plain, leaning = [statistics.median(column) for column in zip(*times, strict=True)]
    return {"rbf": plain, "low_rank": leaning, "ratio": leaning / plain}


def main() -> None:
    torch.set_num_threads(1)
    case = f"training step {N} × {M}, d={D}" + (", CUDA" if DEVICE.type == "cuda" else "")
    tasks = [Task({"case": case, "rank": rank}, partial(measure, rank)) for rank in RANKS]
    run_tasks(tasks, OUT, fresh=True)


if __name__ == "__main__":
    main()
