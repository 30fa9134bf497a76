"""The cost of a tree of joint KDMs: a training step, its scaling, the scoring of many rows, and a GPU.

    python benchmarks/tree.py step scaling rows     # on a CPU with two threads, about five minutes
    python benchmarks/tree.py cuda                  # on a GPU
    python benchmarks/tree.py plot                  # results/tree-cost.png from results/tree-cost.jsonl

A step builds the tree from its parameters (softmax of all edges included), computes the log-density of all
rows, and the gradients by all parameters. Columns are one-dimensional RBFs with a bandwidth per component.
Results go to $OUT/tree-cost.jsonl, or to results/tree-cost.jsonl. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import kdmkit as kdm
from kdmkit.distributions.tree import States, Topology
from kdmkit.ops.messages import Tables
from kdmlab.bench.measure import extra_memory, first_call, time_calls
from kdmlab.common import FORMAT, append_row, machine, read_rows, versions

RESULTS = Path(__file__).resolve().parents[1] / "results"
PATH = Path(os.environ.get("OUT", RESULTS)) / "tree-cost.jsonl"
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """A tree in which node i has the parent (i − 1)//2, and rows to score."""

    rows: int
    columns: int
    states: int

    @property
    def parents(self) -> dict[str, str | None]:
        return {f"x{i}": f"x{(i - 1) // 2}" if i else None for i in range(self.columns)}


class Model:
    """The parameters of a tree, and a training step."""

    def __init__(self, case: Case, device: torch.device) -> None:
        torch.manual_seed(0)
        k, names = case.states, list(case.parents)
        self.case, self.topology = case, Topology.of(case.parents)
        self.components = {n: torch.randn(k, 1, device=device, requires_grad=True) for n in names}
        kernels = {n: kdm.RBF(torch.full((k, 1), 0.3), trainable=True) for n in names}
        self.kernels = {name: kernel.to(device) for name, kernel in kernels.items()}
        self.root = torch.randn(k, device=device, requires_grad=True)
        self.edges = torch.randn(case.columns - 1, k, k, device=device, requires_grad=True)
        self.values = {name: torch.randn(case.rows, 1, device=device) for name in names}

    @property
    def parameters(self) -> list[Tensor]:
        sigmas = [parameter for kernel in self.kernels.values() for parameter in kernel.parameters()]
        return [*self.components.values(), *sigmas, self.root, self.edges]

    def built(self, *, checked: bool = False) -> kdm.TreeKDM:
        """The model, made by the public constructor."""
        logs = torch.log_softmax(self.edges, -1).unbind(0)
        return kdm.TreeKDM(
            self.components,
            self.kernels,
            self.case.parents,
            log_root_weights=torch.log_softmax(self.root, -1),
            log_edge_weights=dict(zip(self.topology.nodes[1:], logs, strict=True)),
            validate_args=checked,
        )

    def made(self) -> kdm.TreeKDM:
        """The model as layers make it: edges in one tensor, above the floor. Nothing waits for a device."""
        tables = Tables.above_floor(torch.softmax(self.edges, -1))
        states = States(self.topology, torch.log_softmax(self.root, -1), tables)
        return kdm.TreeKDM._made(self.components, self.kernels, states, False)

    def step(self, build: Callable[[], kdm.TreeKDM]) -> None:
        for parameter in self.parameters:
            parameter.grad = None
        build().log_prob(**self.values).mean().neg().backward()


def record(section: str, case: Case, **fields: Any) -> None:
    place = {"machine": machine(), "versions": versions()}
    append_row(PATH, {"format": FORMAT, "section": section, **asdict(case), **fields, **place})
    shown = "  ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in fields.items())
    print(
        f"{section:8} {case.rows} rows × {case.columns} columns × {case.states} states  {shown}", flush=True
    )


def step() -> None:
    case = Case(512, 15, 256)
    model = Model(case, CPU)
    builds = {"constructor": model.built, "constructor, checked": lambda: model.built(checked=True)}
    for name, build in {**builds, "layer": model.made}.items():
        record(
            "step",
            case,
            build=name,
            **asdict(time_calls(lambda b=build: model.step(b), seconds=5, device=CPU)),
        )


