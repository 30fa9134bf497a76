"""Cases of the benchmark: quantities at several sizes, and the implementations that can compute them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kdmlab.bench import peers
from kdmlab.bench.measure import Timing, extra_memory, first_call, time_calls, worst_error
from kdmlab.bench.peers import Inputs

#: An implementation: from the inputs to a function without arguments that computes the quantity.
Peer = Callable[[Inputs], Callable[[], Tensor]]
# Peers that write (n, m) or (n, m, d) arrays are left out beyond this many bytes.
_LARGEST = {"cpu": 6 << 30, "cuda": 100 << 30}
# A call that takes longer than this many seconds is measured once, without a warm-up.
_LONG = 20.0


@dataclass(frozen=True)
class Case:
    """One quantity at one size."""

    kind: str
    n: int
    m: int
    d: int
    v: int
    device: torch.device

    @property
    def name(self) -> str:
        values = f", {self.v} values" if not self._is_density else ""
        return f"{self.kind} {self.n:,} × {self.m:,}, d={self.d}{values}"

    @property
    def _is_density(self) -> bool:
        return self.kind.endswith("density")

    @property
    def key(self) -> dict[str, Any]:
        sizes = {name: getattr(self, name) for name in ("kind", "n", "m", "d", "v")}
        return {"case": self.name, **sizes}

    def inputs(self) -> Inputs:
        p = Inputs.random(self.n, self.m, self.d, self.v, self.device)
        # Densities are estimated with Scott's bandwidth, as a user would.
        scott = math.sqrt(2) * self.m ** (-1 / (self.d + 4))
        return replace(p, sigma=scott) if self._is_density else p

    def fits(self, floats_per_pair: float) -> bool:
        return 4 * floats_per_pair * self.n * self.m <= _LARGEST[self.device.type]

    def peers(self) -> dict[str, Peer]:
        """The implementations that can compute it, the library's first."""
        kinds = {
            "training step": self._steps,
            "density": self._densities,
            "pruned density": self._pruned,
            "class probabilities": self._probabilities,
            "attend": self._attends,
            "attend, forward and backward": self._both_ways,
        }
        return kinds[self.kind]()

    def _steps(self) -> dict[str, Peer]:
        def step(head: type[Any], *, compiled: bool = False) -> Peer:
            def prepare(p: Inputs) -> Callable[[], Tensor]:
                module: Any = torch.compile(head(p)) if compiled else head(p)
                return peers.training_step(module, p)

            return prepare

        peers_by_name = {"kdmkit": step(peers.KdmkitHead)}
        if self.fits(6):
            peers_by_name["plain torch"] = step(peers.PlainHead)
        if self.fits(3 * self.d):
            peers_by_name["materialised"] = step(peers.MaterialisedHead)
        if self.fits(6):
            peers_by_name["torch.compile of plain"] = step(peers.PlainHead, compiled=True)
            peers_by_name["kdmkit, torch.compile"] = step(peers.KdmkitHead, compiled=True)
        if self.device.type == "cuda":
            ours = peers_by_name["kdmkit"]
            peers_by_name["kdmkit, CUDA graph of the step"] = lambda p: peers.graphed(ours(p))
        return peers_by_name

    def _densities(self) -> dict[str, Peer]:
        peers_by_name = {"kdmkit": _later(peers.kdmkit_density)}
        if self.device.type == "cuda":
            peers_by_name["kdmkit, prepared"] = peers.exact_prepared_density
        if self.n * self.m <= 10**9 and self.device.type == "cpu":
            peers_by_name["scikit-learn KernelDensity"] = peers.sklearn_density
            if peers.has_keops():
                peers_by_name["PyKeOps"] = peers.keops_density
        if self.fits(3 * self.d):
            peers_by_name["torch MixtureSameFamily"] = _later(peers.mixture_density)
        return peers_by_name

    def _pruned(self) -> dict[str, Peer]:
        return {
            "kdmkit": _later(peers.kdmkit_density),
            "kdmkit, rtol=1e-3": peers.prepared_density,
            "kdmkit, rtol=1e-3, with the preparation": _later(peers.preparing_density),
        }

    def _probabilities(self) -> dict[str, Peer]:
        return {
            "kdmkit": peers.kdmkit_probs,
            "kdmkit, not prepared": peers.unprepared_probs,
            "kdmkit, the reduction alone": _later(peers.kdmkit_attend),
        }

    def _attends(self) -> dict[str, Peer]:
        peers_by_name = {"kdmkit": _later(peers.kdmkit_attend)}
        if self.fits(2.3):
            peers_by_name["plain torch"] = _later(peers.plain_attend)
            peers_by_name["torch SDPA"] = _later(peers.sdpa_attend)
        if self.fits(2 * self.d):
            peers_by_name["materialised"] = _later(peers.materialised_attend)
        return peers_by_name | self._in_tf32(peers_by_name)

    def _both_ways(self) -> dict[str, Peer]:
        peers_by_name: dict[str, Peer] = {
            "kdmkit": lambda p: peers.both_ways(peers.kdmkit_attend, p.leaves()),
            "plain torch": lambda p: peers.both_ways(peers.plain_attend, p.leaves()),
        }
        return peers_by_name | self._in_tf32(peers_by_name)

    def _in_tf32(self, peers_by_name: dict[str, Peer]) -> dict[str, Peer]:
        """The same on a GPU with float32 products rounded to TF32, as users may allow."""
        if self.device.type != "cuda":
            return {}

        def rounded(peer: Peer) -> Peer:
            return lambda p: peers.in_precision("high", peer(p))

        few = ("kdmkit", "plain torch")
        return {f"{name}, TF32": rounded(peers_by_name[name]) for name in few if name in peers_by_name}

    def truth(self, p: Inputs) -> Tensor | None:
        """The answer to the first queries in float64."""
        few = replace(p, x=p.x[:64], labels=p.labels[:64]).double()
        if self._is_density:
            return peers.kdmkit_density(few)
        averages = self.kind.startswith(("attend", "class"))
        return peers.plain_attend(few) if averages else None

    def measure(self, peer: str, seconds: float) -> dict[str, Any]:
        """Time, memory and error of one peer; `seconds` are spent on repetitions."""
        p = self.inputs()
        truth, call = self.truth(p), self.peers()[peer](p)
        result, first, memory = first_call(call, self.device)
        if first < _LONG:
            timing = time_calls(call, seconds=seconds, device=self.device)
            memory = extra_memory(call, self.device)
        else:
            timing = Timing(first, first, first, 1)
        error = None if truth is None else worst_error(result[: len(truth)], truth)
        return {**asdict(timing), "extra_bytes": memory, "error": error}


