"""The forward pass of the Triton backend: launches the kernels over parts of the components.

Without a memory, components are staged one segment at a time, so that extra memory does not grow with their
number. Sums continue from part to part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit.ops.blocks import slices
from kdmkit.ops.triton.backend import Operands, Outputs
from kdmkit.ops.triton.direct_kernels import forward_direct
from kdmkit.ops.triton.forward_kernels import combine_kernel, forward_kernel
from kdmkit.ops.triton.kernels import GROUP
from kdmkit.ops.triton.local_kernels import forward_local
from kdmkit.ops.triton.parts import Components, Part, Values, components_plan, stage_values
from kdmkit.ops.triton.staging import (
    Config,
    Plan,
    Segment,
    Staged,
    Whitening,
    choose_splits,
    halves,
    launch,
    on_device,
    padded,
    slots_of,
)

_COMBINE_ROWS = 32
# Putting components in order for local centres pays from this many points on, times what a point costs:
# dimensions, and values twice.
LEAST_LOCAL_WORK = 1 << 17


class Source(Protocol):
    """Components that points are compared with: staged now, or kept in a memory."""

    plan: Plan
    whitening: Whitening
    #: The unit of the values.
    unit: Float[Tensor, "padded"]
    #: The most groups of a part.
    n_groups: int

    def parts(self, points: int) -> Iterator[tuple[Part, Staged]]:
        """All components with their values, for a number of points."""


def passes() -> int:
    """Full float32 precision takes three products of halves, any other precision one."""
    return 3 if torch.get_float32_matmul_precision() == "highest" else 1


class PreparedOperands:
    """The operands of one call, with everything that their segments share; a `Source`.

    Args:
        local: whether to use local centres where dimensions are few.
    """

    def __init__(self, operands: Operands, *, local: bool = False) -> None:
        self.operands, values = operands, operands.values
        self.plan = Plan(operands.query.shape[1], 0 if values is None else values.shape[1], passes())
        if local:
            self.plan = components_plan(self.plan)
        self.whitening = Whitening(operands.components, operands.scale, operands.metric)
        self._components = Components(operands.components, operands.log_weights, self.whitening)
        self._values = None if values is None else Values.tensor(values)
        if self._values is None:
            self.unit = torch.ones(0, dtype=torch.float32, device=operands.query.device)
        else:
            self.unit = self._values.unit(self.plan, operands.query)
        self.slots = slots_of(self.unit.device)
        self.n_groups = min(padded(len(operands.components)), self.plan.segment) // GROUP.value

    def stage_values(
        self, values: Float[Tensor, "n v"], unit: Float[Tensor, "padded"], *, lift: bool
    ) -> Staged:
        return stage_values(values, unit, self.plan, lift=lift)

    def stage_segment(self, columns: slice) -> Segment:
        staged = self._components.stage(columns, self.plan)
        return staged, staged if self._values is None else self._values.stage(columns, self.unit, self.plan)

    def parts(self, points: int) -> Iterator[tuple[Part, Staged]]:
        for part in self._components.parts(self.plan, self.plan.segment):
            values = self._values
            yield part, part.components if values is None else values.stage(part.rows, self.unit, part.plan)


def forward(operands: Operands) -> Outputs:
    """Averages, logsumexps, the largest score of each point (in units of log 2) and its normalised weight."""
    query, n_values = operands.query, 0 if operands.values is None else operands.values.shape[1]
    local = len(query) * (query.shape[1] + 2 * n_values) >= LEAST_LOCAL_WORK
    with on_device(query.device):
        return run(PreparedOperands(operands, local=local), query)


def run(source: Source, query: Float[Tensor, "n d"]) -> Outputs:
    """The outputs of `forward` for any source of components."""
    n, plan = len(query), source.plan
    averages = query.new_empty(n, plan.n_values, dtype=torch.float32)
    lse, maxima, top_weights = (query.new_empty(n, dtype=torch.float32) for _ in range(3))
    for rows in slices(n, plan.point_rows):
        points = _Points(source, query[rows])
        for part, values in source.parts(points.rows):
            points.add(part, values)
            # Before the next part is staged: two of them take twice the memory.
            del part, values
        points.finish((averages[rows], lse[rows], maxima[rows], top_weights[rows]))
    return averages, lse, maxima, top_weights


class _Points:
    """Some points, and the state of their sums: it continues from part to part."""

    def __init__(self, source: Source, query: Float[Tensor, "n d"]) -> None:
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
        """The points as differences or products about the common centre take them."""
        if plan.direct not in self._staged:
            self._staged[plan.direct] = self._source.whitening.stage(self._query, plan)
        return self._staged[plan.direct]

    def add(self, part: Part, values: Staged) -> None:
        launch("forward", part.plan, partial(self._add, part, values))
        self._resume = 1

    def _add(self, part: Part, values: Staged, config: Config) -> None:
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
