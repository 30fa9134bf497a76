"""Compiled kernels on a CUDA device; everywhere else Triton's interpreter runs them (`tests/ops_triton`)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_compiled_kernels() -> None:
    """The checks run in another process: this one has the kernels in the interpreter."""
    script = Path(__file__).with_name("cuda_checks.py")
    command, environment = [sys.executable, str(script)], {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
