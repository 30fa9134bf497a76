"""Times one shard of a large mixture and the messages that merge shards.

    python benchmarks/shards.py --device cuda --output results/shards.jsonl          # shards of one device
    torchrun --nproc-per-node 2 benchmarks/shards.py --merge --output results/shards.jsonl    # messages, gloo

Every line has the sizes, the time and the extra memory; `benchmarks/shards_table.py` computes the table of
docs/performance.md from them.
"""

import argparse
import json
import math
import os
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed

import kdmkit as kdm
from kdmkit.distributions.shards import Processes

#: Components of all shards together, and the numbers of shards that they are divided into.
TOTAL, SHARDS = 100_000_000, (1, 2, 4, 8, 16, 32, 64)
D, CLASSES = 64, 16
QUERIES = (1024, 4096)


def sync(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def median_time(call: Any, device: torch.device, seconds: float) -> tuple[float, int]:
    """The median of repeated calls, for about so many seconds, after one call that does not count."""
    call()
    sync(device)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or (time.perf_counter() < end and len(times) < 50):
        start = time.perf_counter()
        call()
        sync(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times), len(times)


def shard(m: int, device: torch.device) -> kdm.JointKDM:
    """m components of a joint over d numbers and some classes; classes as one-hot amplitudes."""
    generator = torch.Generator(device).manual_seed(0)
    x = torch.empty(m, D, device=device).normal_(generator=generator)
    y = torch.zeros(m, CLASSES, device=device)
    y[torch.arange(m, device=device), torch.arange(m, device=device) % CLASSES] = 1
    kernels = {"x": kdm.RBF(D**0.5).to(device), "y": kdm.Cosine()}
    return kdm.JointKDM({"x": x, "y": y}, None, kernels, validate_args=False)


def measure_shard(n_shards: int, device: torch.device, seconds: float, total: int) -> list[dict[str, Any]]:
    before = torch.cuda.memory_allocated() if device.type == "cuda" else 0
    rho = kdm.join_shards(shard(total // n_shards, device).prepared())
    lines = []
    with torch.no_grad():
        errors = largest_error(rho)
        # With what is kept for further questions.
        held = torch.cuda.memory_allocated() - before if device.type == "cuda" else None
        for n in QUERIES:
            x = torch.empty(n, D, device=device).normal_(generator=torch.Generator(device).manual_seed(1))
            questions = {
                "probs": partial(_probs, rho, x),
                "log_prob": partial(rho.marginal("x").log_prob, x),
            }
            for question, ask in questions.items():
                ask()
                extra = _extra_bytes(ask, device)
                taken, calls = median_time(ask, device, seconds)
                lines.append(
                    {
                        "part": "shard", "prepared": True, "question": question,
                        "components": rho.n_components, "n": n, "d": D, "classes": CLASSES,
                        "median": taken, "calls": calls, "extra_bytes": extra,
                        "held_bytes": held,
                        **errors,
                    }
                )  # fmt: skip
    return lines


def _probs(rho: kdm.JointKDM, x: torch.Tensor) -> torch.Tensor:
    return rho.infer(x=x, target="y").probs


def largest_error(rho: kdm.JointKDM, n: int = 64) -> dict[str, float]:
    """How far log p(x) and p(y|x) are from sums in float64, over blocks of components."""
    x = torch.empty(n, D, device=rho.components["x"].device).normal_(
        generator=torch.Generator(rho.components["x"].device).manual_seed(2)
    )
    top = torch.full((n, 1), -torch.inf, dtype=torch.float64, device=x.device)
    counts = torch.zeros(n, CLASSES, dtype=torch.float64, device=x.device)
    for start in range(0, rho.n_components, 1 << 20):
        c, y = (rho.components[name][start : start + (1 << 20)].double() for name in ("x", "y"))
        scores = -torch.cdist(x.double(), c).square() / D
        before, top = top, torch.maximum(top, scores.amax(1, keepdim=True))
        counts = counts * (before - top).exp() + (scores - top).exp() @ y.square()
    log_sums = top.squeeze(1) + counts.sum(1).log()
    log_prob = log_sums - math.log(rho.n_components) - D / 2 * math.log(math.pi * D)
    probs = counts / counts.sum(1, keepdim=True)
    return {
        "log_prob_error": float((rho.marginal("x").log_prob(x).double() - log_prob).abs().max()),
        "probs_error": float((rho.infer(x=x).probs.double() - probs).abs().max()),
    }


def _extra_bytes(ask: Any, device: torch.device) -> int | None:
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    ask()
    sync(device)
    return torch.cuda.max_memory_allocated() - before


def measure_merge(device: torch.device) -> list[dict[str, Any]]:
    """The messages alone: one number per query, then 1 + v of them."""
    processes, lines = Processes(), []
    for n in QUERIES:
        for v in (0, CLASSES):
            sums, averages = torch.randn(n, device=device), torch.randn(n, v, device=device) if v else None
            calls = 200
            for _ in range(20):
                processes.merge(sums, averages)
            start = time.perf_counter()
            for _ in range(calls):
                processes.merge(sums, averages)
            sync(device)
            lines.append(
                {
                    "part": "merge", "n": n, "v": v, "processes": processes.count,
                    "backend": distributed.get_backend(), "mean": (time.perf_counter() - start) / calls,
                    "calls": calls, "bytes": 4 * n * (1 + (1 + v)),
                }
            )  # fmt: skip
    return lines


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--device", default="cpu")
    options.add_argument("--output", type=Path, required=True)
    options.add_argument("--merge", action="store_true", help="time the messages between processes alone")
    options.add_argument("--backend", help="of torch.distributed: nccl or gloo")
    options.add_argument("--seconds", type=float, default=2.0)
    options.add_argument("--total", type=int, default=TOTAL)
    options.add_argument("--most", type=int, default=TOTAL, help="leave out shards of more components")
    chosen = options.parse_args()
    device = torch.device(chosen.device)
    backend = chosen.backend or ("nccl" if device.type == "cuda" else "gloo")
    if "RANK" in os.environ:
        distributed.init_process_group(backend)
    else:
        distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)
    append(chosen.output, measure_merge(device), device)
    if not chosen.merge:
        for n_shards in reversed(SHARDS):
            if chosen.total // n_shards <= chosen.most:
                append(chosen.output, measure_shard(n_shards, device, chosen.seconds, chosen.total), device)
    distributed.destroy_process_group()


def append(output: Path, lines: list[dict[str, Any]], device: torch.device) -> None:
    """Adds lines with the machine and the versions; the first process writes."""
    if distributed.get_rank():
        return
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    where = {"machine": {"device": name, "threads": torch.get_num_threads()}}
    versions = {"versions": {"kdmkit": kdm.__version__, "torch": torch.__version__}}
    with output.open("a", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps({"format": 1, **line, **where, **versions}) + "\n")
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
