"""Freed memory stays in the process."""

import platform
import subprocess
import sys

import pytest

_STEPS = """
import resource, torch
from kdmkit._core.runtime import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        blocks = [torch.ones(1 << 18) for _ in range(48)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_freed_memory()
faults()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc returns memory like that")
def test_steps_do_not_ask_for_the_same_memory_again() -> None:
    """Five steps that free 48 MiB each; pages have 4 KiB."""
    result = subprocess.run([sys.executable, "-c", _STEPS], capture_output=True, text=True, check=True)
    assert int(result.stdout) < 4096
