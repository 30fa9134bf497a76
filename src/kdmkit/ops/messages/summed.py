"""Sums of products over a tree, with explicit gradients: one matrix product per edge and direction.

A message from node s to node t is μ_i = log Σ_j M_ij exp(β_j). The largest β_j is taken out, so that the
exponentials e_j have the maximum 1 and the sum S = e Mᵀ is at least M_{i, argmax β}. If no entry of M is
below `smallest_sum`, nothing underflows. Otherwise (row, state) pairs whose sum underflows are computed again
as a logsumexp.

With G = ∂L/∂β_t the gradients are ∂L/∂M = (G/S)ᵀe, ∂L/∂log M = M ∘ ∂L/∂M and ∂L/∂β_s = e ∘ ((G/S) M).

A node that receives no messages may have few distinct rows of scores: its message is computed for these and
then copied to the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kdmkit._core.logspace import exp_, finite_max, safe_logsumexp
from kdmkit._core.tensors import full_precision
from kdmkit.ops.blocks import slices
from kdmkit.ops.messages.edge_tables import MessageStep, Tables, smallest_sum
from kdmkit.ops.messages.plain import collect_plainly
from kdmkit.ops.recomputed import differentiable_gradients

# Numbers in memory at once when sums are computed again.
_EXACT_NUMBERS = 1 << 22
# Pairs of groups of rows are looked for if at most so many times as many as rows are possible.
_PAIRS_PER_ROW = 8


@dataclass
class Sent:
    """Tensors that the backward pass of one step needs.

    Args:
        linear: e = exp(β_s − max), `(n, r, k_source)`.
        total: S, `(n, r, k_target)`; never 0.
        relative: β_s − max, if sums were computed again.
        redone: the sums that were computed again.
    """

    linear: Float[Tensor, "n r k_source"]
    total: Float[Tensor, "n r k_target"]
    relative: Float[Tensor, "n r k_source"] | None = None
    redone: Bool[Tensor, "n r k_target"] | None = None


def pass_messages(
    steps: Sequence[MessageStep],
    scores: Sequence[Float[Tensor, "..."] | None],
    index: Sequence[Int[Tensor, " r"] | None],
    tables: Tables,
    weights: Sequence[Float[Tensor, "..."]],
    sent: list[Sent] | None = None,
) -> tuple[list[Any], Float[Tensor, "r 1"] | float]:
    """β of every node, the scores plus all messages to it, and the sum of the maxima taken out of messages.

    Args:
        index: for every node, the row of its scores that each row has; None if it has scores of all rows, or
            one for all. Nodes that receive no messages keep their rows.
        weights: `tables.weights`.
        sent: a list to which tensors for the backward pass are added.
    """
    beta: list[Any] = list(scores)
    shift: Tensor | float = 0.0
    receiving = set()
    for step in steps:
        messages, tops, kept = send(step, beta, tables.stacks[step.stack], weights[step.stack])
        for message, top, source, target in zip(messages, tops, step.sources, step.targets, strict=True):
            of_source = None if source in receiving else index[source]
            message, top = _of_rows(message, of_source), _of_rows(top, of_source)
            shift = shift + top
            if beta[target] is None:
                beta[target] = message
            elif target in receiving and beta[target].shape == message.shape:
                beta[target].add_(message)
            elif target in receiving:
                beta[target] = beta[target] + message
            else:
                beta[target] = _of_rows(beta[target], index[target]) + message
            receiving.add(target)
        if sent is not None:
            sent.append(kept)
    return beta, shift


def collect_groups(
    steps: Sequence[MessageStep],
    to: int,
    scores: Sequence[Any],
    index: Sequence[Int[Tensor, " r"] | None],
    tables: Tables,
) -> tuple[Float[Tensor, "r k"], Float[Tensor, "#r 1"]]:
    """β of one node and the shift, without gradients: rows that agree at and below a node stay together.

    Args:
        steps: of one message each.
        index: as in `pass_messages`.
    """
    beta, groups, weights = list(scores), list(index), tables.weights
    shift: Tensor = next(score for score in beta if score is not None).new_zeros(1, 1)
    for step in steps:
        (source,), (target,) = step.sources, step.targets
        (message,), (top,), _ = send(step, beta, tables.stacks[step.stack], weights[step.stack])
        shift = shift + _of_rows(top, groups[source])
        beta[source] = None
        received = message, groups[source]
        before = beta[target], groups[target]
        beta[target], groups[target] = received if before[0] is None else _joined(before, received)
    return _of_rows(beta[to], groups[to]), shift


#: Values, and the number of the value that every row has; None if all rows have one, or share one.
_Grouped = tuple[Any, Any]


def _joined(a: _Grouped, b: _Grouped) -> _Grouped:
    """The sums of values of all rows: those of the pairs that occur if these are few."""
    (first, of_first), (second, of_second) = a, b
    for values, group, others in ((first, of_first, of_second), (second, of_second, of_first)):
        if group is None and values.shape[0] == 1:
            return first + second, others
    if of_first is not None and of_second is not None:
        n_first, n_second = len(first), len(second)
        if n_first * n_second <= _PAIRS_PER_ROW * len(of_first):
            pair = of_first * n_second + of_second
            occurs = torch.zeros(n_first * n_second, dtype=torch.bool, device=pair.device)
            occurs[pair] = True
            pairs = occurs.nonzero().squeeze(-1)
            if 2 * len(pairs) <= len(pair):
                together = first.index_select(0, pairs // n_second) + second.index_select(0, pairs % n_second)
                return together, (occurs.cumsum(0) - 1)[pair]
    return _of_rows(first, of_first) + _of_rows(second, of_second), None


def _of_rows(values: Float[Tensor, "u k"], index: Int[Tensor, " r"] | None) -> Float[Tensor, "r k"]:
    return values if index is None else values.index_select(0, index)


def send(
    step: MessageStep, beta: Sequence[Any], stack: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor, Sent]:
    """Messages of one step, the maxima taken out of them, and tensors for the backward pass."""
    b = _stack([beta[source] for source in step.sources])
    top = finite_max(b)
    relative = b - top
    linear = exp_(relative.clone() if step.sharp else relative)
    total = _product(linear, _oriented(weights, step).mT)
    messages = total.log()
    kept = Sent(linear, total)
    if step.sharp:
        low = total < smallest_sum(total.dtype)
        if bool(low.any()):
            # The tables of a sharp step are logarithms.
            messages[low] = _log_sums(relative, _oriented(stack, step), low)
            kept.relative, kept.redone = relative, low
    # The gradient of a sum of 0 is 0, and 0/0 is none.
    total.clamp_min_(smallest_sum(total.dtype))
    return messages, top, kept


def _stack(tensors: Sequence[Float[Tensor, "..."]]) -> Float[Tensor, "n r k"]:
    if len(tensors) == 1:
        return tensors[0].unsqueeze(0)
    return torch.stack(torch.broadcast_tensors(*tensors))


def _product(a: Float[Tensor, "n r j"], b: Float[Tensor, "n j i"]) -> Float[Tensor, "n r i"]:
    if a.shape[0] == 1:
        return torch.mm(a[0], b[0]).unsqueeze(0)
    return torch.bmm(a, b)


def _oriented(
    tables: Float[Tensor, "n k_parent k"], step: MessageStep
) -> Float[Tensor, "g k_target k_source"]:
    slots, first = step.slots, step.slots[0]
    follow = slots == tuple(range(first, first + len(slots)))
    # Not tables[list]: a GPU would wait for its index, which no CUDA graph can hold.
    chosen = tables[first : first + len(slots)] if follow else torch.stack([tables[slot] for slot in slots])
    return chosen.mT if step.downward else chosen


def _log_sums(relative: Tensor, logs: Tensor, low: Tensor) -> Float[Tensor, " pairs"]:
    """log Σ_j exp(relative_j + log M_ij) of chosen pairs, in blocks."""
    edge, row, state = low.nonzero(as_tuple=True)
    sums = relative.new_empty(len(edge))
    for part in slices(len(edge), max(1, _EXACT_NUMBERS // relative.shape[-1])):
        sums[part] = safe_logsumexp(relative[edge[part], row[part]] + logs[edge[part], state[part]])
    return sums


class Collect(torch.autograd.Function):
    """(steps, root, index, tables, *scores, *stacks) → β of the root, and the shift, which has no gradient.

    `index` is that of `pass_messages`; `tables` comes without its stacks.
    """

    @staticmethod
    def forward(
        ctx: Any, steps: Sequence[MessageStep], root: int, index: Any, tables: Tables, *tensors: Any
    ) -> Any:
        scores, stacks = tensors[: len(index)], tensors[len(index) :]
        sent: list[Sent] = []
        whole = replace(tables, stacks=stacks)
        weights = whole.weights
        beta, shift = pass_messages(steps, scores, index, whole, weights, sent)
        ctx.steps, ctx.root, ctx.index, ctx.tables = steps, root, index, tables
        kept = [part for one in sent for part in (one.linear, one.total, one.relative, one.redone)]
        ctx.save_for_backward(*tensors, *weights, *kept)
        values = beta[root]
        if not steps:
            values = _of_rows(values, index[root]) if index[root] is not None else values.clone()
        shift = shift if isinstance(shift, Tensor) else values.new_zeros(1, 1)
        ctx.mark_non_differentiable(shift)
        return values, shift

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, _: Any) -> Any:
        saved, needs = ctx.saved_tensors, ctx.needs_input_grad[4:]
        n, n_stacks = len(ctx.index), len(needs) - len(ctx.index)
        scores, stacks = saved[:n], saved[n : n + n_stacks]
        weights, kept = saved[n + n_stacks : n + 2 * n_stacks], saved[n + 2 * n_stacks :]
        tables = replace(ctx.tables, stacks=stacks)
        if torch.is_grad_enabled():
            rows = [
                score if index is None else score.index_select(0, index)
                for score, index in zip(scores, ctx.index, strict=True)
            ]
            beta, _ = collect_plainly(ctx.steps, ctx.root, rows, tables.logs)
            gradients = differentiable_gradients([beta], [*scores, *stacks], needs, [upstream])
            return None, None, None, None, *gradients
        sent = [Sent(*kept[i : i + 4]) for i in range(0, len(kept), 4)]
        with full_precision(upstream.device.type):
            gradients = _gradients(ctx, scores, tables, weights, sent, upstream)
        return None, None, None, None, *gradients


def _gradients(
    ctx: Any,
    scores: Sequence[Any],
    tables: Tables,
    weights: Sequence[Tensor],
    sent: Sequence[Sent],
    upstream: Tensor,
) -> list[Any]:
    steps, index = ctx.steps, ctx.index
    needs_stacks = ctx.needs_input_grad[4 + len(index) :]
    receiving = {target for step in steps for target in step.targets}
    by_node: list[Any] = [None] * len(scores)
    by_node[ctx.root] = upstream
    by_stack: list[Any] = [
        _buffer(i, stack, steps) if needs_stacks[i] else None for i, stack in enumerate(tables.stacks)
    ]
    extra: list[tuple[MessageStep, Tensor]] = []
    for step, kept in zip(reversed(steps), reversed(sent), strict=True):
        rows = kept.total.shape[1]
        slope = _stack(
            [
                _sum_rows(by_node[target], rows, None if source in receiving else index[source])
                for source, target in zip(step.sources, step.targets, strict=True)
            ]
        )
        ratio = slope / kept.total
        if kept.redone is not None:
            ratio.masked_fill_(kept.redone, 0.0)
        by_source = _product(ratio, _oriented(weights[step.stack], step)).mul_(kept.linear)
        if by_stack[step.stack] is not None:
            _put_product(by_stack[step.stack], step, ratio, kept.linear)
        if kept.redone is not None:
            more = _redone_gradients(kept, slope, _oriented(tables.stacks[step.stack], step), by_source)
            extra.append((step, more))
        for gradient, source in zip(by_source, step.sources, strict=True):
            by_node[source] = gradient
    if not tables.linear:
        for gradient, stack in zip(by_stack, weights, strict=True):
            if gradient is not None:
                gradient.mul_(stack)
    for step, more in extra:
        if by_stack[step.stack] is not None:
            for slot, gradient in zip(step.slots, more.mT if step.downward else more, strict=True):
                by_stack[step.stack][slot] += gradient
    by_scores = [
        None
        if gradient is None or score is None
        else _sum_rows(gradient, len(score), index[node] if node in receiving or node == ctx.root else None)
        for node, (gradient, score) in enumerate(zip(by_node, scores, strict=True))
    ]
    return [*by_scores, *by_stack]


def _buffer(i: int, stack: Tensor, steps: Sequence[MessageStep]) -> Tensor:
    """Memory for the gradient of a stack of tables; zeros if some edges carry no message."""
    used = sum(len(step.slots) for step in steps if step.stack == i)
    return torch.empty_like(stack) if used == stack.shape[0] else torch.zeros_like(stack)


def _put_product(buffer: Tensor, step: MessageStep, ratio: Tensor, linear: Tensor) -> None:
    """(G/S)ᵀe into the places of the step's tables."""
    left, right = (linear, ratio) if step.downward else (ratio, linear)
    if len(step.slots) == 1:
        torch.mm(left[0].mT, right[0], out=buffer[step.slots[0]])
    else:
        for slot, gradient in zip(step.slots, torch.bmm(left.mT, right), strict=True):
            buffer[slot] = gradient