def _later(function: Callable[[Inputs], Tensor]) -> Peer:
    return lambda p: partial(function, p)


def cpu_cases() -> list[Case]:
    cpu = torch.device("cpu")
    return [
        Case("training step", 256, 512, 128, 10, cpu),
        Case("training step", 256, 4096, 64, 10, cpu),
        Case("density", 10_000, 100_000, 8, 1, cpu),
        Case("density", 10_000, 100_000, 2, 1, cpu),
        Case("density", 100_000, 1_000_000, 2, 1, cpu),
        Case("pruned density", 10_000, 10_000_000, 2, 1, cpu),
        Case("pruned density", 1_000, 1_000_000, 8, 1, cpu),
        Case("pruned density", 200, 1_000_000, 64, 1, cpu),
        Case("attend", 4096, 100_000, 16, 10, cpu),
        Case("class probabilities", 4096, 100_000, 16, 10, cpu),
    ]


def cuda_cases() -> list[Case]:
    cuda = torch.device("cuda")
    return [
        Case("class probabilities", 4096, 1_000_000, 64, 16, cuda),
        Case("class probabilities", 1024, 10_000_000, 64, 16, cuda),
        Case("class probabilities", 1_000_000, 100_000, 16, 16, cuda),
        Case("attend", 4096, 1_000_000, 64, 16, cuda),
        Case("attend", 1024, 10_000_000, 64, 16, cuda),
        Case("attend, forward and backward", 4096, 262_144, 64, 16, cuda),
        Case("training step", 256, 512, 128, 10, cuda),
        Case("training step", 256, 4096, 64, 10, cuda),
        Case("density", 100_000, 1_000_000, 8, 1, cuda),
        Case("density", 131_072, 1_000_000, 16, 1, cuda),
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