def scaling() -> None:
    start = Case(512, 15, 256)
    cases = {
        "rows": [Case(rows, 15, 256) for rows in (128, 256, 512, 1024, 2048, 4096)],
        "columns": [Case(512, columns, 256) for columns in (4, 8, 15, 30, 60)],
        "states": [Case(512, 15, states) for states in (64, 128, 256, 512, 1024)],
    }
    for along, several in cases.items():
        for case in several:
            model = Model(case, CPU)
            timing = time_calls(lambda m=model: m.step(m.built), seconds=2, device=CPU)
            record("scaling", case, along=along, start=asdict(start), **asdict(timing))


def rows() -> None:
    case = Case(100_000, 200, 64)
    model = Model(case, CPU)
    tree = model.built(checked=True)
    with torch.no_grad():
        result, seconds, memory = first_call(lambda: tree.log_prob(**model.values), CPU)
    record("rows", case, seconds=seconds, extra_bytes=memory, finite=bool(result.isfinite().all()))


def cuda() -> None:
    device = torch.device("cuda")
    for states in (256, 512, 1024):
        case = Case(512, 15, states)
        model = Model(case, device)
        eager = time_calls(lambda m=model: m.step(m.made), seconds=1, device=device)
        record(
            "cuda",
            case,
            how="eager",
            memory=extra_memory(lambda m=model: m.step(m.made), device),
            **asdict(eager),
        )
        graph = captured(model)
        record("cuda", case, how="graph", **asdict(time_calls(graph.replay, seconds=1, device=device)))
        error = agreement(model, graph)
        record("agreement", case, log_prob_error=error[0], gradient_error=error[1])


def captured(model: Model) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            model.step(model.made)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    for parameter in model.parameters:
        parameter.grad = None
    with torch.cuda.graph(graph):
        model.made().log_prob(**model.values).mean().neg().backward()
    return graph


def agreement(model: Model, graph: torch.cuda.CUDAGraph) -> tuple[float, float]:
    """Errors of the graph's gradients and of log p, relative to 1 + |log p|, against float64 on the CPU."""
    graph.replay()
    torch.cuda.synchronize()
    gradient = model.edges.grad
    assert gradient is not None
    wide = Model(model.case, CPU)
    wide.components = {n: c.detach().cpu().double().requires_grad_() for n, c in model.components.items()}
    wide.kernels = {n: kdm.RBF(k.sigma.detach().cpu().double()) for n, k in model.kernels.items()}
    wide.root = model.root.detach().cpu().double().requires_grad_()
    wide.edges = model.edges.detach().cpu().double().requires_grad_()
    wide.values = {n: x.cpu().double() for n, x in model.values.items()}
    exact = wide.made().log_prob(**wide.values)
    exact.mean().neg().backward()
    assert wide.edges.grad is not None
    with torch.no_grad():
        log_p = model.made().log_prob(**model.values).cpu().double()
    scale = wide.edges.grad.abs().max()
    error = ((log_p - exact) / (1 + exact.abs())).abs().max()
    return float(error.detach()), float((gradient.cpu().double() - wide.edges.grad).abs().max() / scale)


def plot() -> None:
    import matplotlib.pyplot as plt

    lines = [row for row in read_rows(RESULTS / "tree-cost.jsonl") if row["section"] == "scaling"]
    figure, axes = plt.subplots(1, 3, figsize=(9, 3), sharey=True, layout="constrained")
    for axis, along, power in zip(axes, ("rows", "columns", "states"), (1, 1, 2), strict=True):
        newest = {row[along]: 1e3 * row["median"] for row in lines if row["along"] == along}
        sizes = sorted(newest)
        times = [newest[size] for size in sizes]
        axis.loglog(sizes, times, "o-", label="measured")
        last = [times[-1] * (size / sizes[-1]) ** power for size in sizes]
        axis.loglog(
            sizes, last, "--", color="grey", label=f"proportional to {along}{'²' if power == 2 else ''}"
        )
        axis.set_xlabel(along)
        axis.set_xticks(sizes, [str(size) for size in sizes])
        axis.minorticks_off()
        axis.legend()
    axes[0].set_ylabel("ms per step")
    figure.suptitle("Training step of a tree (512 rows × 15 columns × 256 states, one varied)")
    figure.savefig(RESULTS / "tree-cost.png", dpi=120)


SECTIONS: dict[str, Callable[[], None]] = {
    "step": step,
    "scaling": scaling,
    "rows": rows,
    "cuda": cuda,
    "plot": plot,
}


def main() -> None:
    torch.set_num_threads(2)
    for name in sys.argv[1:] or ["step", "scaling", "rows"]:
        SECTIONS[name]()


if __name__ == "__main__":
    main()
