"""Operands of a reduction with everything that their blocks share, and components staged part by part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit.ops.block_order import block_order
from kdmkit.ops.blocks import slices
from kdmkit.ops.triton.backend import Operands
from kdmkit.ops.triton.kernels import COPIES, GROUP
from kdmkit.ops.triton.local_kernels import stage_local
from kdmkit.ops.triton.staging import (
    Plan,
    Segment,
    Staged,
    Whitening,
    padded,
    slots_of,
    stage,
    value_unit,
)

# Groups of components whose largest ‖z‖² is at most this are multiplied about their centre; errors of scores are
# a few 2^-24 of it. Others are compared by differences.
LARGEST_SQUARED_RADIUS = 80.0
# In fewer dimensions differences cost no more than products.
LEAST_LOCAL_DIMENSIONS = 5
# With fewer points, putting components in order would take longer than it saves.
LEAST_LOCAL_POINTS = 8192


@dataclass(frozen=True)
class Part:
    """Some staged components and their values, and the plan of the kernel that takes them."""

    plan: Plan
    components: Staged
    values: Staged


class PreparedOperands:
    """Operands with everything that their blocks share: the plan, the whitening, the unit of the values.

    Args:
        local: whether to use local centres, where the plan allows that.
    """

    def __init__(self, operands: Operands, *, local: bool = False) -> None:
        self.operands = operands
        n_values = 0 if operands.values is None else operands.values.shape[1]
        # Full float32 precision takes three products of halves, any other precision one.
        passes = 3 if torch.get_float32_matmul_precision() == "highest" else 1
        self.plan = Plan(operands.query.shape[1], n_values, passes)
        if local and self.plan.few and self.plan.d >= LEAST_LOCAL_DIMENSIONS:
            # Differences are exact to float32, whatever the precision of products.
            self.plan = replace(self.plan, passes=3, local=True)
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

    def parts(self) -> Iterator[Part]:
        """All components, a segment at a time."""
        for columns in slices(self.operands.components.shape[0], self.plan.segment):
            if self.plan.local:
                yield from self._local_parts(columns)
            else:
                yield Part(self.plan, *self.stage_segment(columns))

    def _local_parts(self, columns: slice) -> Iterator[Part]:
        """The groups of a segment: the compact ones about their centres, the others for differences."""
        operands, whitening = self.operands, self.whitening
        components = whitening.before_unit(operands.components[columns].detach())
        order = block_order(components * whitening.unit, GROUP.value)
        staged, compact = stage_about_centres(
            components, order, whitening.unit, operands.log_weights[columns], self.plan
        )
        n_compact = int(compact.sum())
        if n_compact:
            staged = staged if n_compact == len(compact) else _chosen(staged, compact)
            rows = order if n_compact == len(compact) else order[_rows(compact, len(order))]
            values = staged
            if operands.values is not None:
                values = self.stage_values(operands.values[columns][rows], self.unit, lift=False)
            yield Part(self.plan, staged, values)
            del values
        del staged
        if n_compact < len(compact):
            rows = order[_rows(~compact, len(order))] + columns.start
            yield self._direct_part(rows)

    def _direct_part(self, rows: Int[Tensor, " k"]) -> Part:
        operands, plan = self.operands, replace(self.plan, local=False)
        staged = self.whitening.stage(operands.components[rows], plan, operands.log_weights[rows])
        values = staged
        if operands.values is not None:
            ones = torch.ones_like(self.unit)
            values = stage(
                operands.values[rows], self._zero, ones, width=plan.v, passes=0, lift=False
            )
        return Part(plan, staged, values)


def stage_about_centres(
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


def _rows(groups: Tensor, m: int) -> Tensor:
    """Which of m rows belong to the chosen groups."""
    return groups.repeat_interleave(GROUP.value)[:m]


def _chosen(staged: Staged, groups: Tensor) -> Staged:
    """The chosen groups alone."""

    def chosen(tensor: Tensor) -> Tensor:
        return tensor.view(len(groups), -1)[groups].view(-1, *tensor.shape[1:])

    assert staged.centres is not None
    return Staged(
        int(groups.sum()) * GROUP.value,
        *(chosen(x) for x in (staged.high, staged.low, staged.bias, staged.exponents, staged.centres)),
    )
