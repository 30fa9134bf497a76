"""Forms of kernels that a fit of many columns can stack: normal densities of cells, tables, circles.

Number kernels (`Inflated`, `Rounded`, `Transformed`, `Truncated` around an RBF kernel) change a number in
steps without parameters, and then ask a normal density for its height at a point or its mass on an interval.
So every event is a *cell*: a point or an interval of the normal variable, an atom, or both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, TypeGuard

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kdmkit.kernels.bandwidth import Bandwidth, LearnedBandwidth
from kdmkit.kernels.base import Kernel
from kdmkit.kernels.calculus.transforms import Change
from kdmkit.kernels.inflated import Inflated
from kdmkit.kernels.levels import Levels
from kdmkit.kernels.periodic import Periodic
from kdmkit.kernels.rbf import RBF
from kdmkit.kernels.rounded import Rounded
from kdmkit.kernels.transformed import Transformed
from kdmkit.kernels.truncated import Truncated


class NormalCells(NamedTuple):
    """Events in the variable of a normal density, in float64.

    Attributes:
        middle: the point, or the middle of the interval.
        width: of the interval; 0 for a point.
        log_slope: log|T′(x)| at a point; 0 for an interval.
        atom: 1 + the number of the atom, or 0.
    """

    middle: Float[Tensor, " n"]
    width: Float[Tensor, " n"]
    log_slope: Float[Tensor, " n"]
    atom: Int[Tensor, " n"]


@dataclass(frozen=True)
class NormalForm:
    """p(x | c) = p₀·f(cell of x) + Σ_a p_a·[x = a], f being a normal density between `low` and `high`.

    Components are [logits of p₀, p_1 … p_A, centre]; without atoms they are centres.

    Attributes:
        bandwidth: σ of every component; the standard deviation is σ/√2.
        low, high: the ends of the density.
        n_atoms: A.
        has_masses: whether cells are intervals.

    >>> import kdmkit as kdm
    >>> kernel = kdm.Inflated(kdm.Rounded(kdm.RBF(torch.ones(3, 1)), step=0.5), [0.0])
    >>> form = NormalForm.of(kernel)
    >>> form.cells(torch.tensor([[0.0], [1.0]])).width, form.n_atoms
    (tensor([0.5000, 0.5000], dtype=torch.float64), 1)
    """

    bandwidth: LearnedBandwidth
    low: float = -math.inf
    high: float = math.inf
    change: Change | None = None
    grid: Rounded | None = None
    inflated: Inflated | None = None

    @classmethod
    def of(cls, kernel: Kernel) -> NormalForm | None:
        """The form of a kernel of one dimension with learned bandwidths of components; None for others."""
        inflated = kernel if isinstance(kernel, Inflated) else None
        inner: Kernel = kernel.kernel if isinstance(kernel, Inflated) else kernel
        grid = inner if isinstance(inner, Rounded) else None
        inner = inner.kernel if isinstance(inner, Rounded) else inner
        change = inner.change if isinstance(inner, Transformed) else None
        inner = inner.kernel if isinstance(inner, Transformed) else inner
        low, high = -math.inf, math.inf
        if isinstance(inner, Truncated):
            if inner.low.numel() > 1 or inner.high.numel() > 1:
                return None
            low, high, inner = inner.low.item(), inner.high.item(), inner.kernel
        if not isinstance(inner, RBF) or inner.shear is not None:
            return None
        bandwidth = inner.bandwidth
        if (
            not isinstance(bandwidth, LearnedBandwidth)
            or len(bandwidth.shape) != 2
            or bandwidth.shape[-1] > 1
        ):
            return None
        return cls(bandwidth, low, high, change, grid, inflated)

    @property
    def n_atoms(self) -> int:
        return 0 if self.inflated is None else self.inflated.n_atoms

    @property
    def has_masses(self) -> bool:
        return self.grid is not None

    def cells(self, x: Float[Tensor, "n 1"]) -> NormalCells | None:
        """The cells of events; None if the kernel gives one of them no probability."""
        atom = torch.zeros(len(x), dtype=torch.long)
        if self.inflated is not None:
            match = self.inflated._match(x)
            atom = torch.where(match.any(-1), match.int().argmax(-1) + 1, 0)
        x = x.squeeze(-1).double()
        is_number = ~x.isnan()
        is_dense = is_number & ((atom == 0) if self.grid is None else True)
        parts = torch.zeros(3, len(x), dtype=torch.float64)
        parts[:, is_dense] = torch.stack(self._dense(x[is_dense]))
        middle, width, slope = parts
        has_mass = (middle >= self.low) & (middle <= self.high) & ((width > 0) | (self.grid is None))
        if not bool(torch.where(is_dense, has_mass, atom > 0).all()):
            return None
        return NormalCells(middle, width, slope, atom)

    def _dense(self, x: Float[Tensor, " n"]) -> tuple[Tensor, Tensor, Tensor]:
        """Middles, widths and log-slopes."""
        zero = torch.zeros_like(x)
        if self.grid is None:
            if self.change is None:
                return x, zero, zero
            inside = self.change.inside(x)
            point = self.change.stand_in(x)
            return torch.where(inside, self.change(point), math.nan), zero, self.change.log_slope(point)
        ends = self.grid._edges(self.grid.position(x).round())
        if self.change is not None:
            first, last = [self.change.bound(end) for end in ends]
            ends = (first, last) if self.change.increasing else (last, first)
        low, high = [end.clamp(self.low, self.high) for end in ends]
        return 0.5 * (low + high), high - low, zero


def has_level_table(kernel: Kernel) -> TypeGuard[Levels]:
    """Whether a kernel is a table of logits, with nothing else that is trained."""
    return isinstance(kernel, Levels) and not isinstance(kernel.logit, nn.Parameter)


def is_circle(kernel: Kernel) -> TypeGuard[Periodic]:
    """Whether a kernel is a von Mises density with a learned bandwidth for every component."""
    return isinstance(kernel, Periodic) and not kernel.whole and _is_column(kernel.bandwidth)


def _is_column(bandwidth: Bandwidth) -> TypeGuard[LearnedBandwidth]:
    return isinstance(bandwidth, LearnedBandwidth) and bandwidth.shape[1:] == (1,)
