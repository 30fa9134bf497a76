"""Components that are staged once, for any number of calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit.ops.triton.forward import passes, run
from kdmkit.ops.triton.kernels import COPIES, GROUP
from kdmkit.ops.triton.parts import Components, Part, Values, components_plan
from kdmkit.ops.triton.staging import Plan, Staged, Whitening, on_device, slots_of

# Numbers of a staged array: offsets in kernels are 32-bit integers.
_LARGEST_PART = 1 << 30
# Components that are staged together: putting them in order takes several times their memory.
_TOGETHER = 1 << 20


@dataclass(frozen=True)
class StagedValues:
    """Values beside the parts of a memory; `staged` is None where they are staged in every call."""

    values: Values
    unit: Float[Tensor, "padded"]
    staged: tuple[Staged, ...] | None

    @property
    def n_bytes(self) -> int:
        return sum(part.n_bytes for part in self.staged or ())


def bytes_per_component(d: int) -> int:
    """What a memory keeps of a component: halves, biases, and in groups its number."""
    plan = components_plan(Plan(d, 0, 3))
    return 4 * (d if plan.direct else plan.width) + 4 * COPIES.value + 4 * plan.local


class Memory:
    """Components and log-weights, centred, scaled and split once.

    Args:
        components, log_weights: as they are; they are not kept.
        scale, metric: of the squared distance.
    """

    def __init__(
        self,
        components: Float[Tensor, "m d"],
        log_weights: Float[Tensor, " m"],
        scale: Float[Tensor, "s t"],
        *,
        metric: bool,
    ) -> None:
        with on_device(components.device):
            self.plan = components_plan(Plan(components.shape[1], 0, 3))
            self.whitening = Whitening(components, scale, metric)
            source = Components(components, log_weights, self.whitening)
            step = _TOGETHER if self.plan.local else _LARGEST_PART // self.plan.width
            parts = source.parts(self.plan, step // GROUP.value * GROUP.value)
            self.parts = tuple(part.with_short_numbers() for part in parts)

    @property
    def n_bytes(self) -> int:
        return sum(part.n_bytes for part in self.parts)

    def stage_values(self, values: Values, *, most_bytes: float) -> StagedValues | None:
        """Values for `reduce`, None where they are too many for these parts.

        They are staged in every call where staged ones would exceed `most_bytes`.
        """
        plan = replace(self.plan, n_values=values.n)
        if plan.few != self.plan.few:
            return None
        with on_device(self.whitening.unit.device):
            unit = values.unit(plan, self.whitening.unit)
            if 4 * plan.v * values.count > most_bytes:
                return StagedValues(values, unit, None)
            plans = (replace(part.plan, n_values=values.n) for part in self.parts)
            staged = tuple(
                values.stage(part.rows, unit, plan) for part, plan in zip(self.parts, plans, strict=True)
            )
        return StagedValues(values, unit, staged)

    def reduce(
        self, query: Float[Tensor, "n d"], values: StagedValues | None = None
    ) -> tuple[Float[Tensor, "n v"], Float[Tensor, " n"]]:
        """Averages of the values, and logsumexps."""
        with on_device(query.device):
            averages, lse, _, _ = run(_Call(self, values), query)
        return averages, lse


class _Call:
    """The parts of a memory with some values: a `Source`."""

    def __init__(self, memory: Memory, values: StagedValues | None) -> None:
        self._memory, self._values = memory, values
        self.whitening = memory.whitening
        n_values = 0 if values is None else values.values.n
        few = memory.plan.few
        self.plan = replace(memory.plan, n_values=n_values, passes=3 if few else passes())
        empty = torch.ones(0, dtype=torch.float32, device=memory.whitening.unit.device)
        self.unit = empty if values is None else values.unit
        self.n_groups = max(part.components.rows for part in memory.parts) // GROUP.value

    def parts(self, points: int) -> Iterator[tuple[Part, Staged]]:
        many = points // GROUP.value > slots_of(self.unit.device)
        for index, whole in enumerate(self._memory.parts):
            plan = replace(whole.plan, n_values=self.plan.n_values, passes=self.plan.passes)
            whole = replace(whole, plan=plan)
            values = self._values
            if values is None:
                yield whole, whole.components
            elif values.staged is not None and not many:
                yield whole, values.staged[index]
            else:
                # Points in several rounds read the components from the second-level cache.
                for place, part in whole.cut(plan.segment):
                    if values.staged is not None:
                        yield part, values.staged[index].cut(place)
                    else:
                        yield part, values.values.stage(part.rows, values.unit, plan)
