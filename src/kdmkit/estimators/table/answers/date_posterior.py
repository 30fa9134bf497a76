"""The distribution of a column of several variables: dates, whose digits are variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit.distributions import KDM
from kdmkit.estimators.common.checks import Array
from kdmkit.estimators.table.answers.posterior import Posterior, as_region, merge_boxes
from kdmkit.estimators.table.codecs.base import Known
from kdmkit.estimators.table.schema import Column
from kdmkit.kernels.regions import Region

# Draws that a search for quantiles starts from, and dates among which those of many rows are searched.
_DRAWS, _GRID = 256, 32
# Parts of a range that a search for a quantile compares at once.
_WAYS = 16


def posterior_of(column: Column, rho: Any, log_share: Float[Tensor, " boxes"] | None = None) -> Posterior:
    """The posterior of a column; of boxes of evidence, their mixture.

    Args:
        rho: the distribution of the column's variables.
        log_share: where the batch of `rho` counts boxes, their log-weights.
    """
    if isinstance(rho, KDM):
        return Posterior(column, rho if log_share is None else merge_boxes(rho, log_share))
    return DatePosterior(column, rho, log_share)


class DatePosterior(Posterior):
    """The distribution of a column of dates.

    Args:
        column: the column.
        rho: the joint distribution of its variables.
        log_share: where the batch of `rho` counts boxes of evidence, their log-weights.
    """

    def __init__(self, column: Column, rho: Any, log_share: Tensor | None) -> None:
        super().__init__(column, rho)
        self.log_share = log_share

    # ---- probabilities

    def probability(self, given: Any) -> Array:
        return np.asarray(np.minimum(self._masses(self.codec.region(given)).sum(0), 1.0))

    def _masses(self, boxes: Sequence[tuple[Known, ...]]) -> Array:
        """The probability of every box, `(boxes, *rows)`."""
        parts = zip(self.column.variables, self.codec.stack(boxes), strict=True)
        known = {
            name: spread(as_region(self.rho.kernels[name], part), len(self.rho.batch_shape))
            for name, part in parts
            if part is not None
        }
        return self._mixed(self._log_prob(known)) if known else np.ones((len(boxes), *self._rows))

    def _log_prob(self, known: Mapping[str, Tensor | Region]) -> Tensor:
        rho = self.rho if len(known) == len(self.rho.kernels) else self.rho.marginal(*known)
        if len(known) > 1:
            found: Tensor = rho.log_prob(**known)
            return found
        (one,) = known.values()
        found = rho.log_mass(one) if isinstance(one, Region) else rho.log_prob(one)
        return found

    def _mixed(self, log_prob: Tensor) -> Array:
        """Probabilities; of boxes of evidence, their average."""
        found = log_prob.double()
        if self.log_share is not None:
            found = torch.logsumexp(found + self.log_share, -1)
        return np.asarray(found.exp().cpu())

    def log_density(self, value: Any) -> Array:
        events = self.codec.event(value)
        known = dict(zip(self.column.variables, events, strict=True))
        return np.asarray(np.log(self._mixed(self._log_prob(known))) + self._log_offset(*events))

    # ---- quantiles

    def _below(self, dates: Array) -> Array:
        """The probability of dates up to each of some dates, `(dates, *rows)`."""
        boxes: list[tuple[Known, ...]] = []
        owners: list[int] = []
        for i, date in enumerate(dates):
            with suppress(ValueError):  # no date of the column is so early
                found = self.codec.region((None, date))
                boxes, owners = boxes + found, owners + [i] * len(found)
        below = np.zeros((len(dates), *self._rows))
        if boxes:
            np.add.at(below, owners, self._masses(boxes))
        return below

    @property
    def _rows(self) -> tuple[int, ...]:
        return () if self.log_share is not None else tuple(self.rho.batch_shape)

    def quantile(self, q: float) -> Array:
        """The first date with F(date) ≥ q; of many rows, the first of 32 dates that cover the draws."""
        if not self._rows:
            return np.asarray(self._search(q))
        grid, below = self._distribution
        reached = below >= q
        reached[-1] = True
        return np.asarray(grid[reached.argmax(0)])

    @cached_property
    def _dates(self) -> Array:
        """Dates of a few draws, in ascending order."""
        return np.sort(self._instants(_DRAWS, torch.Generator(self._device).manual_seed(0)).reshape(-1))

    @cached_property
    def _distribution(self) -> tuple[Array, Array]:
        """Dates that cover the draws, and the probability of dates up to them for every row."""
        grid = np.unique(self._dates[np.linspace(0, len(self._dates) - 1, _GRID).astype(int)])
        return grid, np.concatenate([self._below(grid[i : i + 1]) for i in range(len(grid))])

    def _search(self, q: float) -> np.datetime64:
        """The first date of the column's resolution with F(date) ≥ q, in ever smaller ranges of dates."""
        unit = np.timedelta64(1, "us")
        step = max(getattr(getattr(self.codec, "calendar", None), "step", unit), unit)
        low, high = self._bracket(q)
        while high - low > step:
            inner = low + (high - low) * np.arange(1, _WAYS) // _WAYS
            ends = np.unique(np.concatenate([inner, [high]]))
            ends = ends[ends > low]
            reached = np.append(self._below(ends[:-1]) >= q, True)
            first = int(reached.argmax())
            low, high = (ends[first - 1] if first else low), ends[first]
        calendar = getattr(self.codec, "calendar", None)
        return high if calendar is None else calendar.join(calendar.split(np.array([high])))[0]

    def _bracket(self, q: float) -> tuple[np.datetime64, np.datetime64]:
        """Dates with F(low) < q ≤ F(high)."""
        low, high = self._dates[[0, -1]]
        width = max(high - low, np.timedelta64(1, "D").astype("timedelta64[us]"))
        while True:
            below = self._below(np.array([low, high]))
            if below[0] < q <= below[1]:
                return low, high
            low, high = (low - width if below[0] >= q else low), (high + width if below[1] < q else high)
            width = 2 * width

    # ---- draws

    @property
    def _device(self) -> torch.device:
        device: torch.device = next(iter(self.rho.components.values())).device
        return device

    def _draw(self, n: int, generator: torch.Generator | None) -> list[Tensor]:
        """Events of n draws, `(n, *batch, *event)`."""
        drawn = self.rho.sample((n,), generator=generator)
        parts = [drawn[name].cpu() for name in self.column.variables]
        if self.log_share is None:
            return parts
        share = self.log_share.exp().to(self._device)
        box = torch.multinomial(share, n, replacement=True, generator=generator).cpu()
        return [part[torch.arange(n), box] for part in parts]

    def _instants(self, n: int, generator: torch.Generator | None) -> Array:
        parts = self._draw(n, generator)
        shapes = self.codec.shapes
        flat = [part.reshape(-1, *shape) for part, shape in zip(parts, shapes, strict=True)]
        return np.asarray(self.codec.numbers(*flat))

    def sample(self, n: int, generator: torch.Generator | None) -> Array:
        parts = self._draw(n, generator)
        shapes = self.codec.shapes
        lead = parts[0].shape[: parts[0].ndim - len(shapes[0])]
        flat = [part.reshape(-1, *shape) for part, shape in zip(parts, shapes, strict=True)]
        return np.asarray(self.codec.decode(*flat)).reshape(tuple(lead))

    def mode(self) -> Array:
        """The median stands for the most probable date."""
        return self.quantile(0.5)


def spread(region: Region, rank: int) -> Region:
    """Regions `(L, *event)` with `rank` dimensions of size 1 behind the first."""
    parts = vars(region)
    return type(region)(**{k: v.reshape(len(v), *([1] * rank), *v.shape[1:]) for k, v in parts.items()})
