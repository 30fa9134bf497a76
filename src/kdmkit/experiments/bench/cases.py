"""What is measured: shapes and the peers that can run them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kdmkit.experiments.bench import peers
from kdmkit.experiments.bench.peers import Problem

Call = Callable[[], Tensor]
# Peers that write (n, m) or (n, m, d) arrays are left out beyond this many bytes.
_LARGEST = {"cpu": 6 << 30, "cuda": 100 << 30}


@dataclass(frozen=True)
class Case:
    """One quantity at one size; `calls` maps peers to functions that compute it."""

    kind: str
    n: int
    m: int
    d: int
    v: int
    device: torch.device

    @property
    def name(self) -> str:
        values = f", {self.v} values" if self.kind != "density" else ""
        return f"{self.kind} {self.n:,} × {self.m:,}, d={self.d}{values}"

    def problem(self) -> Problem:
        p = Problem.random(self.n, self.m, self.d, self.v, self.device)
        # Densities are estimated with Scott's bandwidth, as a user would.
        scott = math.sqrt(2) * self.m ** (-1 / (self.d + 4))
        return replace(p, sigma=scott) if self.kind == "density" else p

    def fits(self, floats_per_pair: float) -> bool:
        return 4 * floats_per_pair * self.n * self.m <= _LARGEST[self.device.type]

    def calls(self, p: Problem) -> dict[str, Call]:
        kinds = {
            "training step": self._steps,
            "density": self._densities,
            "attend": self._attends,
            "attend, forward and backward": self._both_ways,
        }
        return kinds[self.kind](p)

    def _steps(self, p: Problem) -> dict[str, Call]:
        heads: dict[str, type[Any]] = {"kdmkit": peers.KdmkitHead}
        if self.fits(6):
            heads["plain torch"] = peers.PlainHead
        if self.fits(3 * self.d):
            heads["materialised"] = peers.MaterialisedHead
        calls = {name: peers.training_step(head(p), p) for name, head in heads.items()}
        if self.fits(6):
            calls["torch.compile of plain"] = peers.training_step(_compiled(peers.PlainHead(p)), p)
            calls["kdmkit, torch.compile"] = peers.training_step(_compiled(peers.KdmkitHead(p)), p)
        if self.device.type == "cuda":
            calls["kdmkit, CUDA graph of the step"] = peers.graphed(
                peers.training_step(peers.KdmkitHead(p), p)
            )
        return calls

    def _densities(self, p: Problem) -> dict[str, Call]:
        calls: dict[str, Call] = {"kdmkit": lambda: peers.kdmkit_density(p)}
        if self.n * self.m <= 10**9 and self.device.type == "cpu":
            calls["scikit-learn KernelDensity"] = peers.sklearn_density(p)
        keops = peers.keops_density(p) if self.n * self.m <= 10**9 and self.device.type == "cpu" else None
        if keops is not None:
            calls["PyKeOps"] = keops
        if self.fits(3 * self.d):
            calls["torch MixtureSameFamily"] = lambda: peers.mixture_density(p)
        return calls

    def _attends(self, p: Problem) -> dict[str, Call]:
        calls: dict[str, Call] = {"kdmkit": lambda: peers.kdmkit_attend(p)}
        if self.fits(2.3):
            calls["plain torch"] = lambda: peers.plain_attend(p)
            calls["torch SDPA"] = lambda: peers.sdpa_attend(p)
        if self.fits(2 * self.d):
            calls["materialised"] = lambda: peers.materialised_attend(p)
        return calls | self._in_tf32(calls)

    def _both_ways(self, p: Problem) -> dict[str, Call]:
        leaves = p.leaves()
        calls = {
            "kdmkit": peers.both_ways(peers.kdmkit_attend, leaves),
            "plain torch": peers.both_ways(peers.plain_attend, leaves),
        }
        return calls | self._in_tf32(calls)

    def _in_tf32(self, calls: dict[str, Call]) -> dict[str, Call]:
        """The same on a GPU with float32 products rounded to TF32, as users may allow."""
        if self.device.type != "cuda":
            return {}
        few = ("kdmkit", "plain torch")
        return {f"{name}, TF32": peers.in_precision("high", calls[name]) for name in few if name in calls}

    def truth(self, p: Problem) -> Tensor | None:
        """The answer in float64, of the first queries."""
        few = replace(p, x=p.x[:64], labels=p.labels[:64]).double()
        if self.kind == "density":
            return peers.kdmkit_density(few)
        return peers.plain_attend(few) if self.kind.startswith("attend") else None


def _compiled(head: torch.nn.Module) -> Any:
    return torch.compile(head)


def cpu_cases() -> list[Case]:
    cpu = torch.device("cpu")
    return [
        Case("training step", 256, 512, 128, 10, cpu),
        Case("training step", 256, 4096, 64, 10, cpu),
        Case("density", 10_000, 100_000, 8, 1, cpu),
        Case("density", 10_000, 100_000, 2, 1, cpu),
        Case("density", 100_000, 1_000_000, 2, 1, cpu),
        Case("attend", 4096, 100_000, 16, 10, cpu),
    ]


def cuda_cases() -> list[Case]:
    cuda = torch.device("cuda")
    return [
        Case("attend", 4096, 1_000_000, 64, 16, cuda),
        Case("attend", 1024, 10_000_000, 64, 16, cuda),
        Case("attend, forward and backward", 4096, 262_144, 64, 16, cuda),
        Case("training step", 256, 512, 128, 10, cuda),
        Case("training step", 256, 4096, 64, 10, cuda),
        Case("density", 100_000, 1_000_000, 8, 1, cuda),
    ]


def growth_cases(device: torch.device) -> list[Case]:
    """How cost grows with queries, components and dimensions, one at a time."""
    big = 16 if device.type == "cuda" else 1
    sizes = [2**k for k in range(6, 15, 2)]
    return [
        *(Case("attend", n * big, 4096, 32, 10, device) for n in sizes),
        *(Case("attend", 1024, m * big, 32, 10, device) for m in sizes),
        *(Case("attend", 1024, 4096 * big, d, 10, device) for d in (2, 8, 32, 128, 512)),
    ]
