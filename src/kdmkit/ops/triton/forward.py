"""The forward pass of the Triton backend: prepares operands and launches the kernels.

Components are staged one segment at a time, so that extra memory does not grow with their number. Sums
continue from segment to segment.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from kdmkit.ops.blocks import slices
from kdmkit.ops.triton.backend import Operands, Outputs
from kdmkit.ops.triton.direct_kernels import forward_direct
from kdmkit.ops.triton.forward_kernels import combine_kernel, forward_kernel
from kdmkit.ops.triton.kernels import GROUP
from kdmkit.ops.triton.local_kernels import forward_local
from kdmkit.ops.triton.parts import LEAST_LOCAL_POINTS, Part, PreparedOperands
from kdmkit.ops.triton.staging import Config, Plan, Staged, choose_splits, halves, launch, on_device, padded

_COMBINE_ROWS = 32


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
        prepared = PreparedOperands(operands, local=n >= LEAST_LOCAL_POINTS)
        for rows in slices(n, prepared.plan.point_rows):
            points = _Points(prepared, query[rows])
            for part in prepared.parts():
                points.add(part)
            points.finish((averages[rows], lse[rows], maxima[rows], top_weights[rows]))
    return averages, lse, maxima, top_weights


class _Points:
    """Some points, and the state of their sums: it continues from part to part."""

    def __init__(self, prepared: PreparedOperands, query: Tensor) -> None:
        self.prepared, self.query = prepared, query
        plan, m = prepared.plan, prepared.operands.components.shape[0]
        self.rows, new = padded(len(query)), prepared.unit.new_empty
        blocks = min(padded(m), plan.segment) // (GROUP.value // 2)
        splits = choose_splits(self.rows // GROUP.value, blocks, prepared.slots)
        self.state = new(splits, self.rows, plan.v), new(splits, self.rows), new(splits, self.rows)
        self.resume = 0
        self._staged: dict[bool, Staged] = {}

    def staged(self, plan: Plan) -> Staged:
        """The points as differences or as products about the common centre take them."""
        if plan.direct not in self._staged:
            self._staged[plan.direct] = self.prepared.whitening.stage(self.query, plan)
        return self._staged[plan.direct]

    def add(self, part: Part) -> None:
        launch("forward", part.plan, partial(self._add, part))
        self.resume = 1

    def _add(self, part: Part, config: Config) -> None:
        plan, prepared = part.plan, self.prepared
        splits = len(self.state[1])
        step = GROUP.value if plan.local else config.block_n
        n_blocks = part.components.rows // step
        grid = self.rows // config.block_m, splits
        sizes = self.rows, n_blocks, math.ceil(n_blocks / splits), self.resume
        constants = {**plan.constants, **config.constants(plan)}
        if plan.local:
            self._add_local(part, grid, sizes, constants)
        elif plan.direct:
            forward_direct[grid](
                self.staged(plan).high, part.components.high, part.components.bias, part.values.high,
                *self.state, *sizes, **constants, V=prepared.plan.v,
            )  # fmt: skip
        else:
            operands = halves(self.staged(plan), (part.components, part.values))
            forward_kernel[grid](*operands, prepared.unit, *self.state, *sizes, **constants)

    def _add_local(
        self, part: Part, grid: tuple[int, int], sizes: tuple[int, ...], constants: dict[str, object]
    ) -> None:
        whitening, components, values = self.prepared.whitening, part.components, part.values
        points = whitening.before_unit(self.query).contiguous()
        forward_local[grid](
            points, whitening.unit, components.high, components.low, components.exponents, components.bias,
            components.centres, values.high, values.low, self.prepared.unit, *self.state,
            len(points), *sizes, points.stride(0), **constants,
        )  # fmt: skip

    def finish(self, results: Outputs) -> None:
        """Merges the splits."""
        plan = self.prepared.plan
        averages, lse, maxima, top_weights = results
        norms = not (plan.direct or plan.local)
        combine_kernel[(self.rows // _COMBINE_ROWS,)](
            *self.state, self.staged(plan).bias if norms else lse, averages, lse, maxima, top_weights,
            len(lse), self.rows, len(self.state[1]),
            N_VALUES=plan.n_values, V=plan.v, HAS_NORMS=norms, BLOCK_M=_COMBINE_ROWS,
        )  # fmt: skip
