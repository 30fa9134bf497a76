"""Devices and processes: Accelerate, graphs that a CUDA device repeats, steps of a CPU without autograd."""

from __future__ import annotations

import math
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument
from kdmkit.training.fit_arguments import FitOptions, Rows

if TYPE_CHECKING:
    from accelerate import Accelerator

T = TypeVar("T")
Work = Callable[[Tensor], None]

# Held while the states that Accelerate shares between its objects are replaced.
_STATES = threading.Lock()
# Ordinary calls before a capture: they load libraries, compile kernels and make the optimizer's state.
_WARM_UPS = 2
# Rows that written steps take out of all rows at once.
_ROWS_AT_ONCE = 8192
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


@runtime_checkable
class WritesGradients(Protocol):
    """An objective, an `nn.Module`, that writes out its gradients."""

    @property
    def writes_gradients(self) -> bool:
        """Whether it does so with its settings."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters with their names."""

    def with_gradients(self, *rows_and_share: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The losses of rows, and the gradients of Σ_i share_i·loss_i by the trainable parameters.

        The last argument is the share of every row.
        """


def writes_gradients(objective: nn.Module, options: FitOptions, accelerator: Accelerator) -> bool:
    """Whether a fit can do without autograd: on a CPU, by one process, without checkpoints or averages."""
    if not (isinstance(objective, WritesGradients) and objective.writes_gradients):
        return False
    plain = options.precision == "no" and options.checkpoint_dir is None and options.averaging is None
    one = accelerator.device.type == "cpu" and accelerator.num_processes == 1
    return plain and one and options.schedule != "one-cycle"


class WrittenSteps:
    """`Steps` of an objective that writes out its gradients, without autograd and torch's optimizers.

    The parameters are parts of one tensor: an update takes three operations in place of dozens. It is that of
    AdamW with the gradient's norm clipped.

    Args:
        objective: `writes_gradients`.
        train: all rows.
        options: of the fit.
        n_steps: of the whole fit.
        decayed: the names of the parameters with weight decay.
    """

    average = None
    replays = False
    local = slice(None)

    def __init__(
        self, objective: nn.Module, train: Rows, options: FitOptions, n_steps: int, decayed: set[str]
    ) -> None:
        self.prepared = self.result = objective
        self.objective = cast(WritesGradients, objective)
        self.train, self.options, self.n_steps = train, options, n_steps
        named = {name: p for name, p in objective.named_parameters() if p.requires_grad}
        ordered = sorted(named, key=lambda name: name not in decayed)
        # Gradients come in the order of the objective's parameters.
        self._order = [list(named).index(name) for name in ordered]
        self._parameters = list(named.values())
        self._values = torch.cat([named[name].detach().flatten() for name in ordered])
        sizes = [named[name].numel() for name in ordered]
        for name, part in zip(ordered, self._values.split(sizes), strict=True):
            named[name].data = part.view(named[name].shape)
        self._decayed = self._values[: sum(named[name].numel() for name in decayed & set(named))]
        self._moments = [torch.zeros_like(self._values), torch.zeros_like(self._values)]
        self._step = torch.zeros((), dtype=torch.float32)
        self.total = torch.zeros((), dtype=torch.float64)

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        share = float(self._step) / self.n_steps if self.options.schedule == "cosine" else 0.0
        return self.options.learning_rate * (1 + math.cos(math.pi * share)) / 2

    def parts(self) -> dict[str, Any]:
        """Nothing: there are no checkpoints."""
        return {}

    def restart(self, seed: int) -> None:
        """Before an epoch; nothing is drawn."""
        self.total.zero_()

    def finish(self) -> None:
        """After an epoch."""

    def release(self) -> None:
        """After the last epoch: gives every parameter a tensor of its own again."""
        for parameter in self._parameters:
            parameter.data = parameter.data.clone()

    @torch.no_grad()
    def run(self, batches: list[Tensor]) -> None:
        """The updates of an epoch. Rows of several batches are taken at once."""
        several = max(1, _ROWS_AT_ONCE // len(batches[0]))
        for start in range(0, len(batches), several):
            chosen = batches[start : start + several]
            rows, weights = self.train.take(torch.cat(chosen))
            sizes = [len(batch) for batch in chosen]
            weights = self._values.new_ones(sum(sizes)) if weights is None else weights.to(self._values)
            for *batch, share in zip(*[part.split(sizes) for part in (*rows, weights)], strict=True):
                self._update(batch, share)

    def _update(self, rows: list[Tensor], weights: Tensor) -> None:
        share = weights / weights.sum().clamp_min(1e-30)
        losses, gradients = self.objective.with_gradients(*rows, share)
        self.total += losses @ weights
        gradient = torch.cat([gradients[i].flatten() for i in self._order])
        most = self.options.clip_norm
        if most is not None and not (norm := float(gradient.norm())) <= most:
            gradient.mul_(most / (norm + 1e-6))
        rate, (beta1, beta2) = self.rate, self.options.betas
        self._decayed.mul_(1 - rate * self.options.weight_decay)
        first, second = self._moments
        self._step += 1
        torch._fused_adamw_(
            [self._values],
            [gradient],
            [first],
            [second],
            [],
            [self._step],
            lr=rate,
            beta1=beta1,
            beta2=beta2,
            weight_decay=0.0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )
