"""Sums of products over a tree, with explicit gradients: one matrix product per edge and direction.

A message from node s to node t is μ_i = log Σ_j M_ij exp(β_j). The largest β_j is taken out, so that the
exponentials e_j have the maximum 1 and the sum S = e Mᵀ is at least M_{i, argmax β}. Where no entry of M is
below `smallest_sum`, nothing underflows. Elsewhere (row, state) pairs whose sum underflows are computed again
as a logsumexp.

With G = ∂L/∂β_t the gradients are ∂L/∂log M = M ∘ (G/S)ᵀe and ∂L/∂β_s = e ∘ ((G/S) M).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kdmkit._core.logspace import exp_, finite_max, safe_logsumexp
from kdmkit._core.precision import full_precision
from kdmkit.ops.blocks import slices
from kdmkit.ops.messages.plain import collect_plainly
from kdmkit.ops.messages.schedule import Step
from kdmkit.ops.messages.tables import smallest_sum

# Numbers that exist at once where sums are computed again.
_EXACT_NUMBERS = 1 << 22


@dataclass
class Sent:
    """What the backward pass of one step needs.

    Args:
        linear: e = exp(β_s − max), `(n, r, k_source)`.
        total: S, `(n, r, k_target)`; never 0.
        relative: β_s − max, where sums were computed again.
        redone: which sums were computed again.
    """

    linear: Float[Tensor, "n r k_source"]
    total: Float[Tensor, "n r k_target"]
    relative: Float[Tensor, "n r k_source"] | None = None
    redone: Bool[Tensor, "n r k_target"] | None = None


def pass_messages(
    steps: Sequence[Step],
    scores: Sequence[Float[Tensor, "..."] | None],
    logs: Sequence[Float[Tensor, "..."]],
    probs: Sequence[Float[Tensor, "..."]],
    sent: list[Sent] | None = None,
) -> tuple[list[Any], Float[Tensor, "r 1"] | float]:
    """β of every node, the scores plus all messages to it, and what was taken out of the messages.

    Args:
        sent: a list that gets what the backward pass needs.
    """
    beta: list[Any] = list(scores)
    shift: Tensor | float = 0.0
    own = set()
    for step in steps:
        messages, top, kept = send(step, beta, logs[step.stack], probs[step.stack])
        shift = shift + top.sum(0)
        for message, target in zip(messages, step.targets, strict=True):
            if beta[target] is None:
                beta[target] = message
            elif target in own and beta[target].shape == message.shape:
                beta[target].add_(message)
                continue
            else:
                beta[target] = beta[target] + message
            own.add(target)
        if sent is not None:
            sent.append(kept)
    return beta, shift


def send(step: Step, beta: Sequence[Any], logs: Tensor, probs: Tensor) -> tuple[Tensor, Tensor, Sent]:
    """Messages of one step, what was taken out of each, and what the backward pass needs."""
    b = _stack([beta[source] for source in step.sources])
    top = finite_max(b)
    relative = b - top
    linear = exp_(relative.clone() if step.sharp else relative)
    total = _product(linear, _oriented(probs, step).mT)
    messages = total.log()
    kept = Sent(linear, total)
    if step.sharp:
        low = total < smallest_sum(total.dtype)
        if bool(low.any()):
            messages[low] = _log_sums(relative, _oriented(logs, step), low)
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


def _oriented(tables: Float[Tensor, "n k_parent k"], step: Step) -> Float[Tensor, "g k_target k_source"]:
    chosen = tables[_places(step)]
    return chosen.mT if step.downward else chosen


def _places(step: Step) -> Any:
    """An index of the step's tables: a slice where they follow each other, which copies nothing."""
    first, n = step.slots[0], len(step.slots)
    return slice(first, first + n) if step.slots == tuple(range(first, first + n)) else list(step.slots)


def _log_sums(relative: Tensor, logs: Tensor, low: Tensor) -> Float[Tensor, " pairs"]:
    """log Σ_j exp(relative_j + log M_ij) of chosen pairs, in blocks."""
    edge, row, state = low.nonzero(as_tuple=True)
    found = relative.new_empty(len(edge))
    for part in slices(len(edge), max(1, _EXACT_NUMBERS // relative.shape[-1])):
        found[part] = safe_logsumexp(relative[edge[part], row[part]] + logs[edge[part], state[part]])
    return found


class Collect(torch.autograd.Function):
    """(steps, root, n_scores, *scores, *logs) → β of the root, and what was taken out, without gradient."""

    @staticmethod
    def forward(ctx: Any, steps: Sequence[Step], root: int, n_scores: int, *tensors: Any) -> Any:
        scores, logs = tensors[:n_scores], tensors[n_scores:]
        probs = [stack.exp() for stack in logs]
        sent: list[Sent] = []
        beta, shift = pass_messages(steps, scores, logs, probs, sent)
        ctx.steps, ctx.root, ctx.n_scores, ctx.n_logs = steps, root, n_scores, len(logs)
        kept = [part for one in sent for part in (one.linear, one.total, one.relative, one.redone)]
        ctx.save_for_backward(*tensors, *probs, *kept)
        taken_out = shift if isinstance(shift, Tensor) else beta[root].new_zeros(1, 1)
        ctx.mark_non_differentiable(taken_out)
        # A tree of one node: an output must not be an input.
        return beta[root] if steps else beta[root].clone(), taken_out

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, _: Any) -> Any:
        n, n_logs = ctx.n_scores, ctx.n_logs
        saved = ctx.saved_tensors
        scores, logs, probs = saved[:n], saved[n : n + n_logs], saved[n + n_logs : n + 2 * n_logs]
        needs = ctx.needs_input_grad[3:]
        if torch.is_grad_enabled():
            found = _differentiable_gradients(ctx.steps, ctx.root, scores, logs, needs, upstream)
            return None, None, None, *found
        kept = saved[n + 2 * n_logs :]
        sent = [Sent(*kept[i : i + 4]) for i in range(0, len(kept), 4)]
        with full_precision(upstream.device.type):
            by_score, by_log = _gradients(ctx.steps, ctx.root, scores, logs, probs, sent, needs[n:], upstream)
        return None, None, None, *by_score, *by_log


def _gradients(
    steps: Sequence[Step],
    root: int,
    scores: Sequence[Any],
    logs: Sequence[Tensor],
    probs: Sequence[Tensor],
    sent: Sequence[Sent],
    needs_logs: Sequence[bool],
    upstream: Tensor,
) -> tuple[list[Any], list[Any]]:
    by_node: list[Any] = [None] * len(scores)
    by_node[root] = upstream
    by_log: list[Any] = [_buffer(i, stack, steps) if needs_logs[i] else None for i, stack in enumerate(logs)]
    extra: list[tuple[Step, Tensor]] = []
    for step, kept in zip(reversed(steps), reversed(sent), strict=True):
        rows = kept.total.shape[1]
        slope = _stack([_sum_rows(by_node[target], rows) for target in step.targets])
        ratio = slope / kept.total
        if kept.redone is not None:
            ratio.masked_fill_(kept.redone, 0.0)
        by_source = _product(ratio, _oriented(probs[step.stack], step)).mul_(kept.linear)
        if by_log[step.stack] is not None:
            _put_product(by_log[step.stack], step, ratio, kept.linear)
        if kept.redone is not None:
            more = _redone_gradients(kept, slope, _oriented(logs[step.stack], step), by_source)
            extra.append((step, more))
        for gradient, source in zip(by_source, step.sources, strict=True):
            by_node[source] = gradient
    for gradient, stack in zip(by_log, probs, strict=True):
        if gradient is not None:
            gradient.mul_(stack)
    for step, more in extra:
        if by_log[step.stack] is not None:
            by_log[step.stack][_places(step)] += more.mT if step.downward else more
    return [_sum_to(gradient, score) for gradient, score in zip(by_node, scores, strict=True)], by_log


def _buffer(i: int, stack: Tensor, steps: Sequence[Step]) -> Tensor:
    """Room for the gradient of a stack of tables; zeros where some edges carry no message."""
    used = sum(len(step.slots) for step in steps if step.stack == i)
    return torch.empty_like(stack) if used == stack.shape[0] else torch.zeros_like(stack)


def _put_product(buffer: Tensor, step: Step, ratio: Tensor, linear: Tensor) -> None:
    """(G/S)ᵀe into the places of the step's tables."""
    left, right = (linear, ratio) if step.downward else (ratio, linear)
    if len(step.slots) == 1:
        torch.mm(left[0].mT, right[0], out=buffer[step.slots[0]])
    else:
        buffer[_places(step)] = torch.bmm(left.mT, right)


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


def _sum_rows(gradient: Tensor, rows: int) -> Tensor:
    """The gradient of a message that `rows` rows share."""
    return gradient if gradient.shape[0] == rows else gradient.sum(0, keepdim=True)


def _sum_to(gradient: Any, like: Any) -> Any:
    return None if gradient is None or like is None else _sum_rows(gradient, like.shape[0])


def _differentiable_gradients(
    steps: Sequence[Step],
    root: int,
    scores: Sequence[Any],
    logs: Sequence[Tensor],
    needs: Sequence[bool],
    upstream: Tensor,
) -> list[Any]:
    """Gradients that can be differentiated again."""
    inputs = [*scores, *logs]
    wanted = [i for i, need in enumerate(needs) if need]
    beta, _ = collect_plainly(steps, root, scores, logs)
    found = torch.autograd.grad(
        beta, [inputs[i] for i in wanted], upstream, create_graph=True, allow_unused=True
    )
    gradients = dict(zip(wanted, found, strict=True))
    return [gradients.get(i) for i in range(len(inputs))]
