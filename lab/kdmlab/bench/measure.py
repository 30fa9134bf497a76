"""Timing, memory and error of one function."""

from __future__ import annotations

import resource
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Timing:
    """Seconds per call: the median and the middle half of the repetitions."""

    median: float
    low: float
    high: float
    repetitions: int


def time_calls(call: Callable[[], Any], *, seconds: float, device: torch.device, least: int = 3) -> Timing:
    """Times calls after a warm-up, until `seconds` are spent and at least `least` times."""
    timer = _cuda_seconds if device.type == "cuda" else _cpu_seconds
    for _ in range(2 if timer(call) < seconds else 0):
        timer(call)
    spent: list[float] = []
    while len(spent) < least or (sum(spent) < seconds and len(spent) < 500):
        spent.append(timer(call))
    low, median, high = statistics.quantiles(spent, n=4)
    return Timing(median, low, high, len(spent))


def _cpu_seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _cuda_seconds(call: Callable[[], Any]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1000


def first_call(call: Callable[[], Tensor], device: torch.device) -> tuple[Tensor, float, int]:
    """The result of one call, its seconds, and its extra memory."""
    results: list[Tensor] = []
    start = time.perf_counter()
    memory = extra_memory(lambda: results.append(call()), device)
    return results[0], time.perf_counter() - start, memory


def extra_memory(call: Callable[[], Any], device: torch.device) -> int:
    """Bytes at the peak of a call beyond those before it, results included."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    before = _resident()
    with _Watch() as watch:
        call()
    return max(0, watch.peak - before)


def _resident() -> int:
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class _Watch:
    """The largest resident size while it is open, sampled a thousand times a second."""

    def __enter__(self) -> _Watch:
        self.peak, self._open = _resident(), True
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def _look(self) -> None:
        while self._open:
            self.peak = max(self.peak, _resident())
            time.sleep(0.001)

    def __exit__(self, *_: object) -> None:
        self._open = False
        self._thread.join()
        self.peak = max(self.peak, _resident())


def worst_error(result: Tensor, truth: Tensor) -> float:
    """The largest |Δ|/(1 + |truth|), infinite where the result is not a number."""
    off = (result.double().cpu() - truth.double().cpu()).abs() / (1 + truth.double().cpu().abs())
    return float("inf") if bool(torch.isnan(off).any()) else float(off.max())
