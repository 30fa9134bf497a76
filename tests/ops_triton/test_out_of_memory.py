"""The chunked backend when a GPU's memory runs out: blocks halve and the reduction goes on."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kdmkit.ops import blocks, chunked
from kdmkit.ops.recomputed import TermGradients
from ops.cases import Draw, evaluate, make_case


def test_halves_the_larger_side() -> None:
    sizes = [(5, 8)]
    while sizes[-1] != (1, 1):
        sizes.append(blocks.halved(sizes[-1]))
    assert sizes == [(5, 8), (5, 4), (2, 4), (2, 2), (2, 1), (1, 1)]


def limited(function: Callable[..., Any], limit: int, seen: list[int], *, rows: int, columns: int) -> Any:
    """`function`, but out of memory for blocks of more than `limit` pairs."""

    def wrapper(*arguments: Any) -> Any:
        block, step = arguments[rows], arguments[columns]
        width = step if isinstance(step, int) else step.stop - step.start
        seen.append((block.stop - block.start) * width)
        if seen[-1] > limit:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return function(*arguments)

    return wrapper


def test_goes_on_with_smaller_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case("squared-metric", Draw(n=9, m=11, d=2))
    wanted = evaluate(case, "reference")
    forward: list[int] = []
    backward: list[int] = []
    monkeypatch.setattr(
        chunked, "_rows_forward", limited(chunked._rows_forward, 12, forward, rows=3, columns=4)
    )
    leaves = limited(TermGradients.leaves, 12, backward, rows=1, columns=2)
    monkeypatch.setattr(TermGradients, "leaves", leaves)
    got = evaluate(case, "chunked", (8, 8))
    torch.testing.assert_close(got, wanted)
    # Once for each of the two reductions: halved until a block fits, and no larger one is tried again.
    assert forward == [64, 32, 16, 8, 8, 2] * 2
    assert backward[:3] == [64, 32, 16]
    assert backward.count(64) == 2


def test_nothing_left_to_halve(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case("squared-metric", Draw(n=3, m=4, d=2))
    seen: list[int] = []
    monkeypatch.setattr(chunked, "_rows_forward", limited(chunked._rows_forward, 0, seen, rows=3, columns=4))
    with pytest.raises(torch.OutOfMemoryError):
        case.log_mix("chunked", (2, 2))
    assert seen == [4, 2, 1]
