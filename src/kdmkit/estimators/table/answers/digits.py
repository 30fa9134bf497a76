"""Quantiles of dates: digit by digit, since a later date has the greater digits, read from the first one."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit.distributions import KDM
from kdmkit.distributions.univariate import Univariate
from kdmkit.estimators.table.answers.pieces import Pieces
from kdmkit.estimators.table.answers.turns import Turn
from kdmkit.estimators.table.codecs.parts import CirclePart, NumberPart, Part
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
