"""Tests of `torch.compile`: without checks of annotations, which the compiler cannot trace."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch

# Dynamo of older releases (2.6 and 2.8 were tried) cannot trace layers into one graph.
_OLDEST_COMPILER = (2, 13)


def slow_except(cases: Iterable[str], *quick: str) -> list[object]:
    """Cases of which `make test` compiles some, and `make test-full` all: a graph takes seconds."""
    return [case if case in quick else pytest.param(case, marks=pytest.mark.slow) for case in cases]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    too_old = tuple(map(int, torch.__version__.split(".")[:2])) < _OLDEST_COMPILER
    return True if too_old or config.getoption("--jaxtyping-packages") else None


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    """Every test compiles the same lines for other shapes, which counts as recompiling."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()
