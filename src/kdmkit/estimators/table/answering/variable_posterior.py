"""The distribution of a column with one variable, or a function of it: for one question or many rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kdmkit.distributions import KDM
from kdmkit.distributions.quantiles import Reached
from kdmkit.distributions.univariate import Univariate
from kdmkit.estimators.common.arrays import Array
from kdmkit.estimators.table.answering.component_cache import ComponentCache
from kdmkit.estimators.table.answering.posterior import (
    CoveredInterval,
    Posterior,
    half_open,
    nearest_interval,
    tails,
)
from kdmkit.estimators.table.column import Column
from kdmkit.kernels import Region

# Points near which the highest one is searched, points between the neighbours of each, and how often there
# are nearer ones.
_PEAKS, _PEAK_POINTS, _PEAK_STEPS = 8, 33, 4
# Distance from a knot of a transform, as a share of the largest: four units of float32.
_BESIDE = 2.0**-21
# Levels of quantiles that are searched together, ascending.
_USUAL = (0.005, 0.05, 0.5, 0.95, 0.995)


class VariablePosterior(Posterior):
    """The distribution of a column with one variable.

    Args:
        column: the column.
        rho: the distribution of its variable.
        cache: of the components of `rho`; None makes one.
    """

    def __init__(self, column: Column, rho: KDM, cache: ComponentCache | None = None) -> None:
        self.column, self.codec, self.rho = column, column.codec, rho
        if not rho.batch_shape:
            with suppress(AttributeError):
                self.log_evidence = float(rho.log_evidence)
        self.cache = ComponentCache(rho.kernel, rho.components) if cache is None else cache
        self._intervals: dict[float, CoveredInterval] = {}

    @property
    def batch(self) -> tuple[int, ...]:
        return tuple(self.rho.batch_shape)

    @property
    def has_masses(self) -> bool:
        return super().has_masses or (self.codec.numeric and bool(self.rho.kernel.has_atoms))

    @cached_property
    @torch.no_grad()
    def weights(self) -> Float[Tensor, "*batch m"]:
        """The weights of the components, in float64."""
        weights = self.rho.log_weights.double().exp()
        return weights / weights.sum(-1, keepdim=True)

    # ---- summaries

    def probs(self) -> Array:
        if self.levels is None:
            return super().probs()
        probs = (self.weights @ self.cache.probs(len(self.levels))).cpu().numpy()
        return np.asarray(probs / probs.sum(-1, keepdims=True))

    def mean(self) -> Array:
        if self.has_levels or not self.codec.numeric:
            return super().mean()
        return self._each(self.codec.numbers, self._mean)

    @property
    def _mean(self) -> Tensor:
        mean: Tensor = self.rho.kernel.mean_of(self.weights @ self.cache.mean_features)
        return mean

    def std(self) -> Array:
        if self.has_levels or not self.codec.numeric:
            return super().std()
        mean, within = self.cache.moments.unbind(-1)
        centre = mean - (self.weights @ mean).unsqueeze(-1)
        deviation = (self.weights * (within + centre.square())).sum(-1).sqrt()
        # Numbers are a shift and a scale away from events.
        ends = (self._each(self.codec.numbers, at.unsqueeze(-1)) for at in (deviation, 0 * deviation))
        return np.asarray(np.subtract(*ends))

    def quantile(self, q: float | Sequence[float]) -> Array:
        if self.has_levels or not self.codec.ordered:
            return super().quantile(q)
        return self._each(self.codec.values, self._event_quantile(np.asarray(q, dtype=np.float64)))

    def interval(self, coverage: float) -> Array:
        if self.has_levels or not self.codec.ordered:
            return super().interval(coverage)
        if 0 in self.batch:
            return self.quantile(tails(coverage).tolist())
        ends = self._covered_events(coverage)[0]
        return self._each(self.codec.values, ends.reshape(2, *self.batch, *self.rho.event_shape))

    def _covered(self, coverage: float) -> CoveredInterval:
        return super()._covered(coverage) if self.has_levels else self._covered_events(coverage)

    def _covered_events(self, coverage: float) -> CoveredInterval:
        if coverage not in self._intervals:
            central = self._reach(tails(coverage))
            self._intervals[coverage] = nearest_interval(self._mixture, coverage, central)
        return self._intervals[coverage]

    @cached_property
    @torch.no_grad()
    def _mixture(self) -> Univariate:
        rho = self.rho
        return Univariate(rho.kernel, rho.components, rho.log_weights, self.cache.knots)

    def _event_quantile(self, q: np.ndarray) -> Tensor:
        """Quantiles as events, in float64."""
        rho = self.rho
        if 0 in self.batch:
            return rho.components.new_empty((*q.shape, *self.batch, *rho.event_shape))
        return self._reach(q).x.reshape(*q.shape, *self.batch, *rho.event_shape)

    def _reach(self, q: np.ndarray) -> Reached:
        """Quantiles `(*levels, *batch)`, with the probabilities about them."""
        rounded, device = q.round(12), self.rho.components.device
        if not self.batch and np.isin(rounded, _USUAL).all():
            place = torch.as_tensor(np.searchsorted(_USUAL, rounded), device=device)
            return Reached(*torch.stack(self._usual)[:, place])
        return self._mixture.reach(torch.from_numpy(q).reshape((*q.shape, *[1] * len(self.batch))).to(device))

    @cached_property
    def _usual(self) -> Reached:
        """Quantiles that are read together: searched together, they cost as much as one."""
        levels = torch.tensor(_USUAL, dtype=torch.float64, device=self.rho.components.device)
        return self._mixture.reach(levels)

    def _each(self, function: Callable[[Tensor], Array], events: Tensor) -> Array:
        """`function` of events `(*lead, *event)`, which takes them in rows."""
        lead = events.shape[: events.ndim - len(self.rho.event_shape)]
        values = function(events.detach().cpu().reshape(-1, *self.rho.event_shape))
        return np.asarray(values).reshape(tuple(lead))

    def mode(self) -> Array:
        """The most probable value.

        Of numbers with atoms and a density: the most probable atom, or the peak of the density if all other
        numbers together are more probable than that atom.
        """
        if self.has_levels:
            return super().mode()
        kernel = self.rho.kernel
        every = torch.cat(
            [self.cache.modes.reshape(-1).double(), self.cache.knots.points, self._beside_breaks()]
        )
        points = self._snapped(every).unique()
        if not kernel.has_atoms or kernel.only_atoms:
            return self._at(self._peak(points))
        is_atom = self._is_atom(points)
        atoms, rest = kernel.nearest_atom(points[is_atom]), points[~is_atom]
        masses = self._heights(atoms.reshape(-1, *self._ones)).exp()
        best = masses.argmax(0)
        peak = self._peak(rest) if len(rest) else atoms[best]
        more = 1 - masses.sum(0) > masses.amax(0)
        return self._at(torch.where(more, peak, atoms[best]))

    def _is_atom(self, numbers: Tensor) -> Bool[Tensor, "*shape"]:
        """Whether numbers of a column with atoms and a density are atoms, in the precision of components."""
        events = numbers.to(self.rho.components.dtype)
        return self.rho.kernel.nearest_atom(events) == events

    def _snapped(self, events: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Events as answers write them: on the grid of the column."""
        kernel = self.rho.kernel
        if kernel.only_atoms:
            return kernel.nearest_atom(events)
        part = self.codec.number_part
        return events if part is None else part.moved_to_grid(events)

    @property
    def _ones(self) -> list[int]:
        return [1] * len(self.batch)

    def _at(self, numbers: Float[Tensor, "*batch"]) -> Array:
        return self._each(self.codec.values, numbers.unsqueeze(-1))

    def _heights(self, numbers: Float[Tensor, "k *batch"]) -> Float[Tensor, "k *batch"]:
        events = numbers.to(self.rho.components.dtype).unsqueeze(-1)
        return self.rho.log_prob(events).double()

    def _beside_breaks(self) -> Float[Tensor, " k"]:
        """Events on either side of the numbers at which the density jumps."""
        part = self.codec.number_part
        if part is None:
            return self.rho.components.new_zeros(0, dtype=torch.float64)
        events = torch.tensor(part.knots, dtype=torch.float64, device=self.rho.components.device)
        width = torch.full_like(events, max(part.step / part.scale, _BESIDE * float(events.abs().max())))
        return torch.cat([events - width, events + width])

    def _peak(self, points: Float[Tensor, " k"]) -> Float[Tensor, "*batch"]:
        """The highest point of a density: near the highest of some, between their neighbours, ever nearer."""
        heights = self._heights(points.reshape(-1, *self._ones)).expand(-1, *self.batch)
        best = heights.topk(min(_PEAKS, len(points)), 0).indices
        low, high = points[(best - 1).clamp_min(0)], points[(best + 1).clamp_max(len(points) - 1)]
        peak, kernel = points[best], self.rho.kernel
        share = torch.linspace(0, 1, _PEAK_POINTS).to(points).reshape(-1, 1, *self._ones)
        for _ in range(_PEAK_STEPS):
            near = torch.cat([self._snapped(torch.lerp(low, high, share)), peak.unsqueeze(0)])
            heights = self._heights(near)
            if kernel.has_atoms and not kernel.only_atoms:
                heights = heights.masked_fill(self._is_atom(near), -torch.inf)
            heights, place = heights.max(0, keepdim=True)
            peak = near.gather(0, place).squeeze(0)
            width = (high - low) / (_PEAK_POINTS - 1)
            low, high = torch.maximum(low, peak - width), torch.minimum(high, peak + width)
        return peak.gather(0, heights.squeeze(0).argmax(0, keepdim=True)).squeeze(0)

    def typical(self) -> Array:
        if not self.has_levels:
            centre = self._mean if self.codec.numeric else self._event_quantile(np.array(0.5))
            return self._each(self.codec.decode, centre)
        closeness = -np.abs(self.mean()[..., None] - self._numbers()) if self.codec.numeric else self.probs()
        codes = torch.from_numpy(np.asarray(closeness.argmax(-1)))
        return self.codec.decode(codes.reshape(-1)).reshape(tuple(codes.shape))

    # ---- probabilities

    def _log_prob(self, events: Sequence[Tensor]) -> Array:
        return np.asarray(self.rho.log_prob(place_event(events[0], self.rho.components)).double().cpu())

    def histogram(self, bins: tuple[tuple[Any, Any], ...]) -> Array:
        """The probabilities of ranges, `(n, *batch)`; masses of components are kept for the next answer."""
        masses = self.cache.kept(
            bins, lambda: self._component_masses(list(map(self.outcomes, half_open(bins))))
        )
        return np.moveaxis(np.asarray((self.weights @ masses.mT).cpu()), -1, 0).clip(0.0, 1.0)

    def _component_masses(self, regions: Sequence[Region]) -> Float[Tensor, "n m"]:
        """The mass of every component in every region of outcomes."""
        kernel, components = self.rho.kernel, self.rho.components
        events = [self.codec.boxes(region)[0][0] if region.spans else region for region in regions]
        return kernel.log_mass(events, components).double().exp()

    def _masses(self, regions: Sequence[Region]) -> Array:
        masses = self._component_masses(regions)
        return np.moveaxis(np.asarray((self.weights @ masses.mT).cpu()), -1, 0)

    def sample(self, n: int, generator: torch.Generator | None) -> Array:
        draws = self.rho.sample((n,), generator=generator)
        if self.has_levels and not self.codec.numeric:
            return self._at_codes(draws.cpu().numpy())
        return self._each(self.codec.values, draws)


