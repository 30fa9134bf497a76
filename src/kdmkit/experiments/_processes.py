"""Several measurements at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from threading import Thread

import torch

from kdmkit.experiments._results import Pool


@contextmanager
def processes(count: int) -> Iterator[Pool | None]:
    """So many processes with one thread each; None for one, which keeps its threads.

    They are spawned, for CUDA cannot be used after a fork.
    """
    if count == 1:
        yield None
        return
    executor = ProcessPoolExecutor(count, get_context("spawn"), _prepare)
    try:
        yield Pool(executor, count)
    finally:
        executor.shutdown(cancel_futures=True)


def _prepare() -> None:
    """Settings of a process of its own: it computes the same shapes again and again."""
    torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = True
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Nobody waits for the work of a parent that was killed, and a device's memory is dear."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
