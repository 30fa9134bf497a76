"""`torch.compile` in a process of its own, where annotations are not checked."""

import os
import subprocess
import sys
from pathlib import Path


def test_what_compiles() -> None:
    """All of tests/compiled; `pytest tests/compiled --jaxtyping-packages=` runs them one by one."""
    command = [sys.executable, "-m", "pytest", "-q", "tests/compiled", "--jaxtyping-packages="]
    root = Path(__file__).parents[1]
    # A tracer of lines makes the compiler many times slower.
    settings = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    result = subprocess.run(command, cwd=root, env=settings, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
