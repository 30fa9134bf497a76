"""Oracles written from the formulas, independent of the library, and small makers for tests."""

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import integrate
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import kdmkit as kdm
from kdmkit.kernels import FixedBandwidth

#: Continuous kernels by name: each takes a scale as its first argument.
CONTINUOUS: dict[str, Callable[..., Any]] = {
    "rbf": kdm.RBF,
    "epanechnikov": kdm.Epanechnikov,
    "tricube": kdm.Tricube,
}

_TRICUBE_MASS = integrate.quad(lambda u: (1 - abs(u) ** 3) ** 6, -1, 1)[0]


def unit_density(family: str, u: Tensor) -> Tensor:
    """The density of u = (x − c)/scale."""
    if family == "rbf":
        return (-(u**2)).exp() / math.sqrt(math.pi)
    inside = (u.abs() < 1).to(u.dtype)
    if family == "epanechnikov":
        return inside * (15 / 16) * (1 - u**2) ** 2
    return inside * (1 - u.abs() ** 3) ** 6 / _TRICUBE_MASS


def unit_variance(family: str) -> float:
    u = torch.linspace(-8, 8, 200_001, dtype=torch.float64)
    return torch.trapezoid(u**2 * unit_density(family, u), u).item()


def mixture_density(family: str, x: Tensor, c: Tensor, scale: Tensor | float, w: Tensor) -> Tensor:
    """Σ_j w_j Π_i g((x_i − c_ji)/s)/s for x `(n, d)`, c `(m, d)`; scale broadcasts with `(m, d)`."""
    scale = torch.as_tensor(scale, dtype=x.dtype).expand(c.shape)
    parts = unit_density(family, (x[:, None] - c) / scale) / scale
    return parts.prod(-1) @ w


def real(values: Any) -> Tensor:
    """A float64 tensor of Python's numbers, with all their digits."""
    return torch.tensor(values, dtype=torch.float64)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=seeded(seed))


