"""Regions in other forms: from what people write, as cells between numbers, and as tensors for kernels.

Tensors are of intervals of numbers, or of sets of codes, a row for each of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kdmkit._core.checks import bad_argument, check_event
from kdmkit._core.tensors import broadcast
from kdmkit.kernels.regions import START, STOP, Interval, OneOf, Region, Span, region_of


class Bounds(NamedTuple):
    """Intervals of numbers as a kernel measures them, one for every row.

    Attributes:
        low, high: ends in float64, `(*lead, d)`.
        above, below: whether numbers are strictly above `low`, strictly below `high`, `(*lead, 1)`.
    """

    low: Float[Tensor, "*lead d"]
    high: Float[Tensor, "*lead d"]
    above: Bool[Tensor, "*lead 1"]
    below: Bool[Tensor, "*lead 1"]

    def hold(self, numbers: Float[Tensor, " a"]) -> Bool[Tensor, "*lead a"]:
        """Whether numbers lie in intervals of one dimension."""
        at_low, at_high = [_same(numbers, end) for end in (self.low, self.high)]
        over = torch.where(at_low, ~self.above, numbers > self.low)
        return over & torch.where(at_high, ~self.below, numbers < self.high)


def _same(numbers: Float[Tensor, " a"], ends: Float[Tensor, "*lead 1"]) -> Bool[Tensor, "*lead a"]:
    """Whether an end is a number, or that number in single precision."""
    single = ends.float()
    return (numbers == ends) | ((single == ends) & (numbers.float() == single))


# An interval that holds nothing: above 0 and below 0.
_EMPTY = (0.0, 0.0, 1.0, 1.0)


def pack_intervals(
    argument: str, region: Region, event_shape: torch.Size, device: torch.device | None = None
) -> Float[Tensor, "*lead p"]:
    """The region of a variable of numbers in float64: whether it has `Missing`, then its intervals."""
    d = event_shape.numel()
    if isinstance(region, Interval) and (region.is_batch or d != 1):
        low, high = [_placed(argument, end, event_shape) for end in region.tensors(device)]
        shape = broadcast(low.shape, high.shape)
        lead = shape[: len(shape) - len(event_shape)]
        low, high = [end.expand(shape).reshape(*lead, d) for end in (low, high)]
        flags = low.new_tensor([region.above, region.below]).expand(*lead, 2)
        return torch.cat([low.new_zeros(*lead, 1), low, high, flags], -1)
    if d != 1:
        raise TypeError(bad_argument(argument, "an interval, for events of several dimensions", repr(region)))
    if isinstance(region, OneOf) and region.is_batch:
        values, is_new = first_occurrences(region.values.to(device, torch.float64))
        missing, numbers = values.isnan(), values.nan_to_num()
        strict = (missing | ~is_new).double()
        rows = torch.stack([numbers, numbers, strict, strict], -1).flatten(-2)
        return torch.cat([missing.any(-1, keepdim=True).double(), rows], -1)
    pieces = [_numbers(argument, piece) for piece in region.pieces] or [_EMPTY]
    flat = [float(region.has_missing), *[number for piece in pieces for number in piece]]
    return torch.tensor(flat, dtype=torch.float64, device=device)


def _numbers(argument: str, piece: Interval) -> tuple[float, ...]:
    try:
        if isinstance(piece.low, str) or isinstance(piece.high, str):
            raise TypeError
        low, high = float_ends(piece)
    except (TypeError, ValueError) as error:
        raise TypeError(bad_argument(argument, "a region of numbers", repr(piece))) from error
    return low, high, float(piece.above), float(piece.below)


def float_ends(piece: Interval) -> tuple[float, float]:
    """Both ends of an interval as floats.

    >>> float_ends(Interval(1, 10**400))
    (1.0, inf)
    """
    low = -math.inf if piece.low is None else _float(piece.low)
    return low, math.inf if piece.high is None else _float(piece.high)


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _placed(argument: str, end: Tensor, event_shape: torch.Size) -> Tensor:
    end = end if end.ndim else end.expand(event_shape)
    check_event(argument, end, event_shape)
    return end


def stack_packed(packed: Sequence[Tensor]) -> Tensor:
    """Packed regions of one variable in one tensor: shorter ones get empty intervals, or no more codes."""
    if len(packed) == 1:
        return packed[0].unsqueeze(0)
    longest = max(row.shape[-1] for row in packed)
    if not packed[0].is_floating_point():
        return torch.stack(
            [torch.nn.functional.pad(row, (0, longest - len(row)), value=-1) for row in packed]
        )
    empty = torch.tensor(_EMPTY, dtype=torch.float64, device=packed[0].device)
    return torch.stack([torch.cat([row, empty.repeat((longest - len(row)) // 4)]) for row in packed])


def unpack_intervals(
    packed: Float[Tensor, "*lead p"], d: int
) -> tuple[Bool[Tensor, "*lead 1"], list[Bounds]]:
    """Whether regions have `Missing`, and their intervals."""
    missing, rest = packed[..., :1].detach() > 0, packed[..., 1:]
    bounds = []
    for piece in rest.split(2 * d + 2, -1):
        low, high, above, below = piece.split([d, d, 1, 1], -1)
        bounds.append(Bounds(low, high, above.detach() > 0, below.detach() > 0))
    return missing, bounds


def pack_codes(
    argument: str, region: Region, n: int, device: torch.device | None = None
) -> Int[Tensor, "*lead k"]:
    """The codes 0 … n − 1 in a region; −1 stands for none."""
    if isinstance(region, OneOf) and region.is_batch:
        return region.values.to(device)
    if region.is_batch:
        raise TypeError(bad_argument(argument, "a set of codes", "a batch of intervals"))
    codes = [code for piece in region.pieces for code in codes_in(argument, piece, n)]
    return torch.tensor(codes or [-1], device=device)


def codes_in(argument: str, piece: Interval, n: int) -> range:
    """The codes 0 … n − 1 in an interval."""
    low, high = -1 if piece.low is None else piece.low, n if piece.high is None else piece.high
    try:
        first = math.floor(low) + 1 if piece.above else math.ceil(low)
        stop = math.ceil(high) if piece.below else math.floor(high) + 1
    except TypeError as error:
        raise TypeError(bad_argument(argument, "a region of integer codes", repr(piece))) from error
    return range(max(first, 0), min(stop, n))


def first_occurrences(values: Tensor) -> tuple[Tensor, Tensor]:
    """Values `(*lead, k)` in ascending order, and which of them differ from the one before."""
    ordered = values.sort(-1).values
    new = torch.ones_like(ordered, dtype=torch.bool)
    new[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    return ordered, new


# ---- what people write, and cells


def single_values(region: Region) -> list[Any] | None:
    """The outcomes of a region that has single values alone, without `Missing`; otherwise None."""
    points = [] if region.is_batch else region.points
    return None if region.is_batch or len(points) < len(region.spans) else points


def by_edges(region: Region, edge: Callable[[Any, bool], float]) -> Region:
    """The region with every cut as a number: outcomes are cells between neighbouring edges.

    Args:
        edge: the edge before a value, or after it; ends that are not in order raise a ValueError.

    >>> by_edges(Interval(1, 3, closed="right"), lambda value, after: value + (0.5 if after else -0.5))
    Interval(1.5, 3.5, closed='left')
    """
    edges: list[Span] = []
    for start, stop in region.spans:
        first = start if start == START else (0, edge(start[1], start[2]), False)
        last = stop if stop == STOP else (0, edge(stop[1], stop[2]), False)
        edges += [(first, last)] if first < last else []
    spans: list[Span] = []
    for first, last in sorted(edges):  # levels come in the order of their texts
        if spans and spans[-1][1] >= first:
            spans[-1] = (spans[-1][0], max(last, spans[-1][1]))
        else:
            spans.append((first, last))
    return region_of(tuple(spans), region.has_missing)


def as_region(value: Any) -> Region:
    """What people write for a set of outcomes, as a region.

    Args:
        value: a region; a pair, which is a closed range with None for an open end; a list or a set; or one
            value.

    >>> as_region((0, None)), as_region(["a", "b"]), as_region(3)
    (Interval(0, None), OneOf(['a', 'b']), OneOf([3]))
    """
    if isinstance(value, Region):
        return value
    if isinstance(value, tuple) and len(value) == 2:
        return Interval(*value)
    if isinstance(value, list | set | frozenset | tuple | range) or (hasattr(value, "ndim") and value.ndim):
        return OneOf(value)
    return OneOf([value])
