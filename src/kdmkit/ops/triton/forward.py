"""The forward pass of the Triton backend: components are staged part by part, and kernels run over the parts.

Components that are not prepared are staged one segment at a time, so that extra memory does not grow with
their number. Sums continue from part to part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit.ops.blocks import block_order, slices
from kdmkit.ops.triton.backend import Outputs
from kdmkit.ops.triton.local_kernels import forward_direct, forward_local
from kdmkit.ops.triton.product_kernels import combine_kernel, forward_kernel
from kdmkit.ops.triton.staging import (
    Config,
    Plan,
    Staged,
    Whitening,
    choose_splits,
    halves,
    launch,
    on_device,
    padded,
    slots_of,
    stage,
    value_unit,
)
from kdmkit.ops.triton.staging_kernels import COPIES, GROUP, stage_local

_COMBINE_ROWS = 32
# Putting components in order for local centres pays from this many points on, times what a point costs:
# dimensions, and values twice.
LEAST_LOCAL_WORK = 1 << 17
# Groups of components whose largest ‖z‖² is at most this are multiplied about their centre: errors of scores
# are a few 2^-24 of it. Others are compared by differences.
LARGEST_SQUARED_RADIUS = 80.0
# With fewer dimensions, plus twice the number of values, differences cost no more than products.
LEAST_LOCAL_SIZE = 8

#: Numbers of components.
Numbers = slice | Int[Tensor, " k"]


@dataclass(frozen=True)
class StagedPart:
    """Some staged components, their numbers, and the plan of the kernel that takes them."""

    plan: Plan
    components: Staged
    numbers: Numbers

    @property
    def n_bytes(self) -> int:
        numbers = self.numbers.nbytes if isinstance(self.numbers, Tensor) else 0
        return self.components.n_bytes + numbers

    def cut(self, step: int) -> Iterator[tuple[slice, StagedPart]]:
        """Parts of at most `step` components (whole groups), and their places in this one."""
        for place in slices(self.components.rows, step):
            numbers = self.numbers
            if isinstance(numbers, Tensor):
                numbers = numbers[place]
            else:
                start = numbers.start
                numbers = slice(start + place.start, min(start + place.stop, numbers.stop))
            yield place, replace(self, components=self.components.cut(place), numbers=numbers)


@dataclass(frozen=True)
class ComponentValues:
    """Values of all components: a tensor, or a function that computes some of its rows.

    Args:
        n: the number of values of a component.
        rows: the values of some components, from their numbers.
        unit: a power of two per column that brings its values into the range of half precision.
        staged: values beside the parts of prepared components; None if every call stages them.
    """

    n: int
    rows: Callable[[Numbers], Float[Tensor, "k v"]]
    unit: Float[Tensor, "padded"]
    staged: tuple[Staged, ...] | None = None

    @classmethod
    def of(
        cls,
        rows: Callable[[Numbers], Float[Tensor, "k v"]],
        shape: tuple[int, int],
        plan: Plan,
        device: torch.device,
    ) -> ComponentValues:
        """Values of shape `(m, v)`, for a plan with v values."""
        m, n = shape
        if plan.direct or not n:
            return cls(n, rows, torch.ones(plan.v, dtype=torch.float32, device=device))
        largest = [
            torch.linalg.vector_norm(rows(some).detach(), torch.inf, dim=0)
            for some in slices(m, max(GROUP.value, (1 << 24) // n))
        ]
        return cls(n, rows, value_unit(torch.stack(largest).amax(0), plan.v))

    @property
    def n_bytes(self) -> int:
        return sum(part.n_bytes for part in self.staged or ())

    def stage(self, numbers: Numbers, plan: Plan) -> Staged:
        unit = torch.ones_like(self.unit) if plan.direct else self.unit
        return stage_values(self.rows(numbers), unit, plan, lift=False)


def stage_values(
    values: Float[Tensor, "n v"], unit: Float[Tensor, "padded"], plan: Plan, *, lift: bool
) -> Staged:
    passes, lift = (0, False) if plan.direct else (plan.passes, lift)
    return stage(values, torch.zeros_like(unit), unit, width=plan.v, passes=passes, lift=lift)


def components_plan(plan: Plan) -> Plan:
    """The plan with local centres, if dimensions are few."""
    if plan.few and plan.d + 2 * plan.n_values >= LEAST_LOCAL_SIZE:
        # Differences are exact to float32, whatever the precision of products.
        return replace(plan, passes=3, local=True)
    return plan


def stage_components(
    components: Float[Tensor, "m d"],
    log_weights: Float[Tensor, " m"],
    whitening: Whitening,
    plan: Plan,
    step: int,
) -> Iterator[StagedPart]:
    """All components, at most `step` at a time."""
    for rows in slices(len(components), step):
        if plan.local:
            yield from _stage_groups(components, log_weights, whitening, plan, rows)
        else:
            yield StagedPart(plan, whitening.stage(components[rows], plan, log_weights[rows]), rows)


def _stage_groups(
    components: Tensor, log_weights: Tensor, whitening: Whitening, plan: Plan, rows: slice
) -> Iterator[StagedPart]:
    """Groups of some components: the compact ones about their centres, the others for differences."""
    points = whitening.before_unit(components[rows].detach())
    order = block_order(points * whitening.unit, GROUP.value)
    staged, compact = _stage_about_centres(points, order, whitening.unit, log_weights[rows], plan)
    n_compact = int(compact.sum())
    order = order + rows.start
    if n_compact == len(compact):
        yield StagedPart(plan, staged, order)
        return
    chosen = compact.repeat_interleave(GROUP.value)[: len(order)]
    if n_compact:
        yield StagedPart(plan, staged.chosen(compact), order[chosen])
    del staged
    others, differences = order[~chosen], replace(plan, local=False)
    yield StagedPart(
        differences, whitening.stage(components[others], differences, log_weights[others]), others
    )


def _stage_about_centres(
    x: Float[Tensor, "m d"],
    order: Int[Tensor, " m"],
    unit: Float[Tensor, " d"],
    offset: Float[Tensor, " m"],
    plan: Plan,
) -> tuple[Staged, Tensor]:
    """Components in groups about local centres, and which groups are compact."""
    m, width = len(x), plan.width
    rows = padded(m)
    groups = rows // GROUP.value
    high = x.new_empty(rows, width, dtype=torch.float16)
    low = torch.empty_like(high)
    bias = x.new_empty(rows * COPIES.value, dtype=torch.float32)
    exponents = x.new_empty(groups, dtype=torch.int32)
    centres = x.new_empty(groups, width, dtype=torch.float32)
    compact = x.new_empty(groups, dtype=torch.bool)
    stage_local[(groups,)](
        x, order, unit, offset.contiguous(), high, low, bias, exponents, centres, compact,
        m, x.stride(0), x.stride(1), LARGEST_SQUARED_RADIUS,
        D=plan.d, WIDTH=width, PASSES=plan.passes, num_warps=4,
    )  # fmt: skip
    return Staged(rows, high, low, bias, exponents, centres), compact


def no_unit(device: torch.device) -> Float[Tensor, "0"]:
    """The unit of no values."""
    return torch.ones(0, dtype=torch.float32, device=device)


def passes() -> int:
    """Full float32 precision takes three products of halves, any other precision one."""
    return 3 if torch.get_float32_matmul_precision() == "highest" else 1


@dataclass(frozen=True)
class ComponentSource:
    """Components that points are compared with: staged in this call, or prepared.

    Args:
        unit: of the values.
        n_groups: the most groups of a part.
        parts: all components with their values, for a number of points.
    """

    plan: Plan
    whitening: Whitening
    unit: Float[Tensor, "padded"]
    n_groups: int
    parts: Callable[[int], Iterator[tuple[StagedPart, Staged]]]


def stage_in_segments(
    metric: bool,
    query: Float[Tensor, "n d"],
    components: Float[Tensor, "m d"],
    log_weights: Float[Tensor, "m"],
    values: Float[Tensor, "m v"] | None,
    scale: Float[Tensor, "s t"],
    *,
    local: bool = False,
) -> ComponentSource:
    """The components of one call, staged segment by segment.

    Args:
        metric: whether `scale` is a matrix.
        local: whether to use local centres if dimensions are few.
    """
    plan = Plan(query.shape[1], 0 if values is None else values.shape[1], passes())
    plan, whitening = components_plan(plan) if local else plan, Whitening(components, scale, metric)
    given, unit = None, no_unit(query.device)
    if values is not None:
        shape = len(values), values.shape[1]
        given = ComponentValues.of(values.__getitem__, shape, plan, query.device)
        unit = given.unit

    def parts(points: int) -> Iterator[tuple[StagedPart, Staged]]:
        for part in stage_components(components, log_weights, whitening, plan, plan.segment):
            yield part, part.components if given is None else given.stage(part.numbers, part.plan)

    n_groups = min(padded(len(components)), plan.segment) // GROUP.value
    return ComponentSource(plan, whitening, unit, n_groups, parts)


def forward(metric: bool, query: Float[Tensor, "n d"], *operands: Any) -> Outputs:
    """Averages, logsumexps, the largest score of each point (in units of log 2) and its normalised weight.

    Args:
        operands: components, log-weights, values and scale.
    """
    n_values = 0 if operands[2] is None else operands[2].shape[1]
    local = len(query) * (query.shape[1] + 2 * n_values) >= LEAST_LOCAL_WORK
    with on_device(query.device):
        return run(stage_in_segments(metric, query, *operands, local=local), query)


def run(source: ComponentSource, query: Float[Tensor, "n d"]) -> Outputs:
    """The outputs of `forward` for any source of components."""
    n, plan = len(query), source.plan
    averages = query.new_empty(n, plan.n_values, dtype=torch.float32)
    lse, maxima, top_weights = (query.new_empty(n, dtype=torch.float32) for _ in range(3))
    for rows in slices(n, plan.point_rows):
        points = _PointSums(source, query[rows])
        for part, values in source.parts(points.rows):
            points.add(part, values)
            # Before the next part is staged: two of them take twice the memory.
            del part, values
        points.finish((averages[rows], lse[rows], maxima[rows], top_weights[rows]))
    return averages, lse, maxima, top_weights


class _PointSums:
    """Some points, and the state of their sums, which continue from part to part."""

    def __init__(self, source: ComponentSource, query: Float[Tensor, "n d"]) -> None:
        self._source, self._query, plan = source, query, source.plan
        self.rows, new = padded(len(query)), source.unit.new_empty
        programs, slots = self.rows // GROUP.value, slots_of(query.device)
        # With many rounds of programs splits gain nothing, and take memory.
        most = max(1, 4 * slots // programs)
        splits = min(choose_splits(programs, 2 * source.n_groups, slots), most)
        #: Sums, largest scores and sums of weights, of every split of the components.
        self._state = new(splits, self.rows, plan.v), new(splits, self.rows), new(splits, self.rows)
        self._resume = 0
        self._staged: dict[bool, Staged] = {}

    def _points(self, plan: Plan) -> Staged:
        """The points, staged for differences or for products about the common centre."""
        if plan.direct not in self._staged:
            self._staged[plan.direct] = self._source.whitening.stage(self._query, plan)
        return self._staged[plan.direct]

    def add(self, part: StagedPart, values: Staged) -> None:
        launch("forward", part.plan, partial(self._add, part, values))
        self._resume = 1

    def _add(self, part: StagedPart, values: Staged, config: Config) -> None:
        plan, components = part.plan, part.components
        state, splits = self._state, len(self._state[1])
        n_blocks = components.rows // (GROUP.value if plan.local else config.block_n)
        grid = self.rows // config.block_m, splits
        sizes = self.rows, n_blocks, math.ceil(n_blocks / splits), self._resume
        constants: dict[str, Any] = {**plan.constants, **config.constants(plan)}
        if plan.local:
            whitening = self._source.whitening
            points = whitening.before_unit(self._query).contiguous()
            forward_local[grid](
                points, whitening.unit,
                components.high, components.low, components.exponents, components.bias, components.centres,
                values.high, values.low, self._source.unit, *state,
                len(points), *sizes, points.stride(0), **constants,
            )  # fmt: skip
        elif plan.direct:
            forward_direct[grid](
                self._points(plan).high, components.high, components.bias, values.high,
                self._source.whitening.direct_factor, *state, *sizes, **constants, V=self._source.plan.v,
            )  # fmt: skip
        else:
            staged = halves(self._points(plan), (components, values))
            forward_kernel[grid](*staged, self._source.unit, *state, *sizes, **constants)

    def finish(self, results: Outputs) -> None:
        """Merges the splits."""
        plan, state = self._source.plan, self._state
        averages, lse, maxima, top_weights = results
        norms = not plan.few
        combine_kernel[(self.rows // _COMBINE_ROWS,)](
            *state, self._points(plan).bias if norms else lse, averages, lse, maxima, top_weights,
            len(lse), self.rows, len(state[1]),
            N_VALUES=plan.n_values, V=plan.v, HAS_NORMS=norms, BLOCK_M=_COMBINE_ROWS,
        )  # fmt: skip
