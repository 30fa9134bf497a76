"""The distribution of a column with one variable: for one question, or for many rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit.distributions import KDM
from kdmkit.distributions.quantiles import Reached
from kdmkit.distributions.univariate import Univariate
from kdmkit.estimators.common.arrays import Array
from kdmkit.estimators.table.answering.component_cache import ComponentCache
from kdmkit.estimators.table.answering.posterior import (
    ComponentPosterior,
    CoveredInterval,
    nearest_interval,
    tails,
)
from kdmkit.estimators.table.codecs.base import PartEvidence
from kdmkit.estimators.table.codecs.dates import CirclePart
from kdmkit.estimators.table.schema import Column
from kdmkit.kernels import Kernel
from kdmkit.kernels.regions import Interval, OneOf, Region

# Levels of quantiles that are searched together, ascending.
_USUAL = (0.005, 0.05, 0.5, 0.95, 0.995)


class VariablePosterior(ComponentPosterior):
    """The distribution of a column with one variable.

    Args:
        column: the column.
        rho: the distribution of its variable.
        cache: of the components of `rho`; None makes one.
    """

    def __init__(self, column: Column, rho: KDM, cache: ComponentCache | None = None) -> None:
        self.column, self.rho = column, rho
        self.cache = ComponentCache(rho.kernel, rho.components) if cache is None else cache
        self._intervals: dict[float, CoveredInterval] = {}

    @property
    def batch(self) -> tuple[int, ...]:
        return tuple(self.rho.batch_shape)

    @property
    def has_masses(self) -> bool:
        return super().has_masses or (self.codec.numeric and bool(self.rho.kernel.has_atoms))

    @property
    def goes_round(self) -> bool:
        """Whether values are times of day, too many for levels."""
        return isinstance(getattr(self.codec, "part", None), CirclePart)

    @cached_property
    def weights(self) -> Float[Tensor, "*batch m"]:
        """The weights of the components, in float64."""
        weights = self.rho.log_weights.double().exp()
        return weights / weights.sum(-1, keepdim=True)

    # ---- summaries

    def probs(self) -> Array:
        if not self.has_levels:
            return super().probs()
        probs = (self.weights @ self.cache.probs).cpu().numpy()
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
        if 0 in self.batch or self.goes_round:
            return self.quantile(tails(coverage).tolist())
        ends = self._covered(coverage)[0]
        return self._each(self.codec.values, ends.reshape(2, *self.batch, *self.rho.event_shape))

    def _covered(self, coverage: float) -> CoveredInterval:
        if self.has_levels:
            return super()._covered(coverage)
        if coverage not in self._intervals:
            central = self._reach(tails(coverage))
            self._intervals[coverage] = nearest_interval(self._mixture, coverage, central)
        return self._intervals[coverage]

    @cached_property
    def _mixture(self) -> Univariate:
        rho = self.rho
        return Univariate(rho.kernel, rho.components, rho.log_weights, self.cache.knots)

    def _event_quantile(self, q: np.ndarray) -> Tensor:
        """Quantiles as events, in float64."""
        rho, rank = self.rho, len(self.batch)
        if 0 in self.batch:
            return rho.components.new_empty((*q.shape, *self.batch, *rho.event_shape))
        if self.goes_round:
            levels = torch.from_numpy(q).reshape(-1, *[1] * rank).to(rho.components.device)
            digits = [
                self.cache.turn.first_of(rho.log_weights, level.expand(self.batch))[0] for level in levels
            ]
            return torch.stack(digits).reshape(*q.shape, *self.batch, 1).double()
        return self._reach(q).x.reshape(*q.shape, *self.batch, *rho.event_shape)

    def _reach(self, q: np.ndarray) -> Reached:
        """Quantiles `(*levels, *batch)`, with the probabilities about them."""
        rounded, device = q.round(12), self.rho.components.device
        if not self.batch and np.isin(rounded, _USUAL).all():
            place = torch.as_tensor(np.searchsorted(_USUAL, rounded), device=device)
            return Reached(*(part[place] for part in self._usual))
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
        """The most probable value: of levels, or among the modes of the components."""
        if self.has_levels:
            return super().mode()
        candidates = self.cache.modes
        shape = (len(candidates), *[1] * len(self.batch), *self.rho.event_shape)
        best = self.rho.log_prob(candidates.reshape(shape)).argmax(0)
        return self._each(self.codec.values, candidates[best])

    def typical(self) -> Array:
        if not self.has_levels:
            centre = self._mean if self.codec.numeric else self._event_quantile(np.array(0.5))
            return self._each(self.codec.decode, centre)
        closeness = -np.abs(self.mean()[..., None] - self._numbers()) if self.codec.numeric else self.probs()
        return self._each(self.codec.decode, torch.from_numpy(np.asarray(closeness.argmax(-1))))

    # ---- probabilities

    def _log_prob(self, events: Sequence[Tensor]) -> Array:
        return np.asarray(self.rho.log_prob(place_event(events[0], self.rho.components)).double().cpu())

    def histogram(self, bins: tuple[tuple[Any, Any], ...]) -> Array:
        """The probabilities of ranges, `(n, *batch)`; masses of components are kept for the next answer."""
        masses = self.cache.kept(bins, lambda: self._component_masses(bins))
        return np.moveaxis(np.asarray((self.weights @ masses.mT).cpu()), -1, 0).clip(0.0, 1.0)

    def _component_masses(self, bins: Sequence[tuple[Any, Any]]) -> Float[Tensor, "n m"]:
        """The mass of every component in every range."""
        places, (regions,) = self._boxes(bins)
        log_masses = self.rho.kernel.log_mass(as_region(self.rho.kernel, regions), self.rho.components)
        total = torch.zeros(len(bins), log_masses.shape[-1], dtype=torch.float64, device=log_masses.device)
        place = torch.tensor(places, device=total.device)
        return total.index_add_(0, place, log_masses.double().exp())

    def _masses(self, n: int, regions: Sequence[PartEvidence]) -> Array:
        if regions[0] is None:
            return np.ones((n, *self.batch))
        region = spread(as_region(self.rho.kernel, regions[0]), len(self.batch))
        return np.asarray(self.rho.log_mass(region).double().exp().cpu())

    def sample(self, n: int, generator: torch.Generator | None) -> Array:
        draws = self.rho.sample((n,), generator=generator)
        return (
            self._at_codes(draws.cpu().numpy()) if self.has_levels else self._each(self.codec.values, draws)
        )


# ---- distributions and regions of variables


def infer(
    joint: Any, variables: Sequence[str], evidence: Mapping[str, Tensor | Region]
) -> tuple[Any, Tensor | None]:
    """The distribution of some variables given evidence, and log p(evidence); None without evidence."""
    if not evidence:
        return joint.marginal(*variables), None
    target = variables[0] if len(variables) == 1 else tuple(variables)
    rho = joint.infer(target=target, **evidence)
    return rho, rho.log_evidence


def merge_boxes(rho: KDM, log_share: Float[Tensor, " boxes"]) -> KDM:
    """The mixture of the KDMs of a batch: they share components, so only weights are averaged.

    Args:
        rho: of batch shape `(boxes,)`.
        log_share: log-weights of the mixture.
    """
    log_weights = torch.logsumexp(rho.log_weights + log_share.to(rho.log_weights).unsqueeze(-1), 0)
    return KDM(rho.components, None, rho.kernel, log_weights=log_weights, validate_args=False)


def place_event(event: Tensor, like: Tensor) -> Tensor:
    """An event on the device and in the precision of components."""
    return event.to(like.device, like.dtype if event.is_floating_point() else None)


def as_region(kernel: Kernel, value: Any) -> Region:
    """Points as regions that hold nothing else: they have a mass if values have probabilities."""
    if isinstance(value, Region):
        return value
    return OneOf(value.unsqueeze(-1)) if kernel.discrete else Interval(value, value)


def spread(region: Region, rank: int) -> Region:
    """Regions `(L, *event)` with `rank` dimensions of size 1 behind the first."""
    parts = vars(region)
    return type(region)(**{k: v.reshape(len(v), *([1] * rank), *v.shape[1:]) for k, v in parts.items()})
