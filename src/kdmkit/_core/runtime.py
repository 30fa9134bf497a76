"""How torch runs: modes of differentiation and compilation, threads, and memory."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch.autograd import forward_ad

# The largest block whose release changes how much free memory glibc keeps, less the block's header.
_LARGEST_BLOCK = (1 << 25) - (1 << 16)

_Part = TypeVar("_Part")
_Result = TypeVar("_Result")


def only_reverse_mode() -> bool:
    """Whether operations run eagerly and only reverse-mode autograd may differentiate them.

    Explicit gradients are possible then. Compilers, `torch.func` and forward mode need every operation.
    """
    return not (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


#: Whether `torch.export` traces: the size of a batch is unknown then. torch 2.6 has no such function.
is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", lambda: False)


def compiles_reverse_mode() -> bool:
    """Whether `torch.compile` traces operations that only reverse-mode autograd may differentiate.

    It fuses the operations of explicit gradients, too.
    """
    return torch.compiler.is_compiling() and not (
        is_exporting() or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    )


def in_one_thread(call: Callable[..., Any], *arguments: Any) -> Any:
    """Calls with one thread of torch; other threads of the process, such as a notebook's, keep theirs.

    A question is many small tensors: several threads for each would wait for each other.

    >>> in_one_thread(torch.get_num_threads)
    1
    """
    usual = torch.get_num_threads()
    if usual > 1:
        torch.set_num_threads(1)  # of this thread, and of all that start from now on
        reset = threading.Thread(target=torch.set_num_threads, args=(usual,))
        reset.start()
        reset.join()
    return call(*arguments)


def map_in_threads(function: Callable[[_Part], _Result], parts: Sequence[_Part]) -> list[_Result]:
    """The function of every part, in order, without gradients; as many parts at once as torch has threads.

    Threads that share the operations of one part wait for each other after each operation; threads that each
    compute a part do not. The function must be safe to call from several threads.

    >>> map_in_threads(lambda part: part.sum(), torch.ones(4, 2).unbind())
    [tensor(2.), tensor(2.), tensor(2.), tensor(2.)]
    """

    def call(part: _Part) -> _Result:
        with torch.no_grad():
            return function(part)

    threads = torch.get_num_threads()
    if threads == 1 or len(parts) < 2 * threads:
        return [call(part) for part in parts]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda part: in_one_thread(call, part), parts))


@functools.cache
def keep_freed_memory() -> None:
    """Makes glibc keep up to 64 MiB of freed memory in this process. The first call does it, at no cost.

    glibc returns the end of its heap to the system when more is free there than twice the largest block that
    was ever freed. Memory that a training step frees then has to be mapped and zeroed again for the next
    step, a tenth of its time. So a large block is freed here; it is never written to.
    """
    torch.empty(_LARGEST_BLOCK, dtype=torch.uint8, device="cpu")
