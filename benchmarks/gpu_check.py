"""The Triton backend on a GPU: is it right, how fast is it, and which block sizes are best?

    PYTHONPATH=src python3 benchmarks/gpu_check.py                 # everything, about 4 minutes
    PYTHONPATH=src python3 benchmarks/gpu_check.py check main      # some sections
    PYTHONPATH=src TRITON_INTERPRET=1 python3 benchmarks/gpu_check.py   # without a GPU: a tiny dry run

Sections: check (values and gradients against float64), main (large sizes against plain torch), profile
(time per kernel), forward, points, components (block sizes), splits (segments and programs per
multiprocessor), small (where `auto` should change over), direct (few dimensions). Results go to
$OUT/gpu_check.jsonl, one JSON object per line; a table is printed as it grows.

What was known without a GPU (Triton 3.6, compiled for sm_90 and disassembled; see docs/performance.md): no
kernel spills at d=64, v=16; all products are HGMMA; the forward loop has 576 instructions per 64 scores of a
thread with one pass (893 with three), the points loop 330 per 32 (500), the components loop 410 per 32 (699).
At one instruction per cycle and scheduler and 1.755 GHz, 4,096 × 1,000,000 takes at least 1.2 ms (one pass)
or 1.9 ms (three), exponentials alone 1.1 ms.

What a result suggests:
- `stage_kernel` takes more than a tenth of `profile`: one program per 64 rows.
- The kernels of `profile` take much less than the call: the host is the limit, so use larger segments.
- Larger segments are faster in `splits`: raise `SEGMENT_BYTES`. One slot count is clearly better: `slots_of`.
- Exponentials are the limit: compute a part of them by a polynomial on the FMA units.
- `check` fails for one shape only: compare its entry of `staging.configs` with `OVERRIDES` of another.
"""

from __future__ import annotations

import concurrent.futures
import functools
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kdmkit.ops import Backend, SquaredDistance, attend, log_mix
from kdmkit.ops.triton import backward, forward, staging
from kdmkit.ops.triton.staging import Config, KernelName
from kdmlab.bench.measure import extra_memory as peak_bytes
from kdmlab.bench.measure import time_calls
from kdmlab.common import FORMAT, append_row, machine, versions

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
# A dry run only shows that the script works.
SHRINK = 1 if GPU else 4096
OUT = Path(os.environ.get("OUT", ".")) / "gpu_check.jsonl"
START = time.time()


def record(section: str, **fields: Any) -> None:
    append_row(OUT, {"format": FORMAT, "section": section, **fields})
    shown = "  ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in fields.items())
    print(f"[{time.time() - START:5.0f}s] {section:10s} {shown}", flush=True)


def synchronize() -> None:
    if GPU:
        torch.cuda.synchronize()


def measure(function: Callable[[], object], *, repeats: int = 7) -> float:
    """Median milliseconds after a warm-up."""
    return 1e3 * time_calls(function, seconds=0.0, device=DEVICE, least=repeats if GPU else 2).median


def extra_memory(function: Callable[[], object]) -> float:
    """Peak megabytes beyond what was there before, results included."""
    return peak_bytes(function, DEVICE) / 2**20


