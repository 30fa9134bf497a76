"""Operands of the Triton kernels (whitening, staging in half precision), block sizes and launches."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
import triton
from jaxtyping import Bool, Float
from torch import Tensor
from triton.runtime.errors import OutOfResources

from kdmkit.ops.terms import robust_centre
from kdmkit.ops.triton.backend import KernelError
from kdmkit.ops.triton.staging_kernels import COPIES, GROUP, LOG2E, stage_kernel

# Bytes of components that are staged at a time: few enough for the second-level cache of a GPU.
SEGMENT_BYTES = 24 << 20
# Bytes of points that are staged at a time; more points take several calls.
POINT_BYTES = 64 << 20
# Up to this many dimensions differences are cheap. Products about one centre lose digits if points lie close
# together but many bandwidths from it, which is common in few dimensions.
DIRECT_DIMENSIONS = 16
DIRECT_VALUES = 16
# Dimensions that shared memory holds at once.
_WHOLE_DIMENSIONS = 128
_CHUNK = 64


@dataclass(frozen=True)
class Plan:
    """The sizes and the precision that kernels are compiled for.

    `local`: few dimensions, products about local centres in place of differences.
    """

    d: int
    n_values: int
    passes: int
    local: bool = False

    @property
    def few(self) -> bool:
        """Whether products about one centre would lose digits."""
        return self.d <= DIRECT_DIMENSIONS and self.n_values <= DIRECT_VALUES

    @property
    def direct(self) -> bool:
        return self.few and not self.local

    @property
    def width(self) -> int:
        """Dimensions, padded."""
        if self.d > _WHOLE_DIMENSIONS:
            return _CHUNK * math.ceil(self.d / _CHUNK)
        return max(1 if self.direct else 16, triton.next_power_of_2(self.d))

    @property
    def v(self) -> int:
        """Values, padded; 0 without any."""
        return max(1 if self.direct else 16, triton.next_power_of_2(self.n_values)) if self.n_values else 0

    @property
    def block_d(self) -> int:
        return self.width if self.width <= _WHOLE_DIMENSIONS else _CHUNK

    @property
    def block_out(self) -> int:
        """Dimensions of a gradient per program: as many as registers hold, since each computes all scores."""
        if self.direct:
            return self.width
        return next(size for size in (128 if self.v <= 64 else 64, 64, 32, 16) if self.width % size == 0)

    @property
    def constants(self) -> dict[str, Any]:
        if self.direct:
            return {"D": self.d, "N_VALUES": self.n_values}
        if self.local:
            return {"D": self.d, "V": self.v, "WIDTH": self.width, "PASSES": self.passes}
        return {"V": self.v, "WIDTH": self.width, "PASSES": self.passes, "BLOCK_D": self.block_d}

    @property
    def segment(self) -> int:
        """Components staged at a time: whole groups."""
        halves = 2 if self.passes == 3 else 1
        row = 4 * (self.d + self.n_values) if self.direct else 2 * halves * (self.width + self.v)
        return max(1, SEGMENT_BYTES // (row + 4 * COPIES.value) // GROUP.value) * GROUP.value

    @property
    def point_rows(self) -> int:
        """Points staged at a time: whole groups."""
        return max(1, POINT_BYTES // (4 * (self.width + self.v)) // GROUP.value) * GROUP.value


def padded(n: int) -> int:
    return math.ceil(n / GROUP.value) * GROUP.value


@dataclass(frozen=True)
class Staged:
    """Padded rows, split into halves: see `staging_kernels`. Fields that are not used hold any tensor."""

    rows: int
    high: Tensor
    low: Tensor
    bias: Tensor
    exponents: Tensor
    centres: Tensor | None = None

    @property
    def _tensors(self) -> list[Tensor]:
        centres = [] if self.centres is None else [self.centres]
        return [self.high, self.low, self.bias, self.exponents, *centres]

    @property
    def n_bytes(self) -> int:
        # A tensor may fill several fields.
        return sum({x.data_ptr(): x.numel() * x.element_size() for x in self._tensors}.values())

    def cut(self, place: slice) -> Staged:
        """Some of the rows, whole groups, without a copy."""
        groups = slice(place.start // GROUP.value, place.stop // GROUP.value)
        return self._by_group(place.stop - place.start, groups)

    def chosen(self, groups: Bool[Tensor, " g"]) -> Staged:
        """A copy of the chosen groups."""
        return self._by_group(int(groups.sum()) * GROUP.value, groups)

    def _by_group(self, rows: int, groups: slice | Tensor) -> Staged:
        n = self.rows // GROUP.value
        kept = (x.view(n, -1)[groups].reshape(-1, *x.shape[1:]) for x in self._tensors)
        return Staged(rows, *kept)


#: The staged components of a segment, and their values.
Segment = tuple[Staged, Staged]


def halves(points: Staged, segment: Segment) -> tuple[Tensor, ...]:
    """The operands in half precision, in the order of the kernels' arguments."""
    components, values = segment
    return (
        *(points.high, points.low, points.exponents),
        *(components.high, components.low, components.exponents, components.bias),
        *(values.high, values.low),
    )


