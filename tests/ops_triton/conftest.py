"""Triton's kernels on the CPU, by its interpreter: see the conftest.py at the root."""

from collections.abc import Iterator

import pytest
import torch
import triton


@pytest.fixture(autouse=True, scope="session")
def _interpreted() -> None:
    assert triton.knobs.runtime.interpret, "TRITON_INTERPRET has to be set before anything imports Triton"


@pytest.fixture(params=["highest", "high", "medium"])
def precision(request: pytest.FixtureRequest) -> Iterator[str]:
    """A precision of matrix products, restored afterwards."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield request.param
    torch.set_float32_matmul_precision(before)
