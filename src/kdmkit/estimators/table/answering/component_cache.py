"""Quantities of a variable's components that do not depend on evidence: computed once."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any, TypeVar, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit.distributions.quantiles import Knots
from kdmkit.kernels import Interval, Kernel, Periodic

# Numbers of a table: 4 MB, a tenth of a second.
_NUMBERS = 1 << 19
# Nodes of a quadrature; if narrow components need more, their distribution functions are computed.
_MOST_NODES = 64
# The largest number of digits between two entries of a table for which their probabilities are listed.
_MOST_LISTED = 1024


class Turn:
    """P_j(digit ≤ d) of every component j, for the digits 0 … period − 1.

    A digit d has the arc from d − ½ to d + ½; that of 0 begins at the end of the circle. The table holds all
    digits, or every `stride`-th if they are many; probabilities between them are integrals of densities.

    Args:
        kernel: its period is a whole number.
        components: without a batch.
        numbers: the largest size of the table.

    >>> turn = Turn(Periodic(8.0, 24), torch.tensor([[6.0], [18.0]]))
    >>> digit, below, upto = turn.first(torch.tensor([[0.5, 0.5]]).double(), torch.tensor([0.75]).double())
    >>> int(digit), bool(below < 0.75 <= upto)
    (18, True)
    """

    def __init__(self, kernel: Periodic, components: Float[Tensor, "m 1"], numbers: int = _NUMBERS) -> None:
        self.kernel, self.components = kernel, components.double()
        self.period = round(kernel.period)
        self.stride = -(-self.period * len(components) // numbers)
        self._n_nodes = 6 + 4 * math.ceil(self.stride / float(kernel.sigma.min()))
        end = self.components.new_tensor(self.period - 0.5)
        self._before = 1 - kernel.cdf(end, self.components)
        digits = torch.arange(self.stride - 1, self.period + self.stride - 1, self.stride)
        self._table = self._upto(digits.to(self.components))

    def _upto(self, digits: Float[Tensor, " n"]) -> Float[Tensor, "n m"]:
        """P_j(digit ≤ d)."""
        last = (digits >= self.period - 1).unsqueeze(-1)
        return torch.where(last, 1.0, self._before + self.kernel.cdf(digits + 0.5, self.components))

    def first_of(
        self, log_weights: Float[Tensor, "*rows m"], level: Float[Tensor, "*rows"]
    ) -> tuple[Int[Tensor, "*rows"], Float[Tensor, "*rows"], Float[Tensor, "*rows"]]:
        """`first` for rows of any shape."""
        weights = log_weights.double().exp().reshape(-1, log_weights.shape[-1])
        weights = weights / weights.sum(-1, keepdim=True)
        digit, below, upto = (part.reshape(level.shape) for part in self.first(weights, level.reshape(-1)))
        return digit, below, upto

    def first(
        self, weights: Float[Tensor, "rows m"], level: Float[Tensor, " rows"]
    ) -> tuple[Int[Tensor, " rows"], Float[Tensor, " rows"], Float[Tensor, " rows"]]:
        """The smallest digit d with P(digit ≤ d) ≥ level, with P(digit < d) and P(digit ≤ d).

        Args:
            weights: of the components; their sum is 1.
        """
        none = torch.full_like(level, -1, dtype=torch.int64)
        start = none, none + len(self._table), torch.zeros_like(level), torch.ones_like(level)
        low, high, below, upto = _bisect(lambda at: (weights * self._table[at]).sum(-1), level, start)
        if self.stride == 1:
            return high, below, upto
        first = (low + 1) * self.stride
        if self.stride > _MOST_LISTED or self._n_nodes > _MOST_NODES:
            last = ((high + 1) * self.stride).clamp_max(self.period) - 1
            start = first - 1, last, below, upto
            _, *reached_at = _bisect(lambda at: (weights * self._upto(at.double())).sum(-1), level, start)
            digit, below, upto = reached_at
            return digit, below, upto
        reached = torch.cat([below.unsqueeze(-1), self._reached(weights, first, below)], -1)
        step = (reached[:, 1:-1] < level.unsqueeze(-1)).sum(-1).clamp_max(self.period - 1 - first)
        below, upto = (reached.gather(-1, (step + i).unsqueeze(-1)).squeeze(-1) for i in (0, 1))
        return first + step, below, upto

    def probs(self, log_weights: Float[Tensor, " m"]) -> Float[Tensor, " period"]:
        """The probability of every digit."""
        weights = log_weights.double().softmax(-1)
        reached = self._table @ weights
        if self.stride > 1:
            first = torch.arange(0, self.period, self.stride, device=weights.device)
            below = torch.cat([reached.new_zeros(1), reached[:-1]])
            reached = self._reached(weights.expand(len(first), -1), first, below).flatten()[: self.period]
        return reached.diff(prepend=reached.new_zeros(1)).clamp_min(0.0)

    def _reached(
        self, weights: Float[Tensor, "rows m"], first: Int[Tensor, " rows"], below: Float[Tensor, " rows"]
    ) -> Float[Tensor, "rows stride"]:
        """P(digit < first + i) for i = 1 … stride, given P(digit < first) in `below`.

        It is the integral of a polynomial through densities.
        """
        if self._n_nodes > _MOST_NODES:
            masses = [(weights * self._upto(first.double() + i)).sum(-1) for i in range(self.stride)]
            return torch.stack(masses, -1)
        nodes, integrals = self._quadrature
        log_norm = self.kernel.log_norm(self.components)
        densities = []
        for node in nodes:
            x = (first.double() + (node - 0.5)).reshape(-1, 1, 1)
            component = (self.kernel.log_overlap(x, self.components) + log_norm).exp()
            densities.append((weights * component).sum(-1))
        return below.unsqueeze(-1) + torch.stack(densities, -1) @ integrals

    @cached_property
    def _quadrature(self) -> tuple[list[float], Float[Tensor, "n stride"]]:
        """Nodes between 0 and the stride, and ∫₀ⁱ of the polynomials that are 1 at one of them."""
        legendre = np.polynomial.legendre
        nodes, _ = legendre.leggauss(self._n_nodes)
        basis = np.linalg.inv(legendre.legvander(nodes, self._n_nodes - 1))
        ends = 2 * np.arange(1, self.stride + 1) / self.stride - 1
        integrals = [legendre.legval(ends, legendre.legint(one, lbnd=-1)) for one in basis.T]
        half = 0.5 * self.stride
        return (half * (1 + nodes)).tolist(), torch.from_numpy(half * np.array(integrals)).to(self._table)


def _bisect(
    values: Callable[[Tensor], Tensor], level: Tensor, start: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Neighbours low and high with F(low) < level ≤ F(high), and F at both."""
    low, high, below, upto = start
    while bool((open := high - low > 1).any()):
        middle = torch.where(open, (low + high) // 2, high)
        value = values(middle)
        reached = value >= level
        low, below = torch.where(open & ~reached, middle, low), torch.where(open & ~reached, value, below)
        high, upto = torch.where(open & reached, middle, high), torch.where(open & reached, value, upto)
    return low, high, below, upto


# The number of lists of regions of which results are kept.
_KEPT = 4

Kept = TypeVar("Kept")


class ComponentCache:
    """Moments, modes, probabilities and distribution functions of single components.

    Evidence changes only the weights of components: an answer is a weighted average of these quantities.

    Args:
        kernel: of the variable.
        components: of the variable, without a batch.
    """

    def __init__(self, kernel: Kernel, components: Tensor) -> None:
        self.kernel, self.components = kernel, components
        self._kept: dict[Hashable, Any] = {}
        self._probs: Tensor | None = None

    def probs(self, n: int) -> Float[Tensor, "m n"]:
        """The probability of every one of n levels, or places in a list."""
        if self._probs is None:
            if self.kernel.discrete:
                self._probs = self.kernel.probs(self.components).double()
            else:
                cells = [Interval(place - 0.5, place + 0.5, "left") for place in range(n)]
                self._probs = self.kernel.log_mass(cells, self.components).double().exp().mT
        return self._probs

    @cached_property
    def mean_features(self) -> Float[Tensor, "m v"]:
        return self.kernel.mean_features(self.components).double()

    @cached_property
    def moments(self) -> Float[Tensor, "m 2"]:
        """Mean and variance."""
        mean, variance = self.kernel.mean(self.components), self.kernel.variance(self.components)
        return torch.stack([mean.reshape(-1), variance.reshape(-1)], -1).double()

    @cached_property
    def modes(self) -> Tensor:
        return self.kernel.mode(self.components)

    @cached_property
    def knots(self) -> Knots:
        return Knots.of(self.kernel, self.components)

    @cached_property
    def turn(self) -> Turn:
        """Quantiles of digits that go round, for a kernel with a period."""
        return Turn(cast(Periodic, self.kernel), self.components)

    def kept(self, regions: Hashable, compute: Callable[[], Kept]) -> Kept:
        """The result of `compute` for a list of regions; it is kept for the last four lists."""
        if regions not in self._kept:
            self._kept = dict([*self._kept.items(), (regions, compute())][-_KEPT:])
        result: Kept = self._kept[regions]
        return result
