"""Processes that measure several tasks at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from threading import Thread

import torch


@dataclass(frozen=True)
class Pool:
    """An executor, and how many tasks it runs at once."""

    executor: Executor
    size: int


@contextmanager
def processes(count: int) -> Iterator[Pool | None]:
    """A pool of `count` processes with one thread each; None for one process, which keeps its threads.

    They are spawned, since CUDA cannot be used after a fork.
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
    """Settings of a new process. It computes the same shapes again and again: cuDNN may try algorithms."""
    torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = True
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Ends this process when its parent is killed, and with it frees memory of the device."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
