"""Devices and processes, by way of Accelerate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.state import AcceleratorState
from accelerate.utils import broadcast_object_list
from torch import nn

from kdmkit._core.checks import bad_argument
from kdmkit.training.options import FitOptions

T = TypeVar("T")


class Shell(nn.Module):
    """What Accelerate may wrap and patch, so that the module inside stays as it was."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, *rows: Any) -> Any:
        return self.inside(*rows)


def make_accelerator(options: FitOptions) -> Accelerator:
    """An Accelerator for these options, whatever an earlier fit asked for."""
    cuda = torch.cuda.is_available()
    if options.device == "cuda" and not cuda:
        raise ValueError(bad_argument("device", "'cpu' or 'auto' where there is no CUDA device", "'cuda'"))
    # Without a CUDA device Accelerate has to be told, or it would not join the processes of a launch.
    cpu = options.device == "cpu" or not cuda
    if cpu and options.precision == "fp16":
        raise ValueError(bad_argument("precision", "'no' or 'bf16' on a CPU", "'fp16'"))
    # Accelerate keeps the first device and precision it was given for the life of a process. Several
    # processes keep their group, and with it their device.
    AcceleratorState._reset_state(reset_partial_state=not torch.distributed.is_initialized())
    # Pre-training, say, leaves parameters without a gradient.
    unused = DistributedDataParallelKwargs(find_unused_parameters=True)
    return Accelerator(cpu=cpu, mixed_precision=options.precision, kwargs_handlers=[unused])


def share_buffers(module: nn.Module, accelerator: Accelerator) -> None:
    """The main process's buffers for all: running statistics come out differently on every one."""
    if accelerator.num_processes > 1:
        for buffer in module.buffers():
            torch.distributed.broadcast(buffer, src=0)


def on_main(accelerator: Accelerator, function: Callable[[], T]) -> T:
    """A result of the main process for all: other machines may not see its files. So with a ValueError."""
    outcome: list[Any] = [None]
    if accelerator.is_main_process:
        try:
            outcome = [function()]
        except ValueError as error:
            outcome = [error]
    broadcast_object_list(outcome)
    if isinstance(outcome[0], ValueError):
        raise outcome[0]
    result: T = outcome[0]
    return result
