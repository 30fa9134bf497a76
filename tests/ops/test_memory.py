"""The chunked backend's memory is that of a block, whatever the numbers of queries and components."""

import subprocess
import sys

MEASURE = """
import resource, sys, torch
from kdmkit.ops import SquaredDistance, attend

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

n, m, d = 512, 50_000, 16
query, components, scale = torch.randn(n, d), torch.randn(m, d), torch.ones(1, 1)
leaves = [tensor.requires_grad_() for tensor in (query, components, scale)]
before = peak()
averages, lse = attend(SquaredDistance(*leaves), torch.zeros(m), torch.rand(m, 10), backend=sys.argv[1])
torch.autograd.grad([averages.sum(), lse.sum()], leaves)
print(peak() - before)
"""


def peak_mib(backend: str) -> float:
    """The growth of the peak of resident memory in a process of its own."""
    command = [sys.executable, "-c", MEASURE, backend]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) / 1024


def test_forward_and_backward_stay_far_below_the_matrix() -> None:
    """All scores at once take 195 MiB, and with `torch` the graph holds several such matrices."""
    assert peak_mib("auto") < 150
