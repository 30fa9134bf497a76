"""What the blocks of a reduction share, and components staged part by part for the forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit.ops.blocks import block_order, slices
from kdmkit.ops.triton.kernels import COPIES, GROUP
from kdmkit.ops.triton.local_kernels import stage_local
from kdmkit.ops.triton.staging import Plan, Staged, Whitening, padded, stage, value_unit

# Groups of components whose largest ‖z‖² is at most this are multiplied about their centre: errors of scores
# are a few 2^-24 of it. Others are compared by differences.
LARGEST_SQUARED_RADIUS = 80.0
# With fewer dimensions, plus twice the number of values, differences cost no more than products.
LEAST_LOCAL_SIZE = 8

#: Numbers of components.
Rows = slice | Int[Tensor, " k"]


@dataclass(frozen=True)
class Part:
    """Some staged components, their numbers, and the plan of the kernel that takes them."""

    plan: Plan
    components: Staged
    rows: Rows

    @property
    def n_bytes(self) -> int:
        numbers = self.rows.numel() * self.rows.element_size() if isinstance(self.rows, Tensor) else 0
        return self.components.n_bytes + numbers

    def with_short_numbers(self) -> Part:
        """Numbers of components in half the memory."""
        return replace(self, rows=self.rows.int()) if isinstance(self.rows, Tensor) else self

    def cut(self, step: int) -> Iterator[tuple[slice, Part]]:
        """Parts of at most `step` components (whole groups), and where they lie in this one."""
        for place in slices(self.components.rows, step):
            rows = self.rows[place] if isinstance(self.rows, Tensor) else _inside(self.rows, place)
            yield place, replace(self, components=self.components.cut(place), rows=rows)


def _inside(rows: slice, place: slice) -> slice:
    return slice(rows.start + place.start, min(rows.start + place.stop, rows.stop))


@dataclass(frozen=True)
class Values:
    """Values of all components, by their numbers: a tensor, or what computes some of its rows.

    Args:
        n: the number of values of a component.
        of: the values of some components.
        count: the number of components.
    """

    n: int
    of: Callable[[Rows], Float[Tensor, "k v"]]
    count: int

    @classmethod
    def tensor(cls, values: Float[Tensor, "m v"]) -> Values:
        return cls(values.shape[1], values.__getitem__, len(values))

    def unit(self, plan: Plan, like: Tensor) -> Float[Tensor, "padded"]:
        """A power of two per column that brings its values into the range of half precision."""
        if plan.direct or not self.n:
            return torch.ones(plan.v, dtype=torch.float32, device=like.device)
        largest = [
            torch.linalg.vector_norm(self.of(rows).detach(), torch.inf, dim=0)
            for rows in slices(self.count, max(GROUP.value, (1 << 24) // self.n))
        ]
        return value_unit(torch.stack(largest).amax(0), plan.v)

    def stage(self, rows: Rows, unit: Float[Tensor, "padded"], plan: Plan) -> Staged:
        return stage_values(self.of(rows), torch.ones_like(unit) if plan.direct else unit, plan, lift=False)


def stage_values(
    values: Float[Tensor, "n v"], unit: Float[Tensor, "padded"], plan: Plan, *, lift: bool
) -> Staged:
    passes, lift = (0, False) if plan.direct else (plan.passes, lift)
    return stage(values, torch.zeros_like(unit), unit, width=plan.v, passes=passes, lift=lift)


def components_plan(plan: Plan) -> Plan:
    """The plan with local centres, where dimensions are few."""
    if plan.few and plan.d + 2 * plan.n_values >= LEAST_LOCAL_SIZE:
        # Differences are exact to float32, whatever the precision of products.
        return replace(plan, passes=3, local=True)
    return plan


@dataclass(frozen=True)
class Components:
    """Components and log-weights that are staged with a whitening."""

    points: Float[Tensor, "m d"]
    log_weights: Float[Tensor, " m"]
    whitening: Whitening

    def stage(self, rows: Rows, plan: Plan) -> Staged:
        return self.whitening.stage(self.points[rows], plan, self.log_weights[rows])

    def parts(self, plan: Plan, step: int) -> Iterator[Part]:
        """All of them, at most `step` at a time."""
        for rows in slices(len(self.points), step):
            if plan.local:
                yield from self._local(rows, plan)
            else:
                yield Part(plan, self.stage(rows, plan), rows)

    def _local(self, rows: slice, plan: Plan) -> Iterator[Part]:
        """Groups of some components: the compact ones about their centres, the others for differences."""
        points = self.whitening.before_unit(self.points[rows].detach())
        order = block_order(points * self.whitening.unit, GROUP.value)
        staged, compact = stage_about_centres(
            points, order, self.whitening.unit, self.log_weights[rows], plan
        )
        n_compact = int(compact.sum())
        order = order + rows.start
        if n_compact == len(compact):
            yield Part(plan, staged, order)
            return
        chosen = compact.repeat_interleave(GROUP.value)[: len(order)]
        if n_compact:
            yield Part(plan, staged.chosen(compact), order[chosen])
        del staged
        others, differences = order[~chosen], replace(plan, local=False)
        yield Part(differences, self.stage(others, differences), others)


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
