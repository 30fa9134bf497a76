"""`torch.compile` in a process of its own, where annotations are not checked."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

# Dynamo of older releases (2.6 and 2.8 were tried) cannot trace layers into one graph.
_OLDEST_COMPILER = (2, 13)


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < _OLDEST_COMPILER, reason="the compiler is too old"
)
@pytest.mark.parametrize("marked", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_what_compiles(marked: str) -> None:
    """Tests of tests/compiled; `pytest tests/compiled --jaxtyping-packages=` runs them one by one."""
    command = [sys.executable, "-m", "pytest", "-q", "tests/compiled", "--jaxtyping-packages=", "-m", marked]
    root = Path(__file__).parents[1]
    # A tracer of lines makes the compiler many times slower.
    settings = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    result = subprocess.run(command, cwd=root, env=settings, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
