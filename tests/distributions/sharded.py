"""Mixtures that test_shards.py asks in one process and in two: `torchrun … -m distributions.sharded`."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

import kdmkit as kdm
from helpers import seeded
from kdmkit.kernels import check_continuous

M, D, CLASSES = 301, 3, 4


def _numbers(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=dtype)


def density(dtype: torch.dtype, *, bandwidths: bool = False) -> kdm.KDM:
    sigma = 0.3 + torch.rand(M, D, generator=seeded(3), dtype=dtype) if bandwidths else 0.4
    weights = torch.rand(M, generator=seeded(1), dtype=dtype)
    return kdm.KDM(_numbers(M, D, seed=0, dtype=dtype), weights / weights.sum(), kdm.RBF(sigma))


def joint(dtype: torch.dtype, kernel: kdm.Kernel | None = None) -> kdm.JointKDM:
    x = _numbers(M, D, seed=0, dtype=dtype)
    y = torch.rand(M, CLASSES, generator=seeded(2), dtype=dtype)
    z = x.sum(1, keepdim=True) + 0.1 * _numbers(M, 1, seed=4, dtype=dtype)
    weights = torch.rand(M, generator=seeded(1), dtype=dtype)
    kernels = {"x": kernel or kdm.RBF(0.5), "y": kdm.Cosine(), "z": kdm.RBF(0.3)}
    return kdm.JointKDM(
        {"x": x, "y": y / y.norm(dim=1, keepdim=True), "z": z}, weights / weights.sum(), kernels
    )


def questions(rho: kdm.KDM) -> dict[str, Tensor]:
    x = 2 * _numbers(20, D, seed=5, dtype=rho.components.dtype)
    far = x + 30
    return {
        "log_prob": rho.log_prob(x),
        "far": rho.log_prob(far) / far.square().sum(-1),
        "mean": rho.mean,
        "variance": rho.variance,
        "log_mass": rho.log_mass(kdm.Interval(-torch.ones(D), torch.ones(D))),
    }


def inferences(rho: kdm.JointKDM) -> dict[str, Tensor]:
    dtype = rho.components["x"].dtype
    x, z = _numbers(20, D, seed=6, dtype=dtype), _numbers(20, 1, seed=7, dtype=dtype)
    labels = torch.arange(20) % CLASSES
    given_x = rho.infer(x=x)
    assert isinstance(given_x, kdm.JointKDM)
    of_y, of_z = given_x.marginal("y"), given_x.marginal("z")
    mask = torch.arange(20) % 2 == 0
    bag = kdm.KDM(x[:3], torch.tensor([0.2, 0.3, 0.5], dtype=dtype), rho.kernels["x"])
    return {
        "log_prob": rho.log_prob(x=x, y=labels, z=z),
        "log_evidence": of_y.log_evidence,
        "probs": of_y.probs,
        "log p(y|x)": of_y.log_prob(labels),
        "log p(z|x)": of_z.log_prob(z),
        "log p(y, z|x)": given_x.log_prob(y=labels, z=z),
        "mean": of_z.mean,
        "variance": of_z.variance,
        "p(y|x, z)": rho.infer(x=x, z=z, observed={"x": mask}, target="y").probs,
        "backwards": rho.infer(y=labels, target="z").mean,
        "bag": rho.infer(x=bag, target="y").probs,
        "no overlap": rho.infer(x=x + 1000, target="y").probs,
    }


#: By name: what is saved and asked, and the questions.
CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], dict[str, Tensor]]]] = {
    "float32": (lambda: density(torch.float32), questions),
    "float64": (lambda: density(torch.float64), questions),
    "a bandwidth per component": (lambda: density(torch.float64, bandwidths=True), questions),
    "joint, float32": (lambda: joint(torch.float32), inferences),
    "joint, float64": (lambda: joint(torch.float64), inferences),
    "joint, compact": (lambda: joint(torch.float64, kdm.Epanechnikov(1.5)), inferences),
}


def part(rho: kdm.KDM, rows: slice) -> tuple[kdm.KDM, float]:
    """Some components of a density as a density of its own, and their weight."""
    log_weights = rho.log_weights[rows]
    total = log_weights.logsumexp(0)
    kernel = rho.kernel if not rho.kernel.per_component else check_continuous("x", rho.kernel).take(rows)
    return kdm.KDM(rho.components[rows], None, kernel, log_weights=log_weights - total), float(total.exp())


def refusals(folder: Path, rank: int) -> dict[str, str]:
    """What shards cannot answer, and shards that do not fit together; every process says so."""
    whole = density(torch.float64)
    rho = kdm.join_shards(whole)
    both = kdm.load_shard(folder / "joint, float64")
    told = {}
    asked: dict[str, Callable[[], Any]] = {
        "weights": lambda: rho.weights,
        "sample": lambda: rho.sample((2,)),
        "icdf": lambda: rho.coordinates(0).icdf(0.5),
        "save": lambda: kdm.save(rho, folder / f"never-{rank}"),
        "evidence": lambda: both.infer(x=both.marginal("x")),
        "twice": lambda: both.infer(x=torch.zeros(D)).infer(y=torch.tensor(1)).mean,
        "again": lambda: kdm.join_shards(rho),
        "kernels": lambda: kdm.join_shards(whole.with_kernel(kdm.RBF(0.4 + rank))),
        "class": lambda: kdm.load_shard(folder / "other"),
        "absent": lambda: kdm.load_shard(folder / ("absent" if rank else "float64")),
        "files": lambda: kdm.load_shard(folder / ("float32" if rank else "float64")),
        "few": lambda: kdm.load_shard(folder / "few"),
    }
    for name, ask in asked.items():
        try:
            ask()
        except (TypeError, ValueError) as error:
            told[name] = str(error)
    return told


def everything(folder: Path, rank: int, count: int) -> dict[str, Any]:
    """The answers of all cases, from files and from parts that every process made."""
    found: dict[str, Any] = {name: ask(kdm.load_shard(folder / name)) for name, (_, ask) in CASES.items()}
    rho, weight = part(density(torch.float64), slice(rank, None, count))
    found["parts"] = questions(kdm.join_shards(rho, weight=weight))
    found["components"] = kdm.load_shard(folder / "float64").n_components
    found["refusals"] = refusals(folder, rank)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    process, place = int(os.environ["RANK"]), Path(sys.argv[1])
    torch.save(everything(place, process, int(os.environ["WORLD_SIZE"])), place / f"{process}.pt")
    distributed.destroy_process_group()
