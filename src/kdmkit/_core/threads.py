"""Threads of Python that compute with one thread of torch each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

_Part = TypeVar("_Part")
_Result = TypeVar("_Result")


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

    Threads that share the operations of one part wait for each other after each of them; threads with parts
    of their own do not. The function must be safe to call from several threads.

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
