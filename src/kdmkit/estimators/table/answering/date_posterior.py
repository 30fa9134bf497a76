"""The distribution of a column of dates, whose digits are variables: quantiles are found digit by digit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit.distributions import KDM
from kdmkit.distributions.univariate import Univariate
from kdmkit.estimators.common.arrays import Array
from kdmkit.estimators.table.answering.component_cache import Pieces, Turn
from kdmkit.estimators.table.answering.posterior import Posterior, as_region, merge_boxes, spread
from kdmkit.estimators.table.codecs.base import Known
from kdmkit.estimators.table.codecs.dates import CirclePart, DateCodec
from kdmkit.estimators.table.codecs.parts import NumberPart, Part
from kdmkit.estimators.table.schema import Column
from kdmkit.kernels.regions import Interval, Region


class Digit(NamedTuple):
    """The digit of a quantile, for every row.

    Attributes:
        number: the digit.
        rest: the level of the quantile among the dates with this digit.
        known: that the digit is this one, as evidence.
    """

    number: Tensor
    rest: Float[Tensor, "*rows"]
    known: Tensor | Region


def first_digit(part: Part, rho: KDM, pieces: Pieces, level: Float[Tensor, "*rows"]) -> Digit:
    """The smallest digit d with P(digit ≤ d) ≥ level.

    Args:
        part: how the digit is an event.
        rho: the distribution of the digit.
    """
    if part.values is not None:
        return _among_codes(rho, pieces, part.values, level)
    if isinstance(part, CirclePart):
        return _on_circle(rho, pieces.turn, level)
    assert isinstance(part, NumberPart)
    mixture = Univariate(rho.kernel, rho.components, rho.log_weights, pieces.knots)
    return _on_line(mixture, part, level)


def _among_codes(rho: KDM, pieces: Pieces, values: Any, level: Tensor) -> Digit:
    probs = rho.log_weights.double().exp() @ pieces.probs
    reached = (probs / probs.sum(-1, keepdim=True)).cumsum(-1).clamp_max(1.0)
    reached[..., -1] = 1.0
    code = (reached < level.unsqueeze(-1)).sum(-1, keepdim=True)
    above = reached.gather(-1, code).squeeze(-1)
    below = torch.where(code > 0, reached.gather(-1, (code - 1).clamp_min(0)), 0.0).squeeze(-1)
    numbers = torch.tensor(values, dtype=torch.float64, device=level.device)
    code = code.squeeze(-1)
    return Digit(numbers[code], _among(level, below, above), code)


def _on_line(mixture: Univariate, part: NumberPart, level: Tensor) -> Digit:
    """Whole numbers. Where they have densities, a number stands for those half a step around it."""
    step = part.step / part.scale
    found = mixture.reach(level)
    # The first number whose cell ends at x or later.
    event = found.x if part.masses else found.x - 1e-9 * step
    number = torch.as_tensor(part.decode(event.unsqueeze(-1))).to(level)
    event = (number - part.shift) / part.scale
    if part.masses:
        known = event.to(mixture.components.dtype).unsqueeze(-1)
        return Digit(number, _among(level, found.below, found.upto), known)
    ends = torch.stack([event - 0.5 * step, event + 0.5 * step])
    below, above = mixture.cdf(ends).double()
    return Digit(number, _among(level, below, above), Interval(*ends.unsqueeze(-1)))


def _on_circle(rho: KDM, turn: Turn, level: Tensor) -> Digit:
    """A number d has the arc from d − ½ to d + ½; that of 0 begins at the end of the circle."""
    code, below, above = turn.first_of(rho.log_weights, level)
    number = code.double()
    known = Interval((number - 0.5).unsqueeze(-1), (number + 0.5).unsqueeze(-1))
    return Digit(number, _among(level, below, above), known)


def _among(level: Tensor, below: Tensor, above: Tensor) -> Tensor:
    """The level inside of a digit; strictly between 0 and 1."""
    return ((level - below) / (above - below).clamp_min(1e-300)).clamp(1e-12, 1 - 1e-12)


#: The distribution of some variables, `target=`, given others by name.
Ask = Callable[..., Any]


def posterior_of(
    column: Column,
    rho: Any,
    log_share: Float[Tensor, " boxes"] | None = None,
    pieces: Mapping[str, Pieces] | None = None,
    ask: Ask | None = None,
) -> Posterior:
    """The posterior of a column; of boxes of evidence, their mixture.

    Args:
        rho: the distribution of the column's variables.
        log_share: where the batch of `rho` counts boxes, their log-weights.
        pieces: by variable, those of its components.
        ask: `DatePosterior`'s.
    """
    if not isinstance(rho, KDM):
        return DatePosterior(column, rho, log_share, pieces, ask)
    own = None if pieces is None else pieces[column.variables[0]]
    return Posterior(column, rho if log_share is None else merge_boxes(rho, log_share), own)


class DatePosterior(Posterior):
    """The distribution of a column of dates.

    Args:
        column: the column.
        rho: the joint distribution of its variables.
        log_share: where the batch of `rho` counts boxes of evidence, their log-weights.
        pieces: by variable, those of its components.
        ask: the distribution of one variable (`target=`) given others of the column, from the whole model
            with all evidence. Without it, `rho.infer`, which is slower: it puts evidence after evidence.
    """

    def __init__(
        self,
        column: Column,
        rho: Any,
        log_share: Tensor | None,
        pieces: Mapping[str, Pieces] | None = None,
        ask: Ask | None = None,
    ) -> None:
        super().__init__(column, rho)
        self._ask: Ask = rho.infer if ask is None else ask
        # What is to be added to log p of what was asked, for the log-weights of boxes.
        self._log_prior = log_share if ask is None else 0.0
        assert isinstance(column.codec, DateCodec)
        self.dates, self.log_share = column.codec, log_share
        self._digit_pieces = pieces or {
            name: Pieces(rho.kernels[name], rho.components[name]) for name in column.variables
        }

    @property
    def _rows(self) -> tuple[int, ...]:
        return () if self.log_share is not None else tuple(self.rho.batch_shape)

    # ---- probabilities

    def histogram(self, bins: tuple[tuple[Any, Any], ...]) -> Array:
        """The probabilities of ranges, `(n, *batch)`; their boxes of digits are kept for the next answer."""
        first = self._digit_pieces[self.column.variables[0]]
        return self._summed(len(bins), first.kept(bins, lambda: self._boxes(bins)))

    def _masses(self, n: int, known: Sequence[Known]) -> Array:
        regions = {
            name: spread(as_region(self.rho.kernels[name], part), len(self.rho.batch_shape))
            for name, part in zip(self.column.variables, known, strict=True)
            if part is not None
        }
        if not regions:
            return np.ones((n, *self._rows))
        return np.asarray(np.exp(self._mixed(self._joint_log_prob(regions))))

    def _joint_log_prob(self, known: Mapping[str, Tensor | Region]) -> Tensor:
        rho = self.rho if len(known) == len(self.rho.kernels) else self.rho.marginal(*known)
        if len(known) > 1:
            found: Tensor = rho.log_prob(**known)
            return found
        (one,) = known.values()
        found = rho.log_mass(one) if isinstance(one, Region) else rho.log_prob(one)
        return found

    def _mixed(self, log_prob: Tensor) -> Array:
        """Log-probabilities; of boxes of evidence, their average."""
        found = log_prob.double()
        if self.log_share is not None:
            found = torch.logsumexp(found + self.log_share, -1)
        return np.asarray(found.cpu())

    def _log_prob(self, events: Sequence[Tensor]) -> Array:
        placed = {
            name: self._placed(event, self.rho.components[name])
            for name, event in zip(self.column.variables, events, strict=True)
        }
        if self.log_share is not None:  # boxes come last
            ranks = dict(zip(placed, map(len, self.codec.shapes), strict=True))
            placed = {name: e.unsqueeze(e.ndim - ranks[name]) for name, e in placed.items()}
        return self._mixed(self._joint_log_prob(placed))

    # ---- quantiles

    def quantile(self, q: float | Sequence[float]) -> Array:
        """The first date with F(date) ≥ q, `(*batch,)`; `(n, *batch)` for n levels q."""
        levels = np.asarray(q, dtype=np.float64)
        if 0 in self._rows:
            return np.empty((*levels.shape, *self._rows), "datetime64[us]")
        found = [self._quantile(float(level)) for level in levels.reshape(-1)]
        return np.stack(found).reshape((*levels.shape, *self._rows))

    def interval(self, coverage: float) -> Array:
        """The central one: dates are many."""
        return self.quantile(((1 - coverage) / 2, (1 + coverage) / 2))

    def _quantile(self, q: float) -> Array:
        rest = torch.full(self._rows, q, dtype=torch.float64, device=self._device)
        digits: list[np.ndarray] = []
        known: dict[str, Tensor | Region] = {}
        for name, part in zip(self.column.variables, self.dates.parts, strict=True):
            own = self._ask(target=name, **known) if known else self.rho.marginal(name)
            if self.log_share is not None:
                share = self._log_prior + own.log_evidence.double() if known else self.log_share
                own = merge_boxes(own, torch.log_softmax(share, -1))
            digit = first_digit(part, own, self._digit_pieces[name], rest)
            digits.append(digit.number.cpu().numpy())
            known[name], rest = digit.known, digit.rest
        dates = self.dates.calendar.join([np.atleast_1d(digit) for digit in digits])
        return np.asarray(dates).reshape(self._rows)

    # ---- draws

    @property
    def _device(self) -> torch.device:
        device: torch.device = next(iter(self.rho.components.values())).device
        return device

    def sample(self, n: int, generator: torch.Generator | None) -> Array:
        drawn = self.rho.sample((n,), generator=generator)
        parts = [drawn[name].cpu() for name in self.column.variables]
        if self.log_share is not None:
            share = self.log_share.exp().to(self._device)
            box = torch.multinomial(share, n, replacement=True, generator=generator).cpu()
            parts = [part[torch.arange(n), box] for part in parts]
        shapes = self.codec.shapes
        lead = parts[0].shape[: parts[0].ndim - len(shapes[0])]
        flat = [part.reshape(-1, *shape) for part, shape in zip(parts, shapes, strict=True)]
        return np.asarray(self.codec.numbers(*flat)).reshape(tuple(lead))

    def typical(self) -> Array:
        return self.dates.written(self.quantile(0.5))

    def mode(self) -> Array:
        """The median stands for the most probable date."""
        return self.quantile(0.5)
