"""These tests run by themselves, see tests/test_compiled.py."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch


def slow_except(cases: Iterable[str], *quick: str) -> list[object]:
    """Cases of which `make test` compiles some, and `make test-full` all: a graph takes seconds."""
    return [case if case in quick else pytest.param(case, marks=pytest.mark.slow) for case in cases]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The compiler cannot trace the checks of annotations."""
    return True if config.getoption("--jaxtyping-packages") else None


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    """Every test compiles the same lines for other shapes, which counts as recompiling."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()
