"""Threads of torch for the questions of the page."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def in_one_thread(call: Callable[..., Any], *arguments: Any) -> Any:
    """Calls with one thread of torch; other threads of the process, such as a notebook's, keep theirs.

    A question is many small tensors: several threads for each would wait for each other.

    >>> import torch
    >>> in_one_thread(torch.get_num_threads)
    1
    """
    import torch

    usual = torch.get_num_threads()
    if usual > 1:
        torch.set_num_threads(1)  # of this thread, and of all that start from now on
        reset = threading.Thread(target=torch.set_num_threads, args=(usual,))
        reset.start()
        reset.join()
    return call(*arguments)
