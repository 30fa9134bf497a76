"""Several trials at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

import torch


@contextmanager
def processes(count: int) -> Iterator[Executor | None]:
    """So many processes with one thread each; None for one: the tensors here are too small to share."""
    if count == 1:
        torch.set_num_threads(1)
        yield None
        return
    pool = ProcessPoolExecutor(
        count, mp_context=get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)
    )
    with pool as executor:
        yield executor
