"""The benchmark command: measures every case, writes JSON lines, a table and a plot."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
from tqdm.auto import tqdm

import kdmkit
from kdmkit.experiments.bench.cases import Case, cpu_cases, cuda_cases, growth_cases
from kdmkit.experiments.bench.fitting import epoch_times
from kdmkit.experiments.bench.measure import Timing, extra_memory, first_call, time_calls, worst_error
from kdmkit.experiments.bench.report import plot_growth, table

Record = dict[str, Any]
# A call that takes longer, in seconds, is measured once: what a warm-up saves is nothing beside it.
_LONG = 20.0


def run(folder: Path, *, device: Literal["cpu", "cuda"], seconds: float = 3.0, growth: bool = True) -> Path:
    """Benchmarks one device; on a CPU with two threads.

    Args:
        folder: where `bench-<device>.jsonl`, `.md` and `.png` go.
        device: what to measure.
        seconds: spent on repetitions of each measurement.
        growth: whether to measure how cost grows, too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    threads = torch.get_num_threads()
    if device == "cpu":
        torch.set_num_threads(2)
    try:
        cases = cpu_cases() if device == "cpu" else cuda_cases()
        records = _measure_all(cases, seconds, "cases")
        records += epoch_times() if device == "cpu" else []
        grown = (
            _measure_all(growth_cases(torch.device(device)), min(seconds, 0.5), "growth") if growth else []
        )
    finally:
        torch.set_num_threads(threads)
    return _write(folder / f"bench-{device}", records, grown, hardware(device))


def _write(stem: Path, records: list[Record], grown: list[Record], header: Record) -> Path:
    lines = [{**header, **record} for record in (*records, *({**g, "growth": True} for g in grown))]
    stem.with_suffix(".jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    stem.with_suffix(".md").write_text(table(records, header))
    if grown:
        plot_growth(grown, stem.with_suffix(".png"))
    return stem.with_suffix(".md")


def hardware(device: str) -> Record:
    """What the numbers depend on."""
    name = torch.cuda.get_device_name() if device == "cuda" else f"{_processor()}, 2 threads"
    versions = {"kdmkit": kdmkit.__version__, "torch": torch.__version__, "python": platform.python_version()}
    return {"hardware": name, **versions}


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _measure_all(cases: list[Case], seconds: float, description: str) -> list[Record]:
    records: list[Record] = []
    for case in tqdm(cases, desc=description, unit="case"):
        records += measure(case, seconds)
    return records


def measure(case: Case, seconds: float) -> list[Record]:
    """Every peer on one case: time, memory, error."""
    p = case.problem()
    truth = case.truth(p)
    records = []
    for peer, call in case.calls(p).items():
        result, first, memory = first_call(call, case.device)
        if first < _LONG:
            timing = time_calls(call, seconds=seconds, device=case.device)
            memory = extra_memory(call, case.device)
        else:
            timing = Timing(first, first, first, 1)
        record: Record = {
            "case": case.name,
            **{k: v for k, v in asdict(case).items() if k != "device"},
            "peer": peer,
            **asdict(timing),
            "extra_bytes": memory,
            "error": None if truth is None else worst_error(result[: len(truth)], truth),
        }
        records.append(record)
    return records
