"""Several measurements at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

import torch

from kdmkit.experiments._results import Pool


@contextmanager
def processes(count: int) -> Iterator[Pool | None]:
    """So many processes with one thread each; None for one, which keeps its threads."""
    if count == 1:
        yield None
        return
    context = get_context("spawn")
    with ProcessPoolExecutor(count, context, torch.set_num_threads, (1,)) as executor:
        yield Pool(executor, count)
