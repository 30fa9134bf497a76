"""One digit of a quantile of dates: among all dates, or among those inside of boxes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.logspace import log_normalize
from kdmkit.distributions import KDM
from kdmkit.distributions.event_inference import EventEvidence, restriction
from kdmkit.distributions.univariate import Univariate
from kdmkit.estimators.table.answering.component_cache import ComponentCache, Turn
from kdmkit.estimators.table.codecs.number_lists import ListPart
from kdmkit.estimators.table.codecs.parts import NumberPart, Part
from kdmkit.estimators.table.codecs.times import CirclePart
from kdmkit.kernels import Interval, Region
from kdmkit.kernels.regions import NOTHING, WHOLE, intersection, union

#: The digit of a quantile for every row, the level of the quantile among the dates with this digit, and the
#: digit as evidence.
Digit = tuple[Tensor, Float[Tensor, "*rows"], Tensor | Region]


def first_digit(part: Part, rho: KDM, cache: ComponentCache, level: Float[Tensor, "*rows"]) -> Digit:
    """The smallest digit d with P(digit ≤ d) ≥ level.

    Args:
        part: how the digit is an event.
        rho: the distribution of the digit.
    """
    if isinstance(part, ListPart):
        return _among_codes(rho, cache, part, level)
    if isinstance(part, CirclePart):
        return _on_circle(rho, cache.turn, level)
    assert isinstance(part, NumberPart)
    mixture = Univariate(rho.kernel, rho.components, rho.log_weights, cache.knots)
    return _on_line(mixture, part, level)


def _among_codes(rho: KDM, cache: ComponentCache, part: ListPart, level: Tensor) -> Digit:
    probs = rho.log_weights.double().exp() @ cache.probs(len(part.numbers))
    reached = (probs / probs.sum(-1, keepdim=True)).cumsum(-1).clamp_max(1.0)
    reached[..., -1] = 1.0
    code = (reached < level.unsqueeze(-1)).sum(-1, keepdim=True)
    above = reached.gather(-1, code).squeeze(-1)
    below = torch.where(code > 0, reached.gather(-1, (code - 1).clamp_min(0)), 0.0).squeeze(-1)
    numbers = torch.tensor(part.numbers, dtype=torch.float64, device=level.device)
    code = code.squeeze(-1)
    event = part.event_of(code)
    event = event.to(rho.components.dtype) if event.is_floating_point() else event
    return numbers[code], _within(level, below, above), event


def _on_line(mixture: Univariate, part: NumberPart, level: Tensor) -> Digit:
    """Whole numbers. If they have densities, a number stands for those half a step around it."""
    step = part.step / part.scale
    reached = mixture.reach(level)
    # The first number whose cell ends at x or later.
    event = reached.x if part.masses else reached.x - 1e-9 * step
    number = torch.as_tensor(part.decode(event.unsqueeze(-1))).to(level)
    event = (number - part.shift) / part.scale
    if part.masses:
        evidence = event.to(mixture.components.dtype).unsqueeze(-1)
        return number, _within(level, reached.below, reached.upto), evidence
    ends = torch.stack([event - 0.5 * step, event + 0.5 * step])
    below, above = mixture.cdf(ends).double()
    return number, _within(level, below, above), Interval(*ends.unsqueeze(-1))


def _on_circle(rho: KDM, turn: Turn, level: Tensor) -> Digit:
    """A number d has the arc from d − ½ to d + ½; that of 0 begins at the end of the circle."""
    code, below, above = turn.first_of(rho.log_weights, level)
    number = code.double()
    evidence = Interval((number - 0.5).unsqueeze(-1), (number + 0.5).unsqueeze(-1))
    return number, _within(level, below, above), evidence


def _within(level: Tensor, below: Tensor, above: Tensor) -> Tensor:
    """The level inside of a digit; strictly between 0 and 1."""
    return ((level - below) / (above - below).clamp_min(1e-300)).clamp(1e-12, 1 - 1e-12)


# ---- inside of boxes


def digit_given(
    log_weight: float, rho: Any, name: str, boxes: Sequence[dict[str, Region]]
) -> tuple[float, KDM | None]:
    """The probability of some boxes of digits, and the distribution of one digit given them."""
    if isinstance(rho, KDM):
        regions = union([box.get(name, WHOLE) for box in boxes]) if boxes else NOTHING
        if regions.is_whole:
            return math.exp(log_weight), rho
        mass = math.exp(log_weight + float(rho.log_mass(regions))) if boxes else 0.0
        if not mass:
            return 0.0, None
        kernel, components = restriction(rho.kernel, regions, rho.components)
        logs = rho.log_weights + rho.kernel.log_mass(regions, rho.components)
        return mass, KDM(components, None, kernel, log_weights=log_normalize(logs), validate_args=False)
    evidence = EventEvidence(rho, boxes)
    weight = math.exp(log_weight + float(evidence.log_prob()))
    return (weight, evidence.infer([name])) if weight else (0.0, None)


def first_reached(
    part: Part, answers: Sequence[tuple[float, KDM | None]], level: float, low: int, high: int
) -> tuple[int, float, float]:
    """The first digit d with P(digit ≤ d) ≥ level, with P(digit < d) and P(digit ≤ d)."""

    def upto(digit: int) -> float:
        region = part.trimmed(part.outcomes(Interval(None, digit)))
        if region.is_empty:
            return 0.0
        if region.is_whole:
            return sum(weight for weight, _ in answers)
        inside = part.kernel_region(region)
        return sum(
            weight * math.exp(float(rho.log_mass(inside))) for weight, rho in answers if rho is not None
        )

    below, reached = 0.0, upto(high)
    low -= 1
    while high - low > 1:
        middle = (low + high) // 2
        value = upto(middle)
        if value >= level:
            high, reached = middle, value
        else:
            low, below = middle, value
    return high, below, reached


def narrowed(boxes: Sequence[dict[str, Region]], name: str, region: Region) -> list[dict[str, Region]]:
    """The boxes in which a digit has one value."""
    kept = []
    for box in boxes:
        shared = intersection([box[name], region]) if name in box else region
        if not shared.is_empty:
            kept.append({**box, name: shared})
    return kept
