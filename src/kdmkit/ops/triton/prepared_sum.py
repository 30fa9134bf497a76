"""Components that do not change, staged once for any number of calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.tensors import full_precision
from kdmkit.ops.terms import Result
from kdmkit.ops.triton.backend import LARGEST_V, as_kernel_error
from kdmkit.ops.triton.forward import (
    ComponentSource,
    ComponentValues,
    Numbers,
    StagedPart,
    components_plan,
    no_unit,
    passes,
    run,
    stage_components,
)
from kdmkit.ops.triton.staging import Plan, Staged, Whitening, on_device, slots_of
from kdmkit.ops.triton.staging_kernels import COPIES, GROUP

# Numbers of a staged array: offsets in kernels are 32-bit integers.
_LARGEST_PART = 1 << 30
# Components that are put in order together, which takes several times their memory.
SORTED_TOGETHER = 1 << 20


def bytes_per_component(d: int) -> int:
    """The memory of a prepared component: halves, biases, and in groups its number."""
    plan = components_plan(Plan(d, 0, 3))
    return 4 * (d if plan.direct else plan.width) + 4 * COPIES.value + 4 * plan.local


class PreparedSum:
    """`log_mix` and `attend` over components of a squared distance that are centred, scaled and split once.

    Sums have no gradients. The components themselves are not kept.

    Args:
        components, log_weights: of the sums.
        scale, metric: of the squared distance.
        sorted_together: components of a part, if they have few dimensions and are put in order.
    """

    def __init__(
        self,
        components: Float[Tensor, "m d"],
        log_weights: Float[Tensor, " m"],
        scale: Float[Tensor, "s t"],
        *,
        metric: bool,
        sorted_together: int = SORTED_TOGETHER,
    ) -> None:
        self._m, d = components.shape
        self._plan = components_plan(Plan(d, 0, 3))
        with _exactly(components.device):
            self._whitening = Whitening(components, scale, metric)
            step = sorted_together if self._plan.local else _LARGEST_PART // self._plan.width
            step = step // GROUP.value * GROUP.value
            parts = stage_components(components, log_weights, self._whitening, self._plan, step)
            self.parts = tuple(_with_short_numbers(part) for part in parts)

    @property
    def n_bytes(self) -> int:
        """The memory of the prepared components."""
        return sum(part.n_bytes for part in self.parts)

    def values(
        self, rows: Callable[[Numbers], Float[Tensor, "k v"]], n: int, *, most_bytes: float
    ) -> ComponentValues | None:
        """Values for `reduce`, None if they are too many.

        Args:
            rows: the values of some components, from their numbers.
            n: the number of values of a component.
            most_bytes: values that would take more memory are prepared in every call, some at a time.
        """
        plan = replace(self._plan, n_values=n)
        if not 1 <= n <= LARGEST_V or plan.few != self._plan.few:
            return None
        device = self._whitening.unit.device
        with _exactly(device):
            values = ComponentValues.of(rows, (self._m, n), plan, device)
            if 4 * plan.v * self._m > most_bytes:
                return values
            staged = (values.stage(part.numbers, replace(part.plan, n_values=n)) for part in self.parts)
            return replace(values, staged=tuple(staged))

    def reduce(self, query: Float[Tensor, "*lead d"], values: ComponentValues | None = None) -> Result:
        """Averages of the values (None without any) and logsumexps."""
        lead = query.shape[:-1]
        with _exactly(query.device):
            averages, lse, _, _ = run(self._source(values), query.reshape(-1, query.shape[-1]))
        return None if values is None else averages.reshape(*lead, -1), lse.reshape(lead)

    def _source(self, values: ComponentValues | None) -> ComponentSource:
        n_values = 0 if values is None else values.n
        plan = replace(self._plan, n_values=n_values, passes=3 if self._plan.few else passes())
        unit = no_unit(self._whitening.unit.device) if values is None else values.unit
        n_groups = max(part.components.rows for part in self.parts) // GROUP.value
        parts = partial(self._parts_with, values, plan)
        return ComponentSource(plan, self._whitening, unit, n_groups, parts)

    def _parts_with(
        self, values: ComponentValues | None, plan: Plan, points: int
    ) -> Iterator[tuple[StagedPart, Staged]]:
        are_many = points // GROUP.value > slots_of(self._whitening.unit.device)
        for index, part in enumerate(self.parts):
            part = replace(part, plan=replace(part.plan, n_values=plan.n_values, passes=plan.passes))
            if values is None:
                yield part, part.components
            elif values.staged is not None and not are_many:
                yield part, values.staged[index]
            else:
                # Points in several rounds read the components from the second-level cache.
                for place, piece in part.cut(part.plan.segment):
                    if values.staged is not None:
                        yield piece, values.staged[index].cut(place)
                    else:
                        yield piece, values.stage(piece.numbers, part.plan)


def _with_short_numbers(part: StagedPart) -> StagedPart:
    """Numbers of components in half the memory."""
    return replace(part, numbers=part.numbers.int()) if isinstance(part.numbers, Tensor) else part


@contextmanager
def _exactly(device: torch.device) -> Iterator[None]:
    """The block runs in float32 and without gradients, on a device; errors of Triton are kernel errors."""
    with full_precision(device.type), torch.no_grad(), as_kernel_error(), on_device(device):
        yield