def place_event(event: Tensor, like: Tensor) -> Tensor:
    """An event on the device and in the precision of components."""
    return event.to(like.device, like.dtype if event.is_floating_point() else None)


class DerivedPosterior(Posterior):
    """The distribution of a present cell of a derived column: sums over the finer column.

    Args:
        column: the column.
        finer: the distribution of a present cell of the finer column.
        codes: the codes of cells that are known, `(*batch,)`; others are negative. None: none is known.
    """

    codec: Any

    def __init__(self, column: Any, finer: Posterior, codes: np.ndarray | None = None) -> None:
        self.column, self.codec, self.finer = column, column.codec, finer
        self.log_evidence = finer.log_evidence
        self._known = codes

    @property
    def batch(self) -> tuple[int, ...]:
        return self.finer.batch

    @cached_property
    def _probs(self) -> Array:
        probs = np.moveaxis(self.finer.masses_of(self.codec.level_regions), 0, -1)
        total = probs.sum(-1, keepdims=True)
        probs = np.where(total > 0, probs / np.where(total > 0, total, 1.0), 1 / probs.shape[-1])
        if self._known is not None and (self._known >= 0).any():
            probs[self._known >= 0] = np.eye(probs.shape[-1])[self._known[self._known >= 0]]
        return np.asarray(probs)

    def probs(self) -> Array:
        return self._probs

    def typical(self) -> Array:
        closeness = -np.abs(self.mean()[..., None] - self._numbers()) if self.codec.numeric else self._probs
        return np.asarray(self.codec.cells(closeness.argmax(-1))[0])

    def _masses(self, regions: Sequence[Region]) -> Array:
        codes = np.arange(self._probs.shape[-1], dtype=np.float64)
        inside = np.stack([region.contains(codes) for region in regions]).astype(np.float64)
        return np.moveaxis(self._probs @ inside.T, -1, 0)

    def _log_prob(self, events: Sequence[Tensor]) -> Array:
        codes = events[0].reshape(-1).numpy()
        with np.errstate(divide="ignore"):
            return np.moveaxis(np.log(self._probs[..., codes]), -1, 0)

    def sample(self, n: int, generator: torch.Generator | None) -> Array:
        device = torch.device("cpu") if generator is None else generator.device
        probs = torch.from_numpy(self._probs).to(device).reshape(-1, self._probs.shape[-1])
        codes = torch.multinomial(probs, n, replacement=True, generator=generator).cpu().numpy()
        return self._at_codes(codes.T.reshape(n, *self.batch))
