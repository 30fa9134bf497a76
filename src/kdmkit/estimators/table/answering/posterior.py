"""The distribution of one column in the user's units, and intervals of a stated probability."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.distributions.quantiles import Reached
from kdmkit.distributions.univariate import Univariate
from kdmkit.estimators.common.arrays import Array
from kdmkit.estimators.table.codecs.base import Codec
from kdmkit.estimators.table.column import Column
from kdmkit.kernels import Interval, Region
from kdmkit.kernels.region_forms import as_region
from kdmkit.kernels.regions import WHOLE

# Masses that differ by less are equal.
_TIE = 1e-6

#: Ends of intervals, `(2, *batch)`, and their probabilities, `(*batch,)`.
CoveredInterval = tuple[Tensor, Tensor]


class Posterior(ABC):
    """The distribution of a column, for every element of a batch.

    The methods here serve finitely many values. Classes for other columns override them.
    """

    #: The column, and its codec.
    column: Column
    codec: Codec
    #: log p of the evidence, of one question; a density if single values of densities are given.
    log_evidence: float = 0.0

    @property
    @abstractmethod
    def batch(self) -> tuple[int, ...]:
        """The shape of the batch."""

    @property
    def levels(self) -> Sequence[Any] | None:
        """All values, if they are finitely many."""
        return self.codec.levels

    @property
    def has_levels(self) -> bool:
        return self.levels is not None

    @property
    def has_masses(self) -> bool:
        """Whether values of an ordered column have probabilities: then intervals rarely hold the coverage."""
        return self.has_levels and self.codec.ordered

    def _check(self, condition: bool, what: str, wanted: str) -> None:
        if not condition:
            name = f"{what} of {self.column.name!r}"
            raise TypeError(bad_argument(name, wanted, f"one of kind {self.column.kind}"))

    # ---- summaries

    def probs(self) -> Array:
        """The probability of every level, `(*batch, levels)`."""
        self._check(False, "probs", "a column with levels, such as a category")
        raise AssertionError

    def _numbers(self) -> np.ndarray:
        """The levels of a numeric column."""
        return np.asarray(self.levels, dtype=np.float64)

    def mean(self) -> Array:
        self._check(self.codec.numeric, "mean", "a numeric column")
        return np.asarray(self.probs() @ self._numbers())

    def std(self) -> Array:
        self._check(self.codec.numeric, "std", "a numeric column")
        values, probs = self._numbers(), self.probs()
        return np.asarray(np.sqrt((probs * (values - (probs @ values)[..., None]) ** 2).sum(-1)))

    def quantile(self, q: float | Sequence[float]) -> Array:
        """The smallest value with F(value) ≥ q, `(*batch,)`; `(n, *batch)` for n levels q."""
        self._check(self.codec.ordered, "quantiles", "an ordered column")
        at = np.asarray(q, dtype=np.float64)
        level = np.minimum(at, 1 - 1e-12).reshape((*at.shape, *[1] * (1 + len(self.batch))))
        return self._at_codes((np.cumsum(self.probs(), -1) >= level).argmax(-1))

    def interval(self, coverage: float) -> Array:
        """The ends `(2, *batch)` of the interval whose probability is nearest to the coverage."""
        self._check(self.codec.ordered, "intervals", "an ordered column")
        return self._at_codes(self._covered(coverage)[0].numpy())

    def interval_mass(self, coverage: float) -> Array:
        """The probability of `interval`, `(*batch,)`."""
        wanted = "a column of numbers or of ordered levels"
        self._check(self.codec.numeric or (self.codec.ordered and self.has_levels), "intervals", wanted)
        return np.empty(self.batch) if 0 in self.batch else np.asarray(self._covered(coverage)[1].cpu())

    def _covered(self, coverage: float) -> CoveredInterval:
        steps = LevelSteps(torch.from_numpy(self.probs()))
        central = steps.reach(torch.from_numpy(tails(coverage)).reshape(2, *[1] * len(self.batch)))
        return nearest_interval(steps, coverage, central)

    def mode(self) -> Array:
        """The most probable value."""
        return self._at_codes(self.probs().argmax(-1))

    def expected(self) -> Array:
        """The mean of numbers, the median of other ordered values without levels, else the mode."""
        if self.codec.numeric:
            return self.mean()
        if self.codec.ordered and not self.has_levels:
            return self.quantile(0.5)
        mode, levels = self.mode(), np.asarray(self.levels)
        return mode.astype(levels.dtype) if levels.dtype.kind in "biuf" else mode

    def _at_codes(self, index: Any) -> Array:
        """The levels at codes."""
        assert self.levels is not None
        levels = np.empty(len(self.levels), dtype=object)
        levels[:] = list(self.levels)
        chosen = np.asarray(levels[index])
        return chosen.astype(np.asarray(self.levels).dtype) if self.codec.numeric else chosen

    def typical(self) -> Array:
        """`expected` as a cell that the column can have: rounded, or the nearest level."""
        self._check(False, "typical values", "a column of the model")
        raise AssertionError

    # ---- probabilities

    def log_density(self, value: Any) -> Array:
        """log p of one value in the units of the column: a density, or the logarithm of a probability."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.density([value])[0]))

    def density(self, values: Any) -> Array:
        """p of many values, `(n, *batch)`: densities, or probabilities; 0 for what the column cannot have."""
        raw = self.codec.raw(values)
        cells = self.codec.encode(raw)
        ones = [1] * len(self.batch)
        log_prob = self._log_prob([part.reshape(len(part), *ones, *part.shape[1:]) for part in cells.parts])
        is_outcome = np.asarray(cells.observed) & self.codec.are_outcomes(raw)
        offset, inside = (np.asarray(part).reshape((-1, *ones)) for part in (cells.log_offset, is_outcome))
        return np.asarray(np.where(inside, np.exp(log_prob + offset), 0.0))

    @abstractmethod
    def _log_prob(self, events: Sequence[Tensor]) -> Array:
        """log p of events, one tensor for each variable."""

    def probability(self, given: Any) -> Array:
        """The probability of a value, a range, a set or a region."""
        return np.asarray(self.probabilities([given])[0])

    def probabilities(self, givens: Sequence[Any]) -> Array:
        """The probability of each of some values, ranges, sets or regions, `(n, *batch)`."""
        return self.masses_of([self.outcomes(given) for given in givens])

    def masses_of(self, regions: Sequence[Region]) -> Array:
        """The probability of each of some regions of trimmed outcomes, `(n, *batch)`."""
        total = np.zeros((len(regions), *self.batch))
        some = [i for i, region in enumerate(regions) if not (region.is_empty or region.is_whole)]
        total[[i for i, region in enumerate(regions) if region.is_whole]] = 1.0
        if some:
            total[some] = np.clip(self._masses([regions[i] for i in some]), 0.0, 1.0)
        return total

    def outcomes(self, given: Any) -> Region:
        """The outcomes of a value, a range, a set or a region; None is unknown."""
        region = WHOLE if given is None else as_region(given)
        return region if region.is_whole else self.codec.trimmed(self.codec.read(region))

    @abstractmethod
    def _masses(self, regions: Sequence[Region]) -> Array:
        """The probability of each of some regions of outcomes, `(n, *batch)`."""

    def histogram(self, bins: tuple[tuple[Any, Any], ...]) -> Array:
        """The probabilities of ranges, `(n, *batch)`."""
        return self.probabilities(half_open(bins))

    @abstractmethod
    def sample(self, n: int, generator: torch.Generator | None) -> Array:
        """Draws `(n, *batch)` as values of the column."""


