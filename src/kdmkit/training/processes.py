"""Devices and processes, by way of Accelerate."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import broadcast_object_list
from torch import nn

from kdmkit._core.checks import bad_argument
from kdmkit.training.options import FitOptions

T = TypeVar("T")
# Held while the states that Accelerate shares between its objects are replaced.
_STATES = threading.Lock()


class Proxy(nn.Module):
    """Forwards to another module. Accelerate wraps and patches the proxy and leaves the module alone."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *rows: Any) -> Any:
        return self.module(*rows)


def make_accelerator(options: FitOptions) -> Accelerator:
    """An Accelerator for these options, independent of those of earlier fits in this process."""
    cuda = torch.cuda.is_available()
    if options.device == "cuda" and not cuda:
        raise ValueError(bad_argument("device", "'cpu' or 'auto' where there is no CUDA device", "'cuda'"))
    # Without a CUDA device, `cpu=True` makes Accelerate join the other processes of a distributed run.
    cpu = options.device == "cpu" or not cuda
    if cpu and options.precision == "fp16":
        raise ValueError(bad_argument("precision", "'no' or 'bf16' on a CPU", "'fp16'"))
    # Accelerate keeps the first device and precision it was given for the life of a process. Every fit gets a
    # state of its own: fits in other threads keep theirs. In a distributed run the process group stays, and
    # with it the device.
    with _STATES:
        AcceleratorState._shared_state = {}
        if not torch.distributed.is_initialized():
            PartialState._shared_state = {}
        # Some phases leave parameters without a gradient: pretraining does not use the KDM layer.
        unused = DistributedDataParallelKwargs(find_unused_parameters=True)
        return Accelerator(cpu=cpu, mixed_precision=options.precision, kwargs_handlers=[unused])


def prepare(accelerator: Accelerator, part: T) -> T:
    """What Accelerate makes of a module or an optimizer; it may look at its shared states meanwhile."""
    with _STATES:
        prepared: T = accelerator.prepare(part)
    return prepared


def broadcast_buffers(module: nn.Module, accelerator: Accelerator) -> None:
    """Gives all processes the main process's buffers: running statistics differ between processes."""
    if accelerator.num_processes > 1:
        for buffer in module.buffers():
            torch.distributed.broadcast(buffer, src=0)


def call_on_main_process(accelerator: Accelerator, function: Callable[[], T]) -> T:
    """Calls a function on the main process and gives its result, or its ValueError, to all processes.

    Only the main process may see the files of a fit: the others may run on other machines.
    """
    outcome: list[Any] = [None]
    if accelerator.is_main_process:
        try:
            outcome = [function()]
        except ValueError as error:
            outcome = [error]
    if accelerator.num_processes > 1:
        broadcast_object_list(outcome)
    if isinstance(outcome[0], ValueError):
        raise outcome[0]
    result: T = outcome[0]
    return result
