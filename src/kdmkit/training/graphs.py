"""Work that a CUDA device repeats as a graph: one launch in place of one for every operation."""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Work = Callable[[Tensor], None]

# Calls as they are before a capture: they load libraries, compile kernels and make the optimizer's state.
_WARM_UPS = 2
# A process can make one capture at a time.
_CAPTURING = threading.Lock()


class Replayed:
    """Calls a function of one tensor; from the third call with a shape on, a graph of it is replayed.

    A step of a small model is a hundred operations, and their launches take longer than the work. The first
    calls are ordinary ones, so that nothing has to be undone. A function that cannot be captured, since it
    waits for the device somewhere, is called as it is, with a warning.

    Args:
        device: of all tensors.
        generators: those that the function draws from, besides torch's global one.
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
            work: reads and changes tensors that stay where they are. What it does with them must not depend
                on numbers that Python reads or counts. It is not kept.
            argument: copied to where the graph reads it.
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