def stage(
    x: Float[Tensor, "n k"],
    centre: Float[Tensor, "padded"],
    unit: Float[Tensor, "padded"],
    *,
    width: int,
    passes: int,
    lift: bool = True,
    offset: Float[Tensor, "n"] | None = None,
) -> Staged:
    """Stages unit ∘ (x − centre); `passes` = 0 keeps float32."""
    n, d = x.shape
    rows = padded(n)
    kept = x.new_empty(
        rows, d if passes == 0 else width, dtype=torch.float32 if passes == 0 else torch.float16
    )
    low = torch.empty_like(kept) if passes == 3 else kept
    bias = kept
    if offset is not None or lift:
        bias = x.new_empty(rows * (1 if offset is None else COPIES.value), dtype=torch.float32)
    exponents = x.new_empty(rows // GROUP.value, dtype=torch.int32)
    stage_kernel[(rows // GROUP.value,)](
        x, centre, unit, centre if offset is None else offset.contiguous(), kept, low, bias, exponents,
        n, x.stride(0), x.stride(1),
        D=d, WIDTH=width, BLOCK_D=min(width, 64), PASSES=passes, LIFT=lift, HAS_OFFSET=offset is not None,
        num_warps=8,
    )  # fmt: skip
    return Staged(rows, kept, low, bias, exponents)


class Whitening:
    """y = s ∘ (x − centre), or L(x − centre) with a metric: scores are −‖y − z‖²."""

    def __init__(self, components: Float[Tensor, "m d"], scale: Float[Tensor, "s t"], metric: bool) -> None:
        self.centre = robust_centre(components).reshape(-1).float()
        self.scale, self.metric = scale.detach().float(), metric
        # Shift and unit of the staging kernel; a metric is applied before staging.
        self._shift = torch.zeros_like(self.centre) if metric else self.centre
        unit = torch.ones_like(self.centre) if metric else self.scale.expand(1, -1).reshape(-1)
        self.unit = unit.expand_as(self.centre).contiguous()

    def centred(self, x: Tensor) -> Tensor:
        return x.float() - self.centre

    def apply(self, centred: Tensor) -> Tensor:
        return torch.matmul(centred, self.scale.mT) if self.metric else centred * self.scale

    def transposed(self, raw: Tensor) -> Tensor:
        return torch.matmul(raw, self.scale) if self.metric else raw * self.scale

    def scale_gradient(self, raw: Tensor, centred: Tensor) -> Tensor:
        """The gradient of Σ raw·apply(centred) by the scale."""
        if self.metric:
            return torch.matmul(raw.mT, centred)
        return (raw * centred).sum(0, keepdim=True).sum_to_size(self.scale.shape)

    @functools.cached_property
    def direct_unit(self) -> Float[Tensor, ""]:
        """The unit in which points are staged for differences, in bandwidths: between 1/2 and 2.

        If all dimensions share a bandwidth, points are multiplied by a power of two alone. That is exact: no
        digits are lost, however far from the centre the points are.
        """
        return self.scale.reshape(()) / self._power if self._is_exact else torch.ones_like(self.centre[0])

    @property
    def direct_factor(self) -> Float[Tensor, ""]:
        """The factor of squared distances in `direct_unit`, in units of log 2."""
        return self.direct_unit.square() * LOG2E.value

    @property
    def _is_exact(self) -> bool:
        return not self.metric and self.scale.numel() == 1

    @functools.cached_property
    def _power(self) -> Float[Tensor, ""]:
        """A power of two near the scale."""
        exponent = torch.frexp(self.scale.reshape(())).exponent
        return torch.ldexp(torch.ones_like(self.centre[0]), exponent)

    def before_unit(self, x: Tensor) -> Tensor:
        """x if the whitening is s ∘ (x − any centre); with a metric L(x − centre), in units of 1."""
        return self.apply(self.centred(x)) if self.metric else x

    def stage(self, x: Tensor, plan: Plan, offset: Tensor | None = None) -> Staged:
        if self.metric:
            x = self.apply(self.centred(x))
        shift, unit = self._shift, self.unit
        if plan.direct and self._is_exact:
            shift, unit = torch.zeros_like(shift), self._power.expand_as(unit).contiguous()
        return stage(
            x,
            shift,
            unit,
            width=plan.width,
            passes=0 if plan.direct else plan.passes,
            lift=not plan.direct,
            offset=offset,
        )


def value_unit(largest: Float[Tensor, "v"], width: int) -> Float[Tensor, "width"]:
    """A power of two per column that brings values of at most `largest` into the range of half precision."""
    exponent = torch.frexp(largest.float()).exponent.clamp(-100, 100)
    unit = torch.ones(width, dtype=torch.float32, device=largest.device)
    unit[: len(largest)] = torch.ldexp(unit[: len(largest)], 15 - exponent)
    return unit


@dataclass(frozen=True)
class Config:
    """Block sizes: points, components; warps per program, depth of the pipeline, registers per thread."""

    block_m: int
    block_n: int
    warps: int
    stages: int
    registers: int | None = None

    def constants(self, plan: Plan) -> dict[str, Any]:
        blocks = {"BLOCK_M": self.block_m, "BLOCK_N": self.block_n, "num_warps": self.warps}
        if self.registers is not None:
            blocks["maxnreg"] = self.registers
        if plan.direct:
            return blocks
        return {**blocks, "STAGES": self.stages, "WARPS": self.warps, "num_stages": self.stages}


KernelName = Literal["forward", "points", "components"]
# Configurations that replace those of `configs`, for tuning and for tests.
OVERRIDES: dict[KernelName, Config] = {}
_SMALL = Config(64, 32, 4, 2), Config(32, 32, 4, 1)


def configs(kernel: KernelName, plan: Plan) -> tuple[Config, ...]:
    """Configurations to try, the fastest first: later ones need less shared memory."""
    if kernel in OVERRIDES:
        return (OVERRIDES[kernel],)
    if plan.direct:
        other = 16 if plan.n_values else 32
        return (Config(other, 128, 4, 1) if kernel == "components" else Config(128, other, 4, 1),)
    if plan.local:
        return Config(64, 64, 4, 3) if plan.v else Config(64, 128, 4, 2), Config(64, 64, 4, 1)
    many_values = plan.v > 32
    if kernel == "forward":
        if many_values:
            return Config(128, 32, 8, 2), *_SMALL
        return Config(128, 64, 4, 3) if plan.width <= 64 else Config(128, 64, 8, 2), *_SMALL
    if kernel == "points":
        crowded = many_values or (plan.width > _WHOLE_DIMENSIONS and plan.passes == 3)
        return Config(64, 32, 4, 2) if crowded else Config(128, 64, 8, 2), *_SMALL
    if many_values:
        return Config(16, 64, 4, 2), *_SMALL
    return Config(64, 128, 8, 2) if plan.width <= 64 else Config(32, 128, 8, 2), *_SMALL


# Position in `configs` of the configuration that fitted the device.
_WORKING: dict[tuple[KernelName, Plan], int] = {}


def launch(kernel: KernelName, plan: Plan, start: Callable[..., None], *arguments: Any) -> None:
    """`start(configuration, *arguments)` with the first configuration that the device has room for."""
    candidates = configs(kernel, plan)
    for index in range(min(_WORKING.get((kernel, plan), 0), len(candidates) - 1), len(candidates)):
        try:
            start(candidates[index], *arguments)
        except OutOfResources as error:
            reason = error
        else:
            _WORKING[kernel, plan] = index
            return
    raise KernelError(f"no configuration of the {kernel} kernel fits this device ({reason})") from reason


@functools.lru_cache(maxsize=1024)
def choose_splits(programs: int, blocks: int, slots: int) -> int:
    """Into how many parts to split the `blocks` blocks of work of each of `programs` programs.

    `slots` run at a time. A round takes as long as a program's blocks and about two more, to start and end.
    """
    return min(
        range(1, min(blocks, 64) + 1),
        key=lambda s: math.ceil(programs * s / slots) * (math.ceil(blocks / s) + 2) + 0.01 * s,
    )


@functools.lru_cache(maxsize=64)
def slots_of(device: torch.device) -> int:
    """Programs that run at the same time: two on each multiprocessor."""
    return 2 * torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Makes the tensors' device the current one, on which Triton launches."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
