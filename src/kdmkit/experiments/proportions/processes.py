"""Several trials at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

import torch

from kdmkit.experiments._results import Pool


@contextmanager
def processes(count: int) -> Iterator[Pool | None]:
    """So many processes with one thread each; None for one: the tensors here are too small to share."""
    if count == 1:
        torch.set_num_threads(1)
        yield None
        return
    context = get_context("spawn")
    initializer = torch.set_num_threads
    with ProcessPoolExecutor(count, context, initializer, (1,)) as executor:
        yield Pool(executor, count)