class Case:
    """Normal points and components, σ = √d."""

    def __init__(self, n: int, m: int, d: int, v: int, *, seed: int = 0, sigma: float | None = None) -> None:
        n, m = (max(40, size // SHRINK) for size in (n, m)) if not GPU else (n, m)
        g = torch.Generator(DEVICE).manual_seed(seed)
        self.x = torch.randn(n, d, generator=g, device=DEVICE)
        self.c = torch.randn(m, d, generator=g, device=DEVICE)
        self.v = torch.randn(m, v, generator=g, device=DEVICE) if v else None
        self.lw = torch.log_softmax(torch.randn(m, generator=g, device=DEVICE), 0)
        self.scale = torch.full((1, d), 1 / (math.sqrt(d) if sigma is None else sigma), device=DEVICE)

    @property
    def inputs(self) -> list[Tensor]:
        return [t for t in (self.x, self.c, self.lw, self.scale, self.v) if t is not None]

    def run(self, inputs: list[Tensor], backend: Backend) -> tuple[Tensor | None, Tensor]:
        x, c, lw, scale, *values = inputs
        term = SquaredDistance(x, c, scale)
        if values:
            return attend(term, lw, values[0], backend=backend)
        return None, log_mix(term, lw, backend=backend)

    def forward(self, backend: Backend = "triton") -> tuple[Tensor | None, Tensor]:
        with torch.no_grad():
            return self.run(self.inputs, backend)

    def step(self, backend: Backend = "triton") -> tuple[Tensor, ...]:
        return train(self.inputs, lambda inputs: self.run(inputs, backend))


def train(
    inputs: Sequence[Tensor], reduce: Callable[[list[Tensor]], tuple[Tensor | None, Tensor]]
) -> tuple[Tensor, ...]:
    """Gradients of a loss that needs everything."""
    leaves = [t.detach().requires_grad_() for t in inputs]
    averages, lse = reduce(leaves)
    loss = lse.mean() if averages is None else lse.mean() + averages.square().sum(-1).mean()
    return torch.autograd.grad(loss, leaves)


def plain(inputs: list[Tensor]) -> tuple[Tensor | None, Tensor]:
    """What one writes in torch: a matrix product and a softmax."""
    x, c, lw, scale, *values = inputs
    bias = lw - (scale * c).square().sum(-1)
    scores = torch.addmm(bias, 2 * scale.square() * x, c.T)
    row = (scale * x).square().sum(-1)
    lse = torch.logsumexp(scores, -1) - row
    return (torch.softmax(scores, -1) @ values[0] if values else None), lse


def plain_forward(case: Case) -> tuple[Tensor | None, Tensor]:
    with torch.no_grad():
        return plain(case.inputs)


def exact(case: Case, rows: int = 128) -> tuple[Tensor | None, Tensor]:
    """The first rows in float64, by blocks of components."""
    x, c, lw, scale, *values = (t.double() for t in case.inputs)
    x = x[:rows]
    parts = []
    for start in range(0, c.shape[0], 1 << 20):
        block = [t[start : start + (1 << 20)] for t in (c, lw, *values)]
        parts.append(plain([x, block[0], block[1], scale, *block[2:]]))
    lse = torch.stack([p[1] for p in parts])
    total = torch.logsumexp(lse, 0)
    if not values:
        return None, total
    share = (lse - total).exp().unsqueeze(-1)
    return sum(s * p[0] for s, p in zip(share, parts, strict=True)), total


def errors(case: Case, got: tuple[Tensor | None, Tensor]) -> dict[str, float]:
    averages, lse = exact(case)
    result = {"d_lse": (got[1][: lse.shape[0]] - lse).abs().max().item()}
    if averages is not None and got[0] is not None:
        result["d_values"] = (got[0][: lse.shape[0]] - averages).abs().max().item()
    return result


class precision:
    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        self.before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(self.name)

    def __exit__(self, *_: object) -> None:
        torch.set_float32_matmul_precision(self.before)


# -- sections ------------------------------------------------------------------------------------------------


SHAPES = [
    (1, 1, 20, 1), (300, 5000, 64, 16), (1000, 3001, 24, 5), (257, 4099, 128, 10), (200, 3000, 200, 3),
    (200, 3000, 512, 16), (200, 2000, 64, 128), (100, 2000, 128, 100), (500, 7000, 64, 0),
    (300, 5000, 8, 10), (300, 5000, 2, 0), (300, 5000, 16, 16), (300, 5000, 3, 1),
]  # fmt: skip
SMALL = [
    (256, 512, 128, 10), (256, 4096, 64, 10), (1024, 4096, 64, 10), (4096, 4096, 64, 10),
    (1024, 16384, 64, 10), (4096, 16384, 64, 10), (16, 1_000_000, 64, 10),
]  # fmt: skip
DIRECT = [
    (10_000, 100_000, 2, 0),
    (10_000, 100_000, 8, 0),
    (10_000, 100_000, 16, 10),
    (10_000, 100_000, 17, 10),
]


def check() -> None:
    for n, m, d, v in SHAPES:
        for name, allowed in (("highest", 1e-5), ("high", 1e-2)):
            case = Case(n, m, d, v, seed=n + d)
            with precision(name):
                gradients = case.step()
                bad = errors(case, case.forward())
            double = [t.double() for t in case.inputs]
            wanted = train(double, plain)
            labels = ["g_x", "g_c", "g_lw", "g_s", "g_v"]
            for label, a, b in zip(labels, gradients, wanted, strict=False):
                bad[label] = ((a - b).norm() / b.norm().clamp_min(1e-30)).item()
            worst = max(bad, key=lambda key: bad[key])
            ok = bad[worst] <= allowed and not any(math.isnan(e) for e in bad.values())
            record("check", shape=[n, m, d, v], precision=name, ok=ok, worst=worst, error=bad[worst],
                   **({} if ok else bad))  # fmt: skip


def _plain_time(case: Case) -> dict[str, float]:
    try:
        memory = extra_memory(lambda: plain_forward(case))
        return {"ms": measure(lambda: plain_forward(case), repeats=5), "MB": memory}
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return {"ms": math.nan, "MB": math.nan}


def main_sizes() -> None:
    for n, m in ((4096, 1_000_000), (1024, 10_000_000)):
        case = Case(n, m, 64, 16)
        base = _plain_time(case)
        record("main", what="plain torch, highest", n=n, m=m, **base)
        for name in ("highest", "high"):
            with precision(name):
                memory = extra_memory(case.forward)
                ms = measure(case.forward)
                bad = errors(case, case.forward())
            record("main", what=f"triton, {name}", n=n, m=m, ms=ms, ratio=base["ms"] / ms, MB=memory, **bad)
        if GPU and n == 4096:
            with precision("high"):
                record("main", what="plain torch, high", n=n, m=m, **_plain_time(case),
                       **errors(case, plain_forward(case)))  # fmt: skip
        del case
        if GPU:
            torch.cuda.empty_cache()
    case = Case(4096, 262_144, 64, 16)
    memory = extra_memory(lambda: train(case.inputs, plain))
    slow = measure(lambda: train(case.inputs, plain), repeats=3)
    record("main", what="plain torch, forward+backward", ms=slow, MB=memory)
    for name in ("highest", "high"):
        with precision(name):
            mb = extra_memory(case.step)
            ms = measure(case.step)
            fw = measure(case.forward)
        record("main", what=f"triton {name}, forward+backward", ms=ms, ratio=slow / ms, MB=mb,
               memory_ratio=memory / max(mb, 1e-9), forward_ms=fw)  # fmt: skip


def profile() -> None:
    """Which kernels the time goes to."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    for name in ("highest", "high"):
        for label, case, function in (
            ("forward", Case(4096, 1_000_000, 64, 16), Case.forward),
            ("step", Case(4096, 262_144, 64, 16), Case.step),
        ):
            with precision(name):
                function(case)
                activities = [ProfilerActivity.CUDA if GPU else ProfilerActivity.CPU]
                with profiler(activities=activities) as result:
                    function(case)
                    synchronize()
            events = result.key_averages()
            total = [(e.device_time_total / 1e3, e.count, e.key[:28]) for e in events]
            top = sorted(total, reverse=True)[:7]
            record("profile", what=f"{label} {name}", kernels=[f"{k}:{t:.2f}ms x{c}" for t, c, k in top])


FORWARD = {
    1: [(128, 64, 4, 3), (128, 64, 4, 2), (128, 128, 8, 2), (128, 128, 8, 3), (128, 128, 8, 2, 128),
        (128, 128, 8, 3, 128), (64, 128, 4, 3), (128, 64, 8, 3), (128, 128, 4, 2), (64, 64, 4, 3),
        (128, 64, 4, 4)],
    3: [(128, 64, 4, 3), (128, 64, 4, 2), (128, 128, 8, 2), (128, 128, 8, 2, 128), (64, 128, 4, 2),
        (128, 64, 8, 3), (128, 64, 8, 2), (64, 64, 4, 3), (128, 32, 4, 3)],
}  # fmt: skip
POINTS = [(128, 64, 8, 2), (64, 64, 4, 2), (128, 64, 8, 3), (64, 64, 4, 3), (128, 128, 8, 2),
          (64, 128, 4, 2), (128, 32, 8, 3)]  # fmt: skip
COMPONENTS = [(64, 128, 8, 2), (64, 64, 4, 2), (32, 128, 8, 2), (32, 128, 8, 3), (64, 128, 8, 3),
              (32, 64, 4, 3), (32, 64, 4, 2), (64, 128, 8, 2, 168)]  # fmt: skip
Sweep = tuple[KernelName, int, tuple[int, ...]]


def sweeps(sections: set[str]) -> list[Sweep]:
    jobs: list[Sweep] = []
    for passes in (1, 3):
        if "forward" in sections:
            jobs += [("forward", passes, c) for c in FORWARD[passes]]
        if "points" in sections:
            jobs += [("points", passes, c) for c in POINTS]
        if "components" in sections:
            jobs += [("components", passes, c) for c in COMPONENTS]
    return jobs if GPU else [job for job in jobs if job[2] == (64, 64, 4, 3)]


def _sweep_function(kernel: KernelName, case: Case) -> Callable[[], object]:
    operands = False, case.x, case.c, case.lw, case.v, case.scale
    if kernel == "forward":
        return lambda: forward.forward(*operands)
    outputs = forward.forward(*operands)
    upstream = torch.ones_like(outputs[0]), torch.ones_like(outputs[1])
    # By the query alone, or by everything of a component.
    needs = (True, False, False, False, False) if kernel == "points" else (False, True, True, True, False)
    return lambda: backward.backward(operands, outputs, upstream, needs)


def _with_config(job: Sweep, case: Case, use: Callable[[Callable[[], object]], float]) -> float:
    kernel, passes, sizes = job
    with precision("highest" if passes == 3 else "high"):
        function = _sweep_function(kernel, case)
        staging.OVERRIDES[kernel] = Config(*sizes)
        try:
            return use(function)
        finally:
            staging.OVERRIDES.clear()


Warm = tuple[int, int, str]  # dimensions, values, precision


def _compile(job: Sweep | Warm) -> str:
    """Compiles kernels into the cache on disk, in a process of its own."""
    try:
        if isinstance(job[0], str):
            case = Case(300, 3000, 64, 16)
            _with_config(job, case, lambda function: float(function() is None))
        else:
            d, v, name = job
            with precision(name):
                Case(300, 3000, d, v).step()
        return ""
    except Exception as error:
        return f"{job}: {type(error).__name__}: {str(error)[:200]}"


def warm_jobs(sections: set[str]) -> list[Warm]:
    shapes = {
        **{"check": SHAPES, "small": SMALL, "direct": DIRECT},
        **{section: [(0, 0, 64, 16)] for section in ("main", "profile", "splits")},
    }
    kinds = {(d, v) for section in sections for _, _, d, v in shapes.get(section, [])}
    # The longest first: many dimensions, and many unrolled ones.
    return sorted(((d, v, name) for d, v in kinds for name in ("highest", "high")), reverse=True)


def compile_all(jobs: Sequence[Sweep | Warm]) -> None:
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(min(15, os.cpu_count() or 1), mp_context=context) as pool:
        problems = [text for text in pool.map(_compile, jobs) if text]
    record("compile", jobs=len(jobs), problems=problems)


def sweep(jobs: list[Sweep]) -> None:
    for kernel in ("forward", "points", "components"):
        mine = [job for job in jobs if job[0] == kernel]
        if not mine:
            continue
        case = Case(4096, 1_000_000 if kernel == "forward" else 262_144, 64, 16)
        for job in mine:
            try:
                ms = _with_config(job, case, lambda function: measure(function, repeats=5))
                record(kernel, passes=job[1], config=job[2], ms=ms)
            except Exception as error:
                record(
                    kernel, passes=job[1], config=job[2], error=f"{type(error).__name__}: {str(error)[:120]}"
                )


def splits() -> None:
    before, slots_of = staging.SEGMENT_BYTES, forward.slots_of
    for n, m in ((4096, 1_000_000), (1024, 10_000_000)):
        case = Case(n, m, 64, 16)
        for name in ("highest", "high"):
            with precision(name):
                for mb in (8, 16, 24, 32, 48):
                    staging.SEGMENT_BYTES = mb << 20
                    record("splits", n=n, precision=name, segment_MB=mb, ms=measure(case.forward, repeats=5))
                staging.SEGMENT_BYTES = before
                for per in (1, 3, 4, 6):
                    forward.slots_of = lambda device, per=per: per * slots_of(device) // 2  # type: ignore[assignment]
                    ms = measure(case.forward, repeats=5)
                    record("splits", n=n, precision=name, slots_per_SM=per, ms=ms)
                forward.slots_of = slots_of
        del case


def small() -> None:
    """Where `auto` should change from whole matrices to Triton: forward alone, and with gradients."""
    for n, m, d, v in SMALL:
        case = Case(n, m, d, v)
        times = {}
        for backend in ("torch", "triton"):
            times[f"{backend}_fw"] = measure(functools.partial(case.forward, backend), repeats=20)
            times[f"{backend}_step"] = measure(functools.partial(case.step, backend), repeats=20)
        record("small", shape=[n, m, d, v], log2_pairs=math.log2(n * m), **times)


def direct() -> None:
    for n, m, d, v in DIRECT:
        case = Case(n, m, d, v, sigma=0.1)
        ms, step = measure(case.forward), measure(case.step, repeats=3)
        bad = errors(case, case.forward())
        record("direct", shape=[n, m, d, v], ms=ms, step_ms=step, plain_ms=_plain_time(case)["ms"], **bad)


SECTIONS = ("check", "main", "profile", "forward", "points", "components", "splits", "small", "direct")


def run(sections: set[str]) -> None:
    if GPU:
        import triton

        sms = torch.cuda.get_device_properties(DEVICE).multi_processor_count
        record("device", machine=machine(), sms=sms, versions={**versions(), "triton": triton.__version__})
        compile_all([*warm_jobs(sections), *sweeps(sections)])
    steps: list[tuple[str, Callable[[], None]]] = [
        ("check", check),
        ("main", main_sizes),
        ("profile", profile),
    ]
    steps += [("forward points components", lambda: sweep(sweeps(sections)))]
    steps += [("splits", splits), ("small", small), ("direct", direct)]
    for names, function in steps:
        if sections & set(names.split()):
            try:
                function()
            except Exception as error:
                record(names.split()[0], failed=f"{type(error).__name__}: {error}"[:600])


if __name__ == "__main__":
    run(set(sys.argv[1:]) or set(SECTIONS))