def half_open(bins: Sequence[tuple[Any, Any]]) -> list[Any]:
    """Ranges of which those that end where the next one starts are without their upper end."""
    starts = [low for low, _ in bins[1:]]
    touching = [high is not None and high == low for (_, high), low in zip(bins, starts, strict=False)]
    return [
        Interval(low, high, "left") if touches and low != high else (low, high)
        for (low, high), touches in zip(bins, [*touching, False], strict=True)
    ]


# ---- intervals


class LevelSteps:
    """Ordered levels with the interface of `Univariate`: events are their codes.

    Args:
        probs: of the levels.
    """

    has_atoms = only_atoms = True

    def __init__(self, probs: Float[Tensor, "*batch n"]) -> None:
        self._upto = probs.cumsum(-1)

    def reach(self, q: Float[Tensor, "k *own"]) -> Reached:
        last = self._upto.shape[-1] - 1
        code = (self._upto < q.unsqueeze(-1)).sum(-1).clamp_max(last)
        every = self._upto.expand(*code.shape, last + 1)
        below, upto = (every.gather(-1, at.clamp_min(0).unsqueeze(-1)).squeeze(-1) for at in (code - 1, code))
        return Reached(code, torch.where(code > 0, below, 0.0), upto)

    def beside(self, x: Tensor, up: bool) -> Tensor:
        return x + (1 if up else -1)


def nearest_interval(rho: Univariate | LevelSteps, coverage: float, central: Reached) -> CoveredInterval:
    """The interval, near the central one, whose mass is nearest to the coverage.

    The central interval leaves (1 − coverage)/2 on either side, or less if an end is an event with a
    probability. Then the other end moves inwards until the mass is the coverage. If that end is such an
    event too, it stays or is left out, whichever is nearer.

    Args:
        central: the quantiles of (1 ∓ coverage)/2, `(2, *batch)`.
    """
    (low, high), below, upto = central.x, central.below[0], central.upto[1]
    if not rho.has_atoms:
        return central.x, upto - below
    inner = rho.reach(torch.stack([upto - coverage, below + coverage]))
    (lower, upper), after, before = inner.x, inner.upto[0], inner.below[1]
    ends = [(low, upper), (lower, high)]
    masses = [inner.upto[1] - below, upto - inner.below[0]]
    if rho.only_atoms:
        ends += [(low, rho.beside(upper, up=False)), (rho.beside(lower, up=True), high)]
        masses += [before - below, upto - after]
    lows, highs = (torch.stack(end) for end in zip(*ends, strict=True))
    mass = torch.stack(masses)
    off = torch.where(lows <= highs, (mass - coverage).abs(), torch.inf)
    # If two are equally near: the first, which holds the coverage.
    first = _TIE * torch.arange(len(off), dtype=off.dtype, device=off.device)
    best = (off + first.reshape(-1, *[1] * (off.ndim - 1))).argmin(0, keepdim=True)
    lows, highs, mass = (part.gather(0, best) for part in (lows, highs, mass))
    return torch.cat([lows, highs]), mass.squeeze(0)


def tails(coverage: float) -> np.ndarray:
    """The levels of the ends of the central interval."""
    return np.array([(1 - coverage) / 2, (1 + coverage) / 2])
