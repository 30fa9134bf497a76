"""Devices and processes: Accelerate, and work that a CUDA device repeats as a graph."""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument
from kdmkit.training.fit_arguments import FitOptions

if TYPE_CHECKING:
    from accelerate import Accelerator

T = TypeVar("T")
Work = Callable[[Tensor], None]

# Held while the states that Accelerate shares between its objects are replaced.
_STATES = threading.Lock()
# Ordinary calls before a capture: they load libraries, compile kernels and make the optimizer's state.
_WARM_UPS = 2
# A process can make one capture at a time.
_CAPTURING = threading.Lock()


def make_accelerator(options: FitOptions) -> Accelerator:
    """An Accelerator for these options, independent of those of earlier fits in this process."""
    # Accelerate takes half a second to import: only a fit needs it.
    from accelerate import Accelerator, DistributedDataParallelKwargs
    from accelerate.state import AcceleratorState, PartialState

    cuda = torch.cuda.is_available()
    if options.device == "cuda" and not cuda:
        raise ValueError(bad_argument("device", "'cpu' or 'auto' where there is no CUDA device", "'cuda'"))
    # Without a CUDA device, `cpu=True` makes Accelerate join the other processes of a distributed run.
    cpu = options.device == "cpu" or not cuda
    if cpu and options.precision == "fp16":
        raise ValueError(bad_argument("precision", "'no' or 'bf16' on a CPU", "'fp16'"))
    # Accelerate keeps the first device and precision it was given for the life of a process. Every fit gets a
    # new state: fits in other threads keep theirs. In a distributed run the process group stays, and with it
    # the device.
    with _STATES:
        AcceleratorState._shared_state = {}
        if not torch.distributed.is_initialized():
            PartialState._shared_state = {}
        # Some phases leave parameters without a gradient: pretraining does not use the KDM layer.
        unused = DistributedDataParallelKwargs(find_unused_parameters=True)
        return Accelerator(cpu=cpu, mixed_precision=options.precision, kwargs_handlers=[unused])


def prepare(accelerator: Accelerator, part: T) -> T:
    """A module or an optimizer as Accelerate prepares it, which reads the shared states."""
    with _STATES:
        prepared: T = accelerator.prepare(part)
    return prepared


class Proxy(nn.Module):
    """Forwards to another module. Accelerate wraps and patches the proxy and leaves the module alone."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *rows: Any) -> Any:
        return self.module(*rows)


def broadcast_buffers(module: nn.Module) -> None:
    """Gives all processes the main process's buffers: running statistics differ between processes."""
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
        from accelerate.utils import broadcast_object_list

        broadcast_object_list(outcome)
    if isinstance(outcome[0], ValueError):
        raise outcome[0]
    result: T = outcome[0]
    return result


class Replayed:
    """Calls a function of one tensor; from the third call with a shape on, a graph of it is replayed.

    A step of a small model is a hundred operations, and their launches take longer than the work. The first
    calls are ordinary ones, so that nothing has to be undone. A function that cannot be captured, because it
    waits for the device, is always called, with a warning.

    Args:
        device: of all tensors.
        generators: from which the function draws, besides torch's global one.
    """

    def __init__(self, device: torch.device, generators: Sequence[torch.Generator] = ()) -> None:
        self.generators = tuple(generators)
        self.calls: Counter[torch.Size] = Counter()
        self.graphs: dict[torch.Size, tuple[Tensor, Callable[[], None]]] = {}
        self.failed = False
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self, work: Work, argument: Tensor) -> None:
        """Calls the function, the same one every time, or replays what it did.

        Args:
            work: reads and changes tensors in place. Its operations must not depend on numbers that Python
                reads or counts. It is not kept.
            argument: copied into the graph's tensor.
        """
        shape = argument.shape
        self.calls[shape] += 1
        if shape not in self.graphs and self.calls[shape] > _WARM_UPS and not self.failed:
            self._capture(work, argument)
        if shape not in self.graphs:
            self._call(work, argument)
            return
        given, replay = self.graphs[shape]
        given.copy_(argument)
        replay()

    def _call(self, work: Work, argument: Tensor) -> None:
        """An ordinary call, on the stream of the captures: workspaces and gradients belong to a stream."""
        if self.stream is None:
            work(argument)
            return
        current = torch.cuda.current_stream(argument.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            work(argument)
        current.wait_stream(self.stream)

    def _capture(self, work: Work, argument: Tensor) -> None:
        given = argument.clone()
        states = [(generator, generator.clone_state()) for generator in self._all_generators()]
        try:
            self.graphs[argument.shape] = given, self._captured(work, given)
        except RuntimeError as error:
            self.failed = True
            # A failed capture leaves generators in a state in which they draw nothing.
            for generator, state in states:
                generator.graphsafe_set_state(state)
            what = f"steps are not replayed as CUDA graphs and take longer: {error}"
            warnings.warn(what, RuntimeWarning, stacklevel=2)

    def _all_generators(self) -> list[torch.Generator]:
        if self.stream is None:
            return []
        return [*self.generators, torch.cuda.default_generators[self.stream.device.index]]

    def _captured(self, work: Work, given: Tensor) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)
        # Threads with other fits go on; only their captures wait.
        with _CAPTURING, torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
            work(given)
        return graph.replay


def can_replay(device: torch.device) -> bool:
    """Whether work on a device may be captured: on a CUDA device, in a single process."""
    distributed = torch.distributed
    several = distributed.is_available() and distributed.is_initialized()
    return device.type == "cuda" and not several
