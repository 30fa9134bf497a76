"""Messages: groups of equal edges, shared rows, and dtypes. Sums are tested in tests/distributions/tree."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from helpers import close, normal
from kdmkit.ops.messages import (
    Indexed,
    Tables,
    collect,
    collect_all,
    collect_everywhere,
    maximize,
    smallest_sum,
)
from kdmkit.ops.messages.edge_tables import schedule
from kdmkit.ops.messages.summed import Collect

PARENTS = [-1, 0, 0, 1, 1, 2, 2]
K = 4


def stack(sharpness: float = 1.0) -> Tensor:
    return torch.log_softmax(sharpness * normal(6, K, K, seed=1), -1).requires_grad_()


def some_scores(rows: int = 5) -> list[Tensor | None]:
    scores: list[Tensor | None] = [normal(rows, K, seed=10 + i).requires_grad_() for i in range(7)]
    scores[2], scores[4] = None, normal(1, K, seed=20).requires_grad_()
    return scores


@pytest.mark.parametrize("to", [0, 2, 5])
@pytest.mark.parametrize("sharpness", [1.0, 2000.0])
def test_groups_of_edges_agree_with_single_ones(to: int, sharpness: float) -> None:
    """Edges of one depth are one product on a GPU; here both ways run on a CPU."""
    logs, scores = stack(sharpness), some_scores()
    tables = Tables.stacked(logs)
    assert tables.sharp == (sharpness > 1,)
    known = [i for i, score in enumerate(scores) if score is not None]
    inputs = [*(score for score in scores if score is not None), logs]
    results = []
    for together in (False, True):
        steps = schedule(PARENTS, tables, known, to, together=together)
        beta, shift = Collect.apply(steps, to, [None] * 7, replace(tables, stacks=()), *scores, logs)
        direction = normal(*beta.shape, seed=3)
        gradients = torch.autograd.grad((beta * direction).sum(), inputs)
        results.append([beta + shift, *gradients])
    assert len(schedule(PARENTS, tables, known, to, together=True)) < 6
    for one, other in zip(*results, strict=True):
        close(one, other)


def test_groups_of_edges_that_do_not_follow_each_other_need_no_index_from_the_host() -> None:
    """A CUDA graph cannot hold one. Messages to node 2 of a star come from nodes 1 and 3 in one step."""

    class Indexing(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            assert not str(function).startswith(("aten.index.", "aten.index_put")), function
            return function(*args, **(kwargs or {}))

    parents, logs = [-1, 0, 0, 0], stack()[:3].detach().requires_grad_()
    scores = [normal(5, K, seed=i).requires_grad_() for i in range(4)]
    tables = Tables.above_floor(logs.exp())
    steps = schedule(parents, tables, range(4), 2, together=True)
    assert (0, 2) in [step.slots for step in steps]
    with Indexing():
        beta, _ = Collect.apply(steps, 2, [None] * 4, replace(tables, stacks=()), *scores, *tables.stacks)
        torch.autograd.grad(beta.sum(), [*scores, logs])


def test_leaves_without_scores_send_nothing() -> None:
    scores: list[Tensor | None] = [None] * 7
    scores[0], scores[3] = normal(5, K, seed=1), normal(5, K, seed=2)
    steps = schedule(PARENTS, Tables.stacked(stack()), [0, 3], 0, together=False)
    assert [step.sources for step in steps] == [(3,), (1,)]


def test_all_messages() -> None:
    scores = some_scores()
    tables = Tables.stacked(stack())
    result = collect_all(PARENTS, scores, tables)
    beta, _ = collect(PARENTS, scores, tables)
    root = result[0]
    assert root is not None
    close(torch.log_softmax(root, -1), torch.log_softmax(beta.detach(), -1))


@pytest.mark.parametrize("sharpness", [1.0, 2000.0])
@pytest.mark.parametrize("known", [range(7), [0, 3], [0]])
def test_both_directions_give_what_single_nodes_collect(sharpness: float, known: list[int]) -> None:
    tables = Tables.stacked(stack(sharpness).detach())
    scores = [score if node in known else None for node, score in enumerate(some_scores())]
    result, shift = collect_everywhere(PARENTS, scores, tables)
    for node, values in enumerate(result):
        beta, own_shift = collect(PARENTS, scores, tables, node)
        close(torch.log_softmax(values, -1), torch.log_softmax(beta.detach(), -1))
    beta, own_shift = collect(PARENTS, scores, tables)
    close(result[0].logsumexp(-1) + shift, (beta.logsumexp(-1) + own_shift).detach())


def test_impossible_states_stay_impossible_in_both_directions() -> None:
    tables = Tables.of([torch.tensor([[1.0, 0.0], [0.0, 1.0]]).log() for _ in range(2)])
    child = torch.tensor([[0.0, -torch.inf]])
    result, _ = collect_everywhere([-1, 0, 1], [torch.zeros(1, 2), None, child], tables)
    for values in result:
        close(torch.softmax(values, -1), torch.tensor([[1.0, 0.0]]))


def test_tables_in_two_dtypes_are_promoted() -> None:
    tables = Tables.of([torch.log_softmax(normal(2, 3, seed=1), -1).float()])
    beta, _ = collect([-1, 0], [normal(4, 2, seed=2), normal(4, 3, seed=3)], tables)
    assert beta.dtype == torch.float64


def test_the_floor() -> None:
    at = torch.tensor([[smallest_sum(torch.float32) * 2]]).log()
    assert not Tables.of([at]).sharp[0]
    assert Tables.of([at - 2]).sharp[0]
    assert Tables.of([at.double() - 2]).sharp == (False,)
    assert Tables.of([torch.tensor([[0.0, -torch.inf]])]).sharp[0]


def test_the_largest_product_of_a_chain() -> None:
    """Dynamic programming in the other direction."""
    logs = [torch.log_softmax(3 * normal(3, 3, seed=i), -1) for i in range(3)]
    scores = [normal(6, 3, seed=10 + i) for i in range(4)]
    value, states = maximize([-1, 0, 1, 2], scores, Tables.of(logs))
    best = scores[0]
    for table, score in zip(logs, scores[1:], strict=True):
        best = (best.unsqueeze(-1) + table).amax(-2) + score
    close(value, best.amax(-1))
    rows = torch.arange(6)
    total = sum(score[rows, state] for score, state in zip(scores, states, strict=True))
    for table, up, down in zip(logs, states, states[1:], strict=False):
        total = total + table[up, down]
    close(total, value)


def test_autocast_changes_nothing() -> None:
    scores, tables = some_scores(), Tables.stacked(stack().float())
    narrow = [None if score is None else score.float() for score in scores]
    wanted, _ = collect(PARENTS, narrow, tables)
    with torch.autocast("cpu", torch.bfloat16):
        result, _ = collect(PARENTS, narrow, tables)
    close(result, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("to", [0, 2, 5])
@pytest.mark.parametrize("sharpness", [1.0, 2000.0])
@pytest.mark.parametrize("repeats", [1, 1700], ids=["together", "single"])
def test_distinct_rows_agree_with_all_rows(to: int, sharpness: float, repeats: int) -> None:
    """Values, gradients, and gradients of those. Tables of more than 2¹⁵ scores are multiplied one by one."""
    index = torch.tensor([[0, 1, 1, 2, 0], [0, 0, 1, 1, 1], [2, 2, 2, 1, 0]]).repeat(1, repeats)
    distinct = {node: normal(3, K, seed=30 + node).requires_grad_() for node in (0, 1, 3, 4, 5)}
    logs = stack(sharpness)
    inputs = [*distinct.values(), logs]
    results = []
    for together in (True, False):
        scores: list[Any] = [*some_scores(5 * repeats)]
        for node, values in distinct.items():
            score = Indexed(values, index[node % 3])
            scores[node] = score if together else score.expanded()
        beta, shift = collect(PARENTS, scores, Tables.stacked(logs), to)
        total = ((beta + shift.unsqueeze(-1)) * normal(*beta.shape, seed=3)).sum() / repeats
        gradients = torch.autograd.grad(total, inputs, create_graph=True)
        second = torch.autograd.grad(
            sum(g.square().sum() for g in gradients), inputs, retain_graph=True, materialize_grads=True
        )
        first = torch.autograd.grad(total, inputs)
        results.append([beta + shift.unsqueeze(-1), *gradients, *first, *second])
    for one, other in zip(*results, strict=True):
        close(one, other, rtol=1e-10, atol=1e-12)


def test_distinct_rows_of_a_tree_of_one_node() -> None:
    score = Indexed(normal(2, K, seed=1).requires_grad_(), torch.tensor([1, 0, 1]))
    beta, _ = collect([-1], [score], Tables((), (None,), ()))
    close(beta, score.expanded())
    (slope,) = torch.autograd.grad(beta.sum(), score.distinct)
    close(slope, torch.tensor([[1.0], [2.0]]).expand(2, K).to(slope))


@pytest.mark.parametrize("to", [0, 2])
def test_tables_of_weights_agree_with_logarithms(to: int) -> None:
    logs, scores = stack(), some_scores()
    inputs = [*(score for score in scores if score is not None), logs]
    results = []
    for tables in (Tables.stacked(logs), Tables.above_floor(logs.exp())):
        beta, shift = collect(PARENTS, scores, tables, to)
        total = (beta * normal(*beta.shape, seed=3)).sum()
        gradients = torch.autograd.grad(total, inputs, create_graph=True)
        second = torch.autograd.grad(
            gradients[-1].square().sum(), inputs, retain_graph=True, materialize_grads=True
        )
        results.append([beta + shift.unsqueeze(-1), *torch.autograd.grad(total, inputs), *second])
    for one, other in zip(*results, strict=True):
        close(one, other, rtol=1e-10, atol=1e-12)


def test_tables_of_weights_in_half_precision_keep_small_ones() -> None:
    tables = Tables.above_floor(torch.tensor([[[1 - 1e-9, 1e-9], [0.5, 0.5]]], dtype=torch.float64))
    half = tables.mapped(lambda stack: stack.half())
    assert tables.size(1) == half.size(1) == 2
    close(half.log_table(1).double(), tables.log_table(1), rtol=1e-3, atol=1e-6)
