"""The distribution of one column, in the user's units: for one question, or for many rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.distributions import KDM
from kdmkit.distributions.quantiles import Reached
from kdmkit.distributions.univariate import Univariate
from kdmkit.estimators.common.arrays import Array
from kdmkit.estimators.table.answering.component_cache import Pieces
from kdmkit.estimators.table.answering.intervals import Held, LevelSteps, nearest_interval
from kdmkit.estimators.table.codecs.base import Known
from kdmkit.estimators.table.codecs.dates import CirclePart
from kdmkit.estimators.table.frames.storage import RawColumn
from kdmkit.estimators.table.schema import Column
from kdmkit.kernels import Kernel
from kdmkit.kernels.regions import Interval, OneOf, Region

# Levels of quantiles that are searched together, ascending.
_USUAL = (0.005, 0.05, 0.5, 0.95, 0.995)

#: Boxes, stacked by variable, and for each the place of what it is a part of.
Boxes = tuple[list[int], tuple[Known, ...]]


class Joint(Protocol):
    """A distribution of several variables: a `JointKDM` or a `TreeKDM`."""

    def infer(self, **options: Any) -> Any: ...
    def marginal(self, *names: str) -> Any: ...
    def log_prob(self, **options: Any) -> Tensor: ...
    def sample(self, sample_shape: Any, *, generator: Any) -> dict[str, Tensor]: ...


def infer(
    joint: Joint,
    variables: Sequence[str],
    evidence: Mapping[str, Tensor | Region],
) -> tuple[Any, Tensor | None]:
    """The distribution of some variables given evidence, and log p(evidence); None where there is none."""
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


class Posterior:
    """The distribution of a column, for every element of a batch. `DatePosterior` is for dates.

    Args:
        column: the column.
        rho: the distribution of its variable.
        pieces: of the components of `rho`, where they are known already.
    """

    def __init__(self, column: Column, rho: Any, pieces: Pieces | None = None) -> None:
        self.column, self.rho, self.codec = column, rho, column.codec
        self._pieces = pieces
        self._intervals: dict[float, Held] = {}

    @property
    def levels(self) -> Sequence[Any] | None:
        """All values, where they are finitely many."""
        return self.codec.levels

    @property
    def has_levels(self) -> bool:
        return self.levels is not None

    @property
    def has_masses(self) -> bool:
        """Whether values of an ordered column have probabilities: then intervals rarely hold the coverage."""
        if self.has_levels:
            return self.codec.ordered
        return self.codec.numeric and bool(self.rho.kernel.has_atoms)

    @cached_property
    def pieces(self) -> Pieces:
        return Pieces(self.rho.kernel, self.rho.components) if self._pieces is None else self._pieces

    @cached_property
    def _weights(self) -> Float[Tensor, "*batch m"]:
        weights = self.rho.log_weights.double().exp()
        return weights / weights.sum(-1, keepdim=True)

    @property
    def _rows(self) -> tuple[int, ...]:
        """The batch of answers."""
        return tuple(self.rho.batch_shape)

    def _check(self, condition: bool, what: str, wanted: str) -> None:
        if not condition:
            name = f"{what} of {self.column.name!r}"
            raise TypeError(bad_argument(name, wanted, f"one of kind {self.column.kind}"))

    # ---- summaries

    def probs(self) -> Array:
        """The probability of every level, `(*batch, levels)`."""
        self._check(self.has_levels, "probs", "a column with levels, such as a category")
        probs = (self._weights @ self.pieces.probs).cpu().numpy()
        return np.asarray(probs / probs.sum(-1, keepdims=True))

    def _numbers(self) -> np.ndarray:
        """The levels of a numeric column."""
        return np.asarray(self.levels, dtype=np.float64)

    def mean(self) -> Array:
        self._check(self.codec.numeric, "mean", "a numeric column")
        if self.has_levels:
            return np.asarray(self.probs() @ self._numbers())
        return self._each(self.codec.numbers, self._mean)

    @property
    def _mean(self) -> Tensor:
        mean: Tensor = self.rho.kernel.mean_of(self._weights @ self.pieces.mean_features)
        return mean

    def std(self) -> Array:
        self._check(self.codec.numeric, "std", "a numeric column")
        if self.has_levels:
            values, probs = self._numbers(), self.probs()
            return np.asarray(np.sqrt((probs * (values - (probs @ values)[..., None]) ** 2).sum(-1)))
        mean, within = self.pieces.moments.unbind(-1)
        centre = mean - (self._weights @ mean).unsqueeze(-1)
        deviation = (self._weights * (within + centre.square())).sum(-1).sqrt()
        # Numbers are a shift and a scale away from events.
        ends = (self._each(self.codec.numbers, at.unsqueeze(-1)) for at in (deviation, 0 * deviation))
        return np.asarray(np.subtract(*ends))

    def quantile(self, q: float | Sequence[float]) -> Array:
        """The smallest value with F(value) ≥ q, `(*batch,)`; `(n, *batch)` for n levels q."""
        self._check(self.codec.ordered, "quantiles", "an ordered column")
        at = np.asarray(q, dtype=np.float64)
        if self.has_levels:
            level = np.minimum(at, 1 - 1e-12).reshape((*at.shape, *[1] * (1 + self._rank)))
            reached = np.cumsum(self.probs(), -1) >= level
            return self._levels(reached.argmax(-1))
        return self._each(self.codec.values, self._event_quantile(at))

    def interval(self, coverage: float) -> Array:
        """The ends `(2, *batch)` of the interval whose probability is nearest to the coverage."""
        self._check(self.codec.ordered, "intervals", "an ordered column")
        if not self.has_levels and (0 in self._rows or self.goes_round):
            return self.quantile(_tails(coverage).tolist())
        ends = self._held(coverage).ends
        if self.has_levels:
            return self._levels(ends.numpy())
        return self._each(self.codec.values, ends.reshape(2, *self._rows, *self.rho.event_shape))

    def interval_mass(self, coverage: float) -> Array:
        """The probability of `interval`, `(*batch,)`."""
        wanted = "a column of numbers or of ordered levels"
        self._check(self.codec.numeric or (self.codec.ordered and self.has_levels), "intervals", wanted)
        return np.empty(self._rows) if 0 in self._rows else np.asarray(self._held(coverage).mass.cpu())

    def _held(self, coverage: float) -> Held:
        if coverage not in self._intervals:
            self._intervals[coverage] = self._find_interval(coverage)
        return self._intervals[coverage]

    def _find_interval(self, coverage: float) -> Held:
        tails = _tails(coverage)
        if not self.has_levels:
            return nearest_interval(self._mixture, coverage, self._reach(tails))
        steps = LevelSteps(torch.from_numpy(self.probs()))
        central = steps.reach(torch.from_numpy(tails).reshape(2, *[1] * self._rank))
        return nearest_interval(steps, coverage, central)

    @property
    def goes_round(self) -> bool:
        """Whether values are times of day, too many for levels."""
        return isinstance(getattr(self.codec, "part", None), CirclePart)

    @property
    def _rank(self) -> int:
        return len(self._rows)

    @cached_property
    def _mixture(self) -> Univariate:
        rho = self.rho
        return Univariate(rho.kernel, rho.components, rho.log_weights, self.pieces.knots)

    def _event_quantile(self, q: np.ndarray) -> Tensor:
        """Quantiles as events, in float64."""
        rho = self.rho
        if 0 in self._rows:
            return rho.components.new_empty((*q.shape, *self._rows, *rho.event_shape))
        if self.goes_round:
            levels = torch.from_numpy(q).reshape(-1, *[1] * self._rank).to(rho.components.device)
            found = [self.pieces.turn.first_of(rho.log_weights, level.expand(self._rows)) for level in levels]
            return torch.stack([digit for digit, *_ in found]).reshape(*q.shape, *self._rows, 1).double()
        return self._reach(q).x.reshape(*q.shape, *self._rows, *rho.event_shape)

    def _reach(self, q: np.ndarray) -> Reached:
        """Quantiles `(*levels, *batch)`, with the probabilities about them."""
        rounded, device = q.round(12), self.rho.components.device
        if not self._rank and np.isin(rounded, _USUAL).all():
            place = torch.as_tensor(np.searchsorted(_USUAL, rounded), device=device)
            return Reached(*(part[place] for part in self._usual))
        return self._mixture.reach(torch.from_numpy(q).reshape((*q.shape, *[1] * self._rank)).to(device))

    @cached_property
    def _usual(self) -> Reached:
        """Quantiles that are read together: searched together, they cost as much as one."""
        levels = torch.tensor(_USUAL, dtype=torch.float64, device=self.rho.components.device)
        return self._mixture.reach(levels)

    def _each(self, function: Callable[[Tensor], Array], events: Tensor) -> Array:
        """`function` of events `(*lead, *event)`, which takes them in rows."""
        lead = events.shape[: events.ndim - len(self.rho.event_shape)]
        found = function(events.detach().cpu().reshape(-1, *self.rho.event_shape))
        return np.asarray(found).reshape(tuple(lead))

    def mode(self) -> Array:
        """The most probable value: of levels, or among the modes of the components."""
        if self.has_levels:
            return self._levels(self.probs().argmax(-1))
        candidates = self.pieces.modes
        shape = (len(candidates), *[1] * self._rank, *self.rho.event_shape)
        best = self.rho.log_prob(candidates.reshape(shape)).argmax(0)
        return self._each(self.codec.values, candidates[best])

    def expected(self) -> Array:
        """The mean of numbers, the median of other ordered values without levels, else the mode."""
        if self.codec.numeric:
            return self.mean()
        return self.quantile(0.5) if self.codec.ordered and not self.has_levels else self.mode()

    def typical(self) -> Array:
        """`expected` as a cell that the column can have: rounded, or the nearest level."""
        if not self.has_levels:
            centre = self._mean if self.codec.numeric else self._event_quantile(np.array(0.5))
            return self._each(self.codec.decode, centre)
        closeness = -np.abs(self.mean()[..., None] - self._numbers()) if self.codec.numeric else self.probs()
        return self._each(self.codec.decode, torch.from_numpy(np.asarray(closeness.argmax(-1))))

    def _levels(self, index: Any) -> Array:
        assert self.levels is not None
        levels = np.empty(len(self.levels), dtype=object)
        levels[:] = list(self.levels)
        chosen = np.asarray(levels[index])
        return chosen.astype(np.asarray(self.levels).dtype) if self.codec.numeric else chosen

    # ---- probabilities

    def log_density(self, value: Any) -> Array:
        """log p of one value in the units of the codec: a density, or a probability of values with mass."""
        events = self.codec.event(value)
        cells = RawColumn(
            self.column.name,
            self.codec.decode(*(event.unsqueeze(0) for event in events)),
            np.zeros(1, dtype=bool),
            self.column.storage,
        )
        return np.asarray(self._log_prob(events) + float(self.codec.encode(cells).log_offset))

    def density(self, values: Any) -> Array:
        """p of many values, `(n, *batch)`, as `log_density`; 0 for those that the column cannot have."""
        values = np.asarray(values)
        raw = RawColumn(self.column.name, values, np.zeros(len(values), dtype=bool), self.column.storage)
        cells = self.codec.encode(raw)
        ones = [1] * self._rank
        found = self._log_prob([part.reshape(len(part), *ones, *part.shape[1:]) for part in cells.parts])
        offset, inside = (
            np.asarray(part).reshape((-1, *ones)) for part in (cells.log_offset, cells.observed)
        )
        return np.asarray(np.where(inside, np.exp(found + offset), 0.0))

    def _log_prob(self, events: Sequence[Tensor]) -> Array:
        """log p of events, one tensor for each variable."""
        found = self.rho.log_prob(self._placed(events[0], self.rho.components))
        return np.asarray(found.double().cpu())

    def _placed(self, event: Tensor, like: Tensor) -> Tensor:
        return event.to(like.device, like.dtype if event.is_floating_point() else None)

    def probability(self, given: Any) -> Array:
        """How probable a value, a range or a set is."""
        return np.asarray(self.probabilities([given])[0])

    def probabilities(self, givens: Sequence[Any]) -> Array:
        """How probable each of some values, ranges or sets is, `(n, *batch)`."""
        return self._summed(len(givens), self._boxes(givens))

    def _boxes(self, givens: Sequence[Any]) -> Boxes:
        """The boxes that values, ranges or sets consist of."""
        boxes = [(i, box) for i, given in enumerate(givens) for box in self.codec.region(given)]
        return [i for i, _ in boxes], self.codec.stack([box for _, box in boxes])

    def _summed(self, n: int, boxes: Boxes) -> Array:
        """The probabilities of n things that consist of boxes, `(n, *batch)`."""
        places, known = boxes
        found = np.zeros((n, *self._rows))
        np.add.at(found, places, self._masses(len(places), known))
        return np.asarray(np.minimum(found, 1.0))

    def histogram(self, bins: tuple[tuple[Any, Any], ...]) -> Array:
        """The probabilities of ranges, `(n, *batch)`; masses of components are kept for the next answer."""
        if self.rho is None or len(self.column.variables) > 1:
            return self.probabilities(bins)
        masses = self.pieces.kept(bins, lambda: self._component_masses(bins))
        return np.moveaxis(np.asarray((self._weights @ masses.mT).cpu()), -1, 0).clip(0.0, 1.0)

    def _component_masses(self, bins: Sequence[tuple[Any, Any]]) -> Float[Tensor, "n m"]:
        """The mass of every component in every range."""
        places, (known,) = self._boxes(bins)
        log_masses = self.rho.kernel.log_mass(as_region(self.rho.kernel, known), self.rho.components)
        found = torch.zeros(len(bins), log_masses.shape[-1], dtype=torch.float64, device=log_masses.device)
        place = torch.tensor(places, device=found.device)
        return found.index_add_(0, place, log_masses.double().exp())

    def _masses(self, n: int, known: Sequence[Known]) -> Array:
        """The probability of each of n boxes, `(n, *batch)`."""
        (own,) = known
        if own is None:
            return np.ones((n, *self._rows))
        region = spread(as_region(self.rho.kernel, own), self._rank)
        return np.asarray(self.rho.log_mass(region).double().exp().cpu())

    def sample(self, n: int, generator: torch.Generator | None) -> Array:
        """Draws `(n, *batch)` as values of the column."""
        draws = self.rho.sample((n,), generator=generator)
        return self._levels(draws.cpu().numpy()) if self.has_levels else self._each(self.codec.values, draws)


def _tails(coverage: float) -> np.ndarray:
    """The levels of the ends of the central interval."""
    return np.array([(1 - coverage) / 2, (1 + coverage) / 2])


def as_region(kernel: Kernel, known: Any) -> Region:
    """Points as regions that hold nothing else: they have a mass where values have probabilities."""
    if isinstance(known, Region):
        return known
    return OneOf(known.unsqueeze(-1)) if kernel.discrete else Interval(known, known)


def spread(region: Region, rank: int) -> Region:
    """Regions `(L, *event)` with `rank` dimensions of size 1 behind the first."""
    parts = vars(region)
    return type(region)(**{k: v.reshape(len(v), *([1] * rank), *v.shape[1:]) for k, v in parts.items()})
