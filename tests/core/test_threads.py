"""Parts of a computation in threads of their own."""

import threading
from collections.abc import Iterator

import pytest
import torch

from kdmkit._core.runtime import map_in_threads


@pytest.fixture
def two_threads() -> Iterator[None]:
    usual = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(usual)


@pytest.mark.usefixtures("two_threads")
def test_parts_run_at_once_with_one_thread_of_torch_each() -> None:
    together = threading.Barrier(2, timeout=30)

    def function(part: int) -> tuple[int, int, bool]:
        if part < 2:
            together.wait()  # passes only if another part runs at the same time
        return part, torch.get_num_threads(), torch.is_grad_enabled()

    assert map_in_threads(function, range(8)) == [(part, 1, False) for part in range(8)]
    assert torch.get_num_threads() == 2
    later: list[int] = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [2]


@pytest.mark.usefixtures("two_threads")
def test_errors_reach_the_caller() -> None:
    def function(part: int) -> int:
        if part == 5:
            raise ValueError("part: expected another, got 5")
        return part

    with pytest.raises(ValueError, match="got 5"):
        map_in_threads(function, range(8))
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_few_parts_stay_in_the_callers_thread() -> None:
    caller = threading.get_ident()
    assert map_in_threads(lambda _: threading.get_ident(), range(3)) == [caller] * 3
