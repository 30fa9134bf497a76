"""Messages as the library calls them, and scores of rows among which few differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit._core.runtime import keep_freed_memory, only_reverse_mode
from kdmkit._core.tensors import broadcast, compute_dtype, full_precision
from kdmkit.ops.messages.edge_tables import MessageStep, Tables, schedule
from kdmkit.ops.messages.plain import collect_plainly, max_product, pass_plainly
from kdmkit.ops.messages.summed import Collect, pass_both_ways, pass_messages

# Scores of one node for which a call costs more than its numbers.
_FEW = 1 << 15


@dataclass(frozen=True)
class Indexed:
    """Scores `distinct[index]` of r rows: a node whose rows repeat few values sends few messages.

    Args:
        distinct: scores of the rows that differ.
        index: the number of every row among them.

    >>> Indexed(torch.tensor([[0.0, -1.0], [-2.0, 0.0]]), torch.tensor([1, 1, 0])).expanded()
    tensor([[-2.,  0.],
            [-2.,  0.],
            [ 0., -1.]])
    """

    distinct: Float[Tensor, "u k"]
    index: Int[Tensor, " r"]

    @property
    def dtype(self) -> torch.dtype:
        return self.distinct.dtype

    @property
    def device(self) -> torch.device:
        return self.distinct.device

    @property
    def shape(self) -> torch.Size:
        return torch.Size([len(self.index), self.distinct.shape[-1]])

    def numel(self) -> int:
        return self.shape.numel()

    def to(self, target: Any) -> Indexed:
        """The same scores in another dtype."""
        return replace(self, distinct=self.distinct.to(target))

    def plus(self, other: Float[Tensor, " k"]) -> Indexed:
        """The sum of all scores and a row."""
        return replace(self, distinct=self.distinct + other)

    def expanded(self) -> Float[Tensor, "r k"]:
        """The scores of all rows."""
        return self.distinct.index_select(0, self.index)


#: Scores of one node, `(*lead, k)`.
NodeScores = Float[Tensor, "..."] | Indexed
#: Scores of all nodes as tensors; None for a node without scores.
Scores = Sequence[Float[Tensor, "..."] | None]


def expanded(score: NodeScores | None) -> Float[Tensor, "..."] | None:
    """Scores as a tensor."""
    return score.expanded() if isinstance(score, Indexed) else score


def collect(
    parents: Sequence[int], scores: Sequence[NodeScores | None], tables: Tables, to: int = 0
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    """log Σ exp(all scores and edges) over the states of all nodes but one, for each state of that one.

    Args:
        parents: the parent of every node; −1 for node 0, the root. Parents come before their children.
        scores: of every node, `(*lead, k)`, or `Indexed` if few rows differ, or None. The root's hold
            log p(z_root).
        tables: log p(z_v | z_parent). A leaf without scores is left out, since rows sum to 1.
        to: the node whose states are kept.

    Returns:
        Values `(*lead, k)` and a shift `(*lead,)`: the answer is their sum. The shift has the maxima of the
        messages, which were taken out; it is a constant for autograd. A score may be −∞, with zero gradient.

    >>> root, child = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.0, -torch.inf]])
    >>> tables = Tables.of([torch.tensor([[0.9, 0.1], [0.2, 0.8]]).log()])
    >>> beta, shift = collect([-1, 0], [root, child], tables)
    >>> (torch.logsumexp(beta, -1) + shift).exp()        # p(z_child = 0)
    tensor([0.5500])
    """
    scores, tables = _in_one_dtype(scores, tables)
    steps = _steps(parents, scores, tables, to)
    with full_precision(_device_type(scores)):
        if _is_plain(tables):
            beta, shift = collect_plainly(steps, to, [expanded(score) for score in scores], tables.logs)
            return beta, shift.squeeze(-1)
        keep_freed_memory()
        index = [score.index if isinstance(score, Indexed) else None for score in scores]
        rows, lead = _all_rows(scores)
        beta, shift = Collect.apply(steps, to, index, replace(tables, stacks=()), *rows, *tables.stacks)
    return _with_lead(beta, lead), _with_lead(shift, lead).squeeze(-1)


def collect_all(parents: Sequence[int], scores: Scores, tables: Tables) -> list[Float[Tensor, "..."] | None]:
    """The scores of every node plus the messages from its children, up to a constant per row; no gradients.

    None for a node without scores at or below it.
    """
    scores, tables = _in_one_dtype(scores, tables)
    steps = _steps(parents, scores, tables, 0)
    with torch.no_grad(), full_precision(_device_type(scores)):
        if _is_plain(tables):
            return pass_plainly(steps, scores, tables.logs)[0]
        rows, lead = _all_rows(scores)
        beta, _ = pass_messages(steps, rows, [None] * len(rows), tables, tables.weights)
        return [None if b is None else _with_lead(b, lead) for b in beta]


def collect_everywhere(
    parents: Sequence[int], scores: Sequence[NodeScores | None], tables: Tables
) -> tuple[list[Float[Tensor, "..."]], Float[Tensor, "..."]]:
    """`collect` to every node, by one message along every edge in both directions; no gradients.

    Args:
        parents, scores, tables: as in `collect`; tables have no batch.

    Returns:
        Values of every node, `(*lead, k)`, up to a constant per row; and a shift `(*lead,)` of the root's.
    """
    scores, tables = _in_one_dtype([expanded(score) for score in scores], tables)
    steps = _steps(parents, scores, tables, 0)
    with torch.no_grad(), full_precision(_device_type(scores)):
        rows, lead = _all_rows(scores)
        all_values, shift = pass_both_ways(parents, steps, rows, tables)
    return [_with_lead(values, lead) for values in all_values], _with_lead(shift, lead).squeeze(-1)


def maximize(
    parents: Sequence[int], scores: Scores, tables: Tables
) -> tuple[Float[Tensor, " r"], list[Int[Tensor, " r"]]]:
    """The largest sum of scores and edges over the states of all nodes, and the states that attain it.

    Args:
        parents, scores, tables: as in `collect`; tables have no batch. Rows are all leading dimensions.
    """
    scores, tables = _in_one_dtype(scores, tables)
    steps = schedule(parents, tables, range(len(parents)), 0, together=False)
    rows, lead = _all_rows(scores)
    filled = [
        score if score is not None else torch.zeros_like(tables.log_table(node)[:1])
        for node, score in enumerate(rows)
    ]
    value, states = max_product(steps, filled, tables.logs)
    n = lead.numel()
    return value.expand(n), [state.expand(n) for state in states]


def _steps(
    parents: Sequence[int], scores: Sequence[NodeScores | None], tables: Tables, to: int
) -> tuple[MessageStep, ...]:
    scored, distinct, are_few = [], {}, True
    for node, score in enumerate(scores):
        if score is not None:
            scored.append(node)
            are_few = are_few and score.shape.numel() <= _FEW
            if isinstance(score, Indexed):
                distinct[node] = len(score.distinct)
    # Few launches on a GPU. On a CPU single tables stay in the caches, unless calls cost more than numbers.
    together = are_few or (bool(tables.stacks) and tables.stacks[0].is_cuda)
    return schedule(parents, tables, scored, to, together=together, distinct=distinct)


def _is_plain(tables: Tables) -> bool:
    """Whether only differentiable operations will do: tables have a batch, or a transform is active."""
    return max([stack.ndim for stack in tables.stacks], default=3) > 3 or not only_reverse_mode()


def _device_type(scores: Sequence[NodeScores | None]) -> str:
    return next(score.device.type for score in scores if score is not None)


def _all_rows(scores: Sequence[NodeScores | None]) -> tuple[list[Any], torch.Size]:
    """Scores with all leading dimensions in one, or those of distinct rows; and the leading dimensions."""
    lead = broadcast(*[score.shape[:-1] for score in scores if score is not None])
    return [None if score is None else _rows(score, lead) for score in scores], lead


def _with_lead(rows: Float[Tensor, "r k"], lead: torch.Size) -> Float[Tensor, "... k"]:
    """The inverse of `_rows`."""
    shape = lead if rows.shape[0] == lead.numel() else [1] * len(lead)
    return rows.reshape(*shape, rows.shape[-1])


def _rows(score: NodeScores, lead: torch.Size) -> Float[Tensor, "r k"]:
    """All rows of the leading dimensions, or one row that they share, or the distinct ones."""
    if isinstance(score, Indexed):
        return score.distinct
    k = score.shape[-1]
    if score.shape[:-1].numel() == 1:
        return score.reshape(1, k)
    return score.expand(*lead, k).reshape(-1, k)


def _in_one_dtype(scores: Sequence[NodeScores | None], tables: Tables) -> tuple[list[Any], Tables]:
    dtype = torch.float32
    for tensor in (*scores, *tables.stacks):
        if tensor is not None and tensor.dtype != dtype:
            dtype = torch.promote_types(dtype, compute_dtype(tensor.dtype))
    converted = [None if score is None else score.to(dtype) for score in scores]
    if {stack.dtype for stack in tables.stacks} <= {dtype}:
        return converted, tables
    return converted, tables.mapped(lambda stack: stack.to(dtype))
