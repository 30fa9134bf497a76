"""torch's DistributedDataParallel trains heads: two processes do what one does."""

from typing import Any

import pytest
import torch

import typecheck
from helpers import two_processes
from nn.distributed_heads import train


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The states of two processes."""
    return two_processes("nn.distributed_heads", tmp_path_factory.mktemp("two"))


@pytest.mark.parametrize("mixed", [False, True], ids=["float64", "bfloat16"])
@pytest.mark.parametrize("name", ["losses", "distributions"])
def test_two_processes_are_one(two: list[Any], name: str, mixed: bool) -> None:
    with typecheck.off():
        alone = train(slice(None), mixed=mixed)[name]
    # Products in bfloat16 have three digits.
    tolerance = 0.02 if mixed else 1e-10
    first, second = (process[mixed][name] for process in two)
    assert first.keys() == alone.keys()
    for key, wanted in alone.items():
        torch.testing.assert_close(first[key], second[key], rtol=0, atol=0)
        torch.testing.assert_close(first[key], wanted, rtol=tolerance, atol=tolerance)
