"""A small data set in place of UCI's files; one thread."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from kdmlab.proportions import data, trials
from kdmlab.proportions.data import Dataset


@pytest.fixture(autouse=True, scope="package")
def _quick() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def made(name: str = "magic", n: int = 1600, total: int = 512) -> Dataset:
    """Two classes along the first of three features; half of the rows are positive."""
    rng = np.random.default_rng(0)
    y = np.arange(n) % 2
    X = rng.normal(size=(n, 3)) + np.array([2.0, 0, 0]) * y[:, None]
    return Dataset(name, X * [1, 10, 100], y, numeric=3, test=None, total=total)


@pytest.fixture
def small() -> Dataset:
    return made()


@pytest.fixture
def instead_of_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """`load` gives the small data whatever the folder."""
    monkeypatch.setitem(data.DATASETS, "magic", lambda folder: made("magic"))
    monkeypatch.setitem(data.DATASETS, "adult", lambda folder: made("adult"))
    trials.loaded.cache_clear()
    yield Path("nowhere")
    trials.loaded.cache_clear()