def simplex(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random weights that sum to 1 over the last dimension."""
    return torch.softmax(normal(*shape, seed=seed, dtype=dtype), -1)


def grid(low: float, high: float, n: int, d: int = 1) -> tuple[Tensor, float]:
    """Points `(n^d, d)` of a regular grid and the volume of a cell: Riemann sums over wide intervals."""
    axis = torch.linspace(low, high, n, dtype=torch.float64)
    points = torch.cartesian_prod(*[axis] * d).reshape(-1, d)
    return points, float(axis[1] - axis[0]) ** d


def quadrature(function: Callable[[Tensor], Tensor], low: float, high: float, panels: int = 40) -> Tensor:
    """log ∫ exp(function) from `low` to `high`."""
    nodes, weights = np.polynomial.legendre.leggauss(16)
    edges = torch.linspace(low, high, panels + 1, dtype=torch.float64)
    half = (high - low) / panels / 2
    x = (edges[:-1, None] + half * (1 + torch.from_numpy(nodes))).flatten()
    logs = torch.from_numpy(weights).log().repeat(panels) + math.log(half)
    return torch.logsumexp(function(x) + logs, -1)


def close(actual: Tensor, wanted: Tensor, *, rtol: float = 1e-9, atol: float = 1e-11) -> None:
    """Values and shapes agree; dtypes need not."""
    assert actual.shape == wanted.shape, (actual.shape, wanted.shape)
    torch.testing.assert_close(actual.to(wanted.dtype), wanted, rtol=rtol, atol=atol)


#: Components of the kernels below that have a bandwidth for each.
M = 4


def _encoder() -> torch.nn.Module:
    linear = torch.nn.Linear(4, 2, dtype=torch.float64)
    with torch.no_grad():
        linear.weight.copy_(normal(2, 4, seed=5) / 2)
        linear.bias.zero_()
    return linear


#: Every kernel by name, in every form of its parameters. Continuous ones are over two dimensions.
KERNELS: dict[str, Callable[[], kdm.Kernel]] = {
    "rbf": lambda: kdm.RBF(0.3),
    "rbf-ard": lambda: kdm.RBF([0.3, 0.8]),
    "rbf-metric": lambda: kdm.RBF.from_metric(real([[2.0, 0.0], [-1.5, 1.2]])),
    "rbf-per-component": lambda: kdm.RBF([[0.3], [0.5], [0.8], [1.2]]),
    "rbf-per-component-ard": lambda: kdm.RBF([[0.3, 1.0], [0.5, 0.9], [0.8, 0.4], [1.2, 0.6]]),
    "rbf-fixed": lambda: kdm.RBF(FixedBandwidth("sigma", [0.3, 0.8])),
    "rbf-fixed-per-component": lambda: kdm.RBF(FixedBandwidth("sigma", [[0.3], [0.5], [0.8], [1.2]])),
    "low-rank": lambda: kdm.LowRank([0.3, 0.8], [[0.7], [-0.4]]),
    "low-rank-per-component": lambda: kdm.LowRank([[0.3], [0.5], [0.8], [1.2]], normal(M, 2, 2, seed=6)),
    "low-rank-fixed": lambda: kdm.LowRank(FixedBandwidth("sigma", [0.3, 0.8]), normal(M, 2, 1, seed=6)),
    "epanechnikov": lambda: kdm.Epanechnikov(1.5),
    "epanechnikov-ard": lambda: kdm.Epanechnikov([1.5, 0.7]),
    "epanechnikov-per-component": lambda: kdm.Epanechnikov([[1.5], [2.0], [1.2], [0.9]]),
    "tricube": lambda: kdm.Tricube(1.5),
    "tricube-ard": lambda: kdm.Tricube([1.5, 0.7]),
    "tricube-per-component-ard": lambda: kdm.Tricube([[1.5, 1.0], [2.0, 1.1], [1.2, 0.9], [0.9, 1.4]]),
    "cosine": lambda: kdm.Cosine(),
    "categorical": lambda: kdm.Categorical(3),
    "categorical-smooth": lambda: kdm.Categorical(3, smoothing=0.2),
    "levels": lambda: kdm.Levels(3, smoothing=0.2),
    "transformed-log": lambda: kdm.Transformed.log(kdm.RBF(0.3)),
    "transformed-logit-per-component": lambda: kdm.Transformed.logit(
        kdm.RBF([[0.3], [0.5], [0.8], [1.2]]), -4, 4
    ),
    "transformed-quantile": lambda: kdm.Transformed.quantile_normal(
        kdm.Tricube(1.5), normal(400, seed=9).exp()
    ),
    "truncated": lambda: kdm.Truncated(kdm.RBF(0.6), -1.0, 1.5),
    "rounded": lambda: kdm.Rounded(kdm.Transformed.log(kdm.RBF(0.4)), 0.25),
    "inflated": lambda: kdm.Inflated(kdm.Transformed.log(kdm.RBF(0.3)), [0.0, 1.0]),
    "inflated-missing": lambda: kdm.Inflated(kdm.Truncated(kdm.RBF(0.5), -1.0, 2.0), [2.0, math.nan]),
    "inflated-rounded": lambda: kdm.Inflated(kdm.Rounded(kdm.RBF(0.8), 0.5), [0.0, math.nan]),
    "periodic": lambda: kdm.Periodic(2.0, 5.0),
    "periodic-ard": lambda: kdm.Periodic([2.0, 0.3], 5.0),
    "periodic-per-component": lambda: kdm.Periodic([[2.0], [0.5], [7.0], [1.2]], 5.0),
    "periodic-whole": lambda: kdm.Periodic(1.5, 7, whole=True),
    "composed": lambda: kdm.Composed(_encoder(), kdm.RBF(0.7)),
    "composed-compact": lambda: kdm.Composed(_encoder(), kdm.Tricube(2.0)),
}


def event_shape(kernel: kdm.Kernel) -> torch.Size:
    """The shape of one event of one of `KERNELS`."""
    if kernel.event_dim == 0:
        return torch.Size()
    one = isinstance(kernel, kdm.Rounded | kdm.Inflated)
    return torch.Size([1 if one else {kdm.Cosine: 3, kdm.Composed: 4}.get(type(kernel), 2)])


def events(kernel: kdm.Kernel, n: int, *, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random events of one of `KERNELS`."""
    if isinstance(kernel, kdm.Categorical):
        return torch.randint(kernel.n, (n,), generator=seeded(seed))
    if not kernel.components_are_events:
        c, index = components(kernel, M, seed=seed), torch.arange(n) % M
        drawn = kernel.sample(c[index], index, seeded(seed)).detach()
        return drawn.to(dtype) if drawn.is_floating_point() else drawn
    return normal(n, *event_shape(kernel), seed=seed, dtype=dtype)


def components(kernel: kdm.Kernel, m: int, *, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random components of one of `KERNELS`."""
    if kernel.components_are_events:
        return events(kernel, m, seed=seed, dtype=dtype)
    return normal(m, *kernel.component_shape(event_shape(kernel)), seed=seed, dtype=dtype)


class Operations(TorchDispatchMode):
    """Counts operations of torch; `largest` is the number of elements of their largest result."""

    calls = largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        result = [one for one in (out if isinstance(out, tuple | list) else [out]) if torch.is_tensor(one)]
        self.largest = max([self.largest, *(one.numel() for one in result)])
        self.calls += 1
        return out


def count_calls(function: Callable[[], Any]) -> int:
    """How many functions start and end while a function runs."""
    count = 0

    def profile(*_: Any) -> None:
        nonlocal count
        count += 1

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def two_processes(module: str, folder: Path, timeout: float = 120) -> list[dict[str, Any]]:
    """What each of two processes, started by torchrun, saved: `module` gets the folder as its argument."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    result = subprocess.run(
        [*launch, "-m", module, str(folder)],
        cwd=Path(__file__).parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
    assert result.returncode == 0, result.stderr
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]
