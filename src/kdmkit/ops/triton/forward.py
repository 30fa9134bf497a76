"""The forward pass of the Triton backend: prepares operands and launches the kernels.

Components are staged one segment at a time, so that extra memory does not grow with their number. Sums
continue from segment to segment.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit.ops.blocks import slices
from kdmkit.ops.triton.backend import Operands, Outputs
from kdmkit.ops.triton.direct_kernels import forward_direct
from kdmkit.ops.triton.forward_kernels import combine_kernel, forward_kernel
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
    stage,
    value_unit,
)

_COMBINE_ROWS = 32


class PreparedOperands:
    """Operands with everything that their blocks share: the plan, the whitening, the unit of the values."""

    def __init__(self, operands: Operands) -> None:
        self.operands = operands
        n_values = 0 if operands.values is None else operands.values.shape[1]
        # Full float32 precision takes three products of halves, any other precision one.
        passes = 3 if torch.get_float32_matmul_precision() == "highest" else 1
        self.plan = Plan(operands.query.shape[1], n_values, passes)
        self.whitening = Whitening(operands.components, operands.scale, operands.metric)
        self.unit = self._unit()
        self._zero = torch.zeros_like(self.unit)
        self.slots = slots_of(self.unit.device)

    def _unit(self) -> Float[Tensor, "padded"]:
        values = self.operands.values
        if values is None or self.plan.direct:
            return torch.ones(self.plan.v, dtype=torch.float32, device=self.operands.query.device)
        return value_unit(values, self.plan.v)

    def stage_values(
        self, values: Float[Tensor, "n v"], unit: Float[Tensor, "padded"], *, lift: bool
    ) -> Staged:
        plan = self.plan
        passes = 0 if plan.direct else plan.passes
        return stage(values, self._zero, unit, width=plan.v, passes=passes, lift=lift and not plan.direct)

    def stage_segment(self, columns: slice) -> Segment:
        operands = self.operands
        staged = self.whitening.stage(operands.components[columns], self.plan, operands.log_weights[columns])
        if operands.values is None:
            return staged, staged
        return staged, self.stage_values(operands.values[columns], self.unit, lift=False)


def forward(operands: Operands) -> Outputs:
    """Averages, logsumexps, the largest score of each point (in units of log 2) and its normalised weight."""
    query = operands.query
    n = query.shape[0]
    n_values = 0 if operands.values is None else operands.values.shape[1]
    averages = query.new_empty(n, n_values, dtype=torch.float32)
    lse, maxima, top_weights = (query.new_empty(n, dtype=torch.float32) for _ in range(3))
    if n == 0:
        return averages, lse, maxima, top_weights
    with on_device(query.device):
        prepared = PreparedOperands(operands)
        for rows in slices(n, prepared.plan.point_rows):
            points = prepared.whitening.stage(query[rows], prepared.plan)
            results = averages[rows], lse[rows], maxima[rows], top_weights[rows]
            launch("forward", prepared.plan, _forward, prepared, points, results)
    return averages, lse, maxima, top_weights


def _forward(config: Config, prepared: PreparedOperands, points: Staged, results: Outputs) -> None:
    plan, m = prepared.plan, prepared.operands.components.shape[0]
    programs = points.rows // config.block_m
    splits = choose_splits(programs, min(padded(m), plan.segment) // config.block_n, prepared.slots)
    tops, totals = (prepared.unit.new_empty(splits, points.rows) for _ in range(2))
    sums = prepared.unit.new_empty(splits, points.rows, plan.v)
    for columns in slices(m, plan.segment):
        segment = staged, values = prepared.stage_segment(columns)
        n_blocks = staged.rows // config.block_n
        sizes = points.rows, n_blocks, math.ceil(n_blocks / splits), int(columns.start > 0)
        state = sums, tops, totals
        if plan.direct:
            forward_direct[(programs, splits)](
                points.high, staged.high, staged.bias, values.high, *state, *sizes,
                **plan.constants, V=plan.v, **config.constants(plan),
            )  # fmt: skip
        else:
            forward_kernel[(programs, splits)](
                *halves(points, segment), prepared.unit, *state, *sizes,
                **plan.constants, **config.constants(plan),
            )  # fmt: skip
        del segment, staged, values  # before the next segment is staged: two of them take twice the memory
    averages, lse, maxima, top_weights = results
    combine_kernel[(points.rows // _COMBINE_ROWS,)](
        sums, tops, totals, points.bias, averages, lse, maxima, top_weights,
        lse.shape[0], points.rows, splits,
        N_VALUES=plan.n_values, V=plan.v, HAS_NORMS=not plan.direct, BLOCK_M=_COMBINE_ROWS,
    )  # fmt: skip
