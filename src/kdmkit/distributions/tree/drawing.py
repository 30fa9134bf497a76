"""Draws of the states of all nodes together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit._core.checks import check_generator
from kdmkit._core.logspace import log_normalize
from kdmkit._core.tensors import broadcast
from kdmkit.distributions.evidence import with_rank
from kdmkit.distributions.sampling import choose
from kdmkit.distributions.tree.condition import Conditioned
from kdmkit.distributions.tree.states import Scores, States, possible
from kdmkit.ops.blocks import slices

# Log-weights that exist at once.
_NUMBERS = 1 << 22


def draw_states(
    tree: States | Conditioned, n: int, generator: torch.Generator | None
) -> list[Int[Tensor, "n *batch"]]:
    """n states of every node for every element of the batch: exact draws from the joint distribution."""
    check_generator(generator)
    with torch.no_grad():
        if isinstance(tree, States) and not tree.batch_shape:
            return _draw_prior(tree, n, generator)
        if isinstance(tree, Conditioned) and tree.pieces.log_weights is None and not tree.states.batch_shape:
            return _draw_blocks(tree, n, generator)
        return _draw_rows(tree, n, generator)


def _draw_prior(states: States, n: int, generator: torch.Generator | None) -> list[Int[Tensor, " n"]]:
    drawn = [choose(states.log_root, n, generator)]
    for node, parent in enumerate(states.topology.parents):
        if node:
            drawn.append(_choose_given(states.tables.log_table(node), drawn[parent], generator))
    return drawn


def _choose_given(
    log_table: Float[Tensor, "k_parent k"], parent: Int[Tensor, " n"], generator: torch.Generator | None
) -> Int[Tensor, " n"]:
    """One state for each state of the parent, by inversion of the rows' cumulative weights."""
    cumulative = log_table.double().exp().cumsum(-1)
    total = cumulative[:, -1:]
    last = (cumulative < total).sum(-1)
    k = cumulative.shape[-1]
    # All rows in one increasing sequence: row i lies between i and i + 1.
    offset = torch.arange(len(cumulative), dtype=torch.float64, device=cumulative.device)
    sequence = (cumulative / total + offset.unsqueeze(-1)).flatten()
    uniform = torch.rand(parent.shape, dtype=torch.float64, device=parent.device, generator=generator)
    index = torch.searchsorted(sequence, uniform + offset[parent], right=True) - k * parent
    return torch.minimum(index.clamp_min(0), last[parent])


def _draw_blocks(
    tree: Conditioned, n: int, generator: torch.Generator | None
) -> list[Int[Tensor, "n *batch"]]:
    """Draws given one piece of evidence, with messages for one block of rows after the other."""
    batch = tree.batch_shape

    def draw(scores: Scores, _: Any) -> tuple[Tensor, ...]:
        lead = broadcast(*[score.shape[:-1] for score in scores if score is not None])
        messages = _as_rows(tree.states.messages(possible(tree.states, scores)))
        row = torch.arange(lead.numel(), device=tree.states.log_root.device).repeat(n)
        drawn = _draw_given(tree.states, messages, row, row, torch.Size([lead.numel()]), generator)
        return tuple(state.reshape(n, -1).mT.reshape(*lead, n) for state in drawn)

    return [state.squeeze(0).movedim(-1, 0).expand(n, *batch) for state in tree.in_blocks(draw)]


def _draw_rows(
    tree: States | Conditioned, n: int, generator: torch.Generator | None
) -> list[Int[Tensor, "n *batch"]]:
    """Draws one by one, each with the weights of its element of the batch."""
    states = tree.states if isinstance(tree, Conditioned) else tree
    batch, size = tree.batch_shape, tree.batch_shape.numel()
    element = torch.arange(size, device=states.log_root.device).repeat(n)
    messages: list[Tensor | None] = [None] * len(states.topology.nodes)
    row = element
    if isinstance(tree, Conditioned):
        messages, row = _messages(tree), element + size * _choose_pieces(tree, n, generator)
    drawn = _draw_given(states, messages, row, element, batch, generator)
    return [state.reshape(n, *batch) for state in drawn]


def _draw_given(
    states: States,
    messages: Sequence[Tensor | None],
    row: Int[Tensor, " r"],
    element: Int[Tensor, " r"],
    batch: torch.Size,
    generator: torch.Generator | None,
) -> list[Int[Tensor, " r"]]:
    """One state of every node for every draw, from the root on.

    Args:
        messages: for every node, those from below; one row for all draws, or many.
        row: which row of the messages each draw has.
        element: which element of the batch each draw belongs to.
    """
    drawn: list[list[Tensor]] = [[] for _ in messages]
    for part in slices(len(element), max(1, _NUMBERS // max(states.sizes))):
        one: list[Tensor] = []
        for node, parent in enumerate(states.topology.parents):
            above = one[parent] if node else None
            log_weights = _prior_rows(states, node, above, element[part], batch)
            message = messages[node]
            if message is not None:
                log_weights = log_weights + (message if len(message) == 1 else message[row[part]])
            one.append(choose(log_normalize(log_weights), 1, generator).squeeze(0))
            drawn[node].append(one[-1])
    return [torch.cat(parts) for parts in drawn]


def _prior_rows(
    states: States, node: int, above: Tensor | None, element: Tensor, batch: torch.Size
) -> Float[Tensor, "r k"]:
    """log p(z_node | z_parent) for chosen elements of the batch and states of the parent."""
    table = states.log_root.unsqueeze(-2) if above is None else states.tables.log_table(node)
    state = torch.zeros_like(element) if above is None else above
    if table.ndim == 2:
        return table[state]
    return table.expand(*batch, *table.shape[-2:]).reshape(-1, *table.shape[-2:])[element, state]


def _choose_pieces(tree: Conditioned, n: int, generator: torch.Generator | None) -> Int[Tensor, "..."]:
    """The piece of the evidence that each draw is given."""
    weights = tree.pieces.log_weights
    if weights is None:
        return torch.zeros((), dtype=torch.long, device=tree.states.log_root.device)
    return choose(weights.expand(*tree.batch_shape, weights.shape[-1]), n, generator).flatten()


def _messages(tree: Conditioned) -> list[Float[Tensor, "..."] | None]:
    """log p(evidence below a node | z) of every node: one row, or a row per piece and batch element."""
    pieces = tree.pieces.log_weights
    lead = (1 if pieces is None else pieces.shape[-1], *tree.batch_shape)
    rank = len(lead) + 1
    factors = [None if f is None else with_rank(f, rank).expand(*lead, f.shape[-1]) for f in tree.factors]
    return _as_rows(tree.states.messages(factors))


def _as_rows(messages: Sequence[Tensor | None]) -> list[Float[Tensor, "r k"] | None]:
    return [None if message is None else message.reshape(-1, message.shape[-1]) for message in messages]