def _redone_gradients(kept: Sent, slope: Tensor, logs: Tensor, by_source: Tensor) -> Tensor:
    """Gradients of the sums that were computed again: those by β_s are added, those by log M returned."""
    assert kept.redone is not None
    assert kept.relative is not None
    edge, row, state = (kept.redone & (slope != 0)).nonzero(as_tuple=True)
    by_table = torch.zeros_like(logs)
    for part in slices(len(edge), max(1, _EXACT_NUMBERS // logs.shape[-1])):
        e, r, s = edge[part], row[part], state[part]
        weights = torch.softmax(kept.relative[e, r] + logs[e, s], -1) * slope[e, r, s].unsqueeze(-1)
        by_source.index_put_((e, r), weights, accumulate=True)
        by_table.index_put_((e, s), weights, accumulate=True)
    return by_table


def _sum_rows(gradient: Tensor, rows: int, index: Int[Tensor, " r"] | None) -> Tensor:
    """The gradient of `rows` distinct rows, or of one row that all others share."""
    if index is not None:
        return gradient.new_zeros(rows, gradient.shape[-1]).index_add_(0, index, gradient)
    return gradient if gradient.shape[0] == rows else gradient.sum(0, keepdim=True)


def pass_both_ways(
    parents: Sequence[int], steps: Sequence[MessageStep], scores: Sequence[Any], tables: Tables
) -> tuple[list[Float[Tensor, "..."]], Float[Tensor, "..."]]:
    """The scores of every node plus the messages from all neighbours; and the shift of the root's.

    The message from a node to a child has everything that the node received but from that child. It is the
    sum of the other messages: the difference of the whole and the child's message would lose digits.

    Args:
        steps: to node 0, the root.
        scores: of every node, `(r, k)`, `(1, k)` or None; the root's hold log p(z_root).
    """
    heard: list[dict[int, Tensor]] = [{} if score is None else {-1: score} for score in scores]
    below: list[Any] = list(scores)
    shift, weights = scores[0].new_zeros(1, 1), tables.weights
    for step in steps:
        messages, top, _ = send(step, below, tables.stacks[step.stack], weights[step.stack])
        shift = shift + top.sum(0)
        for message, source, target in zip(messages, step.sources, step.targets, strict=True):
            heard[target][source] = message
            below[target] = message if below[target] is None else below[target] + message
    for step in _downward(parents, tables):
        outgoing: list[Any] = [None] * len(parents)
        for child in step.targets:
            others = [message for source, message in heard[parents[child]].items() if source != child]
            outgoing[child] = _total(others)
        messages, _, _ = send(step, outgoing, tables.stacks[step.stack], weights[step.stack])
        for message, child in zip(messages, step.targets, strict=True):
            heard[child][parents[child]] = message
    return [_total(list(messages.values())) for messages in heard], shift


def _total(messages: Sequence[Tensor]) -> Tensor:
    return sum(messages[1:], messages[0])


def _downward(parents: Sequence[int], tables: Tables) -> list[MessageStep]:
    """Messages from parents to children, level by level; children stand for both ends of their edges."""
    depth = [0] * len(parents)
    groups: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for node, parent in enumerate(parents):
        place = tables.places[node]
        if place is not None:
            depth[node] = depth[parent] + 1
            stack, slot = place
            groups.setdefault((depth[node], stack), []).append((node, slot))
    steps = []
    for (_, stack), edges in sorted(groups.items()):
        nodes, slots = [tuple(part) for part in zip(*edges, strict=True)]
        steps.append(MessageStep(nodes, nodes, stack, slots, downward=True, sharp=tables.sharp[stack]))
    return steps
