"""Messages along a chain of states with one table for all steps: a hidden Markov model.

Messages are written into one tensor, step by step, without a graph: gradients follow from the posteriors of
states and of pairs of neighbours, which are computed for all steps at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from kdmkit._core.logspace import finite_max, log_normalize, safe_logsumexp

# Steps between two normalisations. The largest score of a step is 0, and tables have no entry below their
# floor: the messages cannot underflow in float64 in between.
_STRIDE = 16
# In place of a sum of 0.
_TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class ChainStates:
    """k states with c components each; m = k·c.

    Scores are log f̂(x_t | c_j) of every component less their maximum, `(steps, batch, m)`.

    Args:
        log_start: log p(z_1).
        table: p(z_t | z_{t−1}).
        log_within: log p(component | state).
    """

    log_start: Float[Tensor, " k"]
    table: Float[Tensor, "k k"]
    log_within: Float[Tensor, "k c"]

    def log_prob(self, scores: Float[Tensor, "t b m"], tops: Float[Tensor, "t b"]) -> Float[Tensor, " b"]:
        """log p of every sequence; `tops` are the maxima that scores lack."""
        of_states, rest = self._of_states(scores)
        return chain_log_prob(of_states, self.log_start, self.table.log()) + (tops + rest).sum(0)

    def step_log_prob(
        self, scores: Float[Tensor, "t b m"], tops: Float[Tensor, "t b"]
    ) -> Float[Tensor, "t b"]:
        """log p of every step given the steps before it."""
        of_states, rest = self._of_states(scores)
        ahead = self._filtered(of_states).roll(1, 0)
        ahead[1:] = ahead[1:] @ self.table.double()
        ahead[0] = self.log_start.double().exp()
        log_probs = (ahead * of_states.double().exp()).sum(-1).log()
        return (log_probs + tops + rest).to(tops.dtype)

    def filtered(self, scores: Float[Tensor, "t b m"]) -> Float[Tensor, "t b k"]:
        """p(z_t | steps 1 … t)."""
        return self._filtered(self._of_states(scores)[0])

    def smoothed(self, scores: Float[Tensor, "t b m"]) -> Float[Tensor, "t b k"]:
        """p(z_t | all steps)."""
        of_states, _ = self._of_states(scores)
        return smoothed_states(self._filtered(of_states), backward_messages(of_states, self.table))

    def ahead(self, last: Float[Tensor, "b k"], n_steps: int) -> Float[Tensor, "t b k"]:
        """p(z) of the steps after the last one."""
        table, states = self.table.double(), [last]
        for _ in range(n_steps):
            states.append(states[-1] @ table)
        return torch.stack(states[1:])

    def mixture(
        self, states: Float[Tensor, "t b k"], scores: Float[Tensor, "t b m"] | None
    ) -> Float[Tensor, "t b m"]:
        """Log-weights of components, given p(state) and, if something of the step is observed, its scores."""
        # Evidence of probability zero says nothing.
        is_possible = states.sum(-1, keepdim=True) > 0
        states = torch.where(is_possible, states, self.log_start.double().exp())
        within = self.log_within if scores is None else self._within(scores)
        return (states.log().unsqueeze(-1) + within).flatten(-2)

    # ---- draws of components

    def draw_ahead(
        self, first: Float[Tensor, "b k"], n_steps: int, generator: torch.Generator | None
    ) -> Int[Tensor, "t b"]:
        """Components of n steps, of which the first one has the states `first`."""
        states = draw_forward(first, self.table.double(), n_steps, generator)
        return self._chosen(states, self.log_within[states], generator)

    def draw_inside(
        self, scores: Float[Tensor, "t b m"], generator: torch.Generator | None
    ) -> Int[Tensor, "t b"]:
        """Components of all steps together, given what is observed."""
        states = draw_backward(self.filtered(scores), self.table.double(), generator)
        within = self._within(scores)
        index = states[..., None, None].expand(*states.shape, 1, within.shape[-1])
        return self._chosen(states, within.gather(-2, index).squeeze(-2), generator)

    def _chosen(
        self,
        states: Int[Tensor, "t b"],
        log_within: Float[Tensor, "t b c"],
        generator: torch.Generator | None,
    ) -> Int[Tensor, "t b"]:
        """One component of every state."""
        c = log_within.shape[-1]
        index = _one_of(log_within.double().exp().reshape(-1, c), generator)
        return index.reshape(states.shape) + states * c

    # ---- messages

    def _filtered(self, of_states: Float[Tensor, "t b k"]) -> Float[Tensor, "t b k"]:
        return filtered_states(of_states, self.log_start.exp(), self.table)[0]

    def _of_states(
        self, scores: Float[Tensor, "t b m"]
    ) -> tuple[Float[Tensor, "t b k"], Float[Tensor, "t b"] | float]:
        """Scores of states minus their maximum, and the maximum."""
        if self.log_within.shape[-1] == 1:
            return scores, 0.0
        of_states = safe_logsumexp(scores.unflatten(-1, self.log_within.shape) + self.log_within)
        top = finite_max(of_states).detach()
        return of_states - top, top.squeeze(-1)

    def _within(self, scores: Float[Tensor, "t b m"]) -> Float[Tensor, "t b k c"]:
        """log p(component | state, what is observed of the step)."""
        joint = scores.unflatten(-1, self.log_within.shape) + self.log_within
        is_possible = joint.isfinite().any(-1, keepdim=True)
        return log_normalize(torch.where(is_possible, joint, self.log_within))


def chain_log_prob(
    scores: Float[Tensor, "t b k"], log_start: Float[Tensor, " k"], log_table: Float[Tensor, "k k"]
) -> Float[Tensor, " b"]:
    """log Σ_z p(z_1) Π_t p(z_t | z_{t−1}) exp(scores_t(z_t)) of b chains of t steps.

    Args:
        scores: at most 0, with a maximum of 0 over the states of every step.
        log_start: log p(z_1).
        log_table: log p(z_t | z_{t−1}); entries above e^−18.
    """
    result: Tensor = _ChainLogProb.apply(scores, log_start, log_table)
    return result


def filtered_states(
    scores: Float[Tensor, "t b k"], start: Float[Tensor, " k"], table: Float[Tensor, "k k"]
) -> tuple[Float[Tensor, "t b k"], Float[Tensor, " b"]]:
    """p(z_t | steps 1 … t), and the logarithm of the whole sum, in float64.

    Args:
        scores: as in `chain_log_prob`.
        start, table: p(z_1) and p(z_t | z_{t−1}).
    """
    alpha = scores.double().exp()
    alpha[0] *= start.double()
    log_total = _propagate(alpha, table.double())
    return _shares(alpha), log_total


def backward_messages(scores: Float[Tensor, "t b k"], table: Float[Tensor, "k k"]) -> Float[Tensor, "t b k"]:
    """p(later steps | z_t) of every step up to a constant per step and chain, in float64."""
    # p(this and later steps | z_t) is a forward message from the end, along the transposed table.
    later, table = scores.double().exp().flip(0), table.double().mT.contiguous()
    _propagate(later, table)
    beta = torch.ones_like(later)
    torch.matmul(later[:-1], table, out=beta[1:])
    return _shares(beta).flip(0)


def smoothed_states(alpha: Float[Tensor, "t b k"], beta: Float[Tensor, "t b k"]) -> Float[Tensor, "t b k"]:
    """p(z_t | all steps)."""
    return _shares(alpha * beta)


def draw_forward(
    first: Float[Tensor, "b k"], table: Float[Tensor, "k k"], n: int, generator: torch.Generator | None
) -> Int[Tensor, "n b"]:
    """n states of b chains, of which `first` has the distribution of the first one."""
    states = [_one_of(first, generator)]
    for _ in range(n - 1):
        states.append(_one_of(table[states[-1]], generator))
    return torch.stack(states)


def draw_backward(
    alpha: Float[Tensor, "t b k"], table: Float[Tensor, "k k"], generator: torch.Generator | None
) -> Int[Tensor, "t b"]:
    """States of all steps together given all steps.

    Args:
        alpha: of `filtered_states`.
        table: p(z_t | z_{t−1}).
    """
    states = [_one_of(alpha[-1], generator)]
    reached = table.mT
    for t in range(len(alpha) - 2, -1, -1):
        states.append(_one_of(alpha[t] * reached[states[-1]], generator))
    return torch.stack(states[::-1])


def _one_of(weights: Float[Tensor, "b k"], generator: torch.Generator | None) -> Int[Tensor, " b"]:
    """One index for every row of weights, by inversion."""
    cumulative = weights.cumsum(-1)
    total = cumulative[:, -1:]
    uniform = torch.rand(len(weights), 1, dtype=weights.dtype, device=weights.device, generator=generator)
    index = torch.searchsorted(cumulative, uniform * total, right=True)
    return torch.minimum(index, (cumulative < total).sum(-1, keepdim=True)).squeeze(-1)


def _propagate(messages: Float[Tensor, "t b k"], table: Float[Tensor, "k k"]) -> Float[Tensor, " b"]:
    """Multiplies every row by (row before)·table, in place, and returns the logarithm of the last sum."""
    log_total = messages.new_zeros(messages.shape[1])
    last = len(messages) - 1
    multiply = _in_numpy(messages, table) if messages.device.type == "cpu" else _in_torch(messages, table)
    for t in range(0, last + 1, _STRIDE):
        for step in range(max(t, 1), min(t + _STRIDE, last + 1)):
            multiply(step)
        end = min(t + _STRIDE - 1, last)
        total = messages[end].sum(-1, keepdim=True)
        messages[end] /= total.clamp_min(_TINY)
        log_total += total.log().squeeze(-1)
    return log_total


def _in_torch(messages: Float[Tensor, "t b k"], table: Float[Tensor, "k k"]) -> Callable[[int], object]:
    return lambda t: messages[t].mul_(messages[t - 1] @ table)


def _in_numpy(messages: Float[Tensor, "t b k"], table: Float[Tensor, "k k"]) -> Callable[[int], object]:
    """One step: NumPy's calls take a third of the time of torch's, those for one chain the least."""
    alone = messages.shape[1] == 1
    rows = list((messages[:, 0] if alone else messages).numpy())
    factor, product = table.numpy(), np.empty_like(rows[0])
    dot: Any = np.dot if alone else np.matmul

    def multiply(t: int) -> None:
        dot(rows[t - 1], factor, product)
        np.multiply(rows[t], product, rows[t])

    return multiply


def _shares(messages: Float[Tensor, "t b k"]) -> Float[Tensor, "t b k"]:
    """Divided by their sums, in place; 0 for evidence of probability zero."""
    return messages.div_(messages.sum(-1, keepdim=True).clamp_min(_TINY))


class _ChainLogProb(torch.autograd.Function):
    """`chain_log_prob`: its gradients are posterior probabilities of states and of pairs of neighbours."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, log_start: Tensor, log_table: Tensor) -> Tensor:
        alpha = scores.to(torch.float64, copy=True).exp_()
        alpha[0] *= log_start.double().exp()
        log_total = _propagate(alpha, log_table.double().exp())
        ctx.save_for_backward(scores, log_start, log_table, alpha)
        return log_total.to(scores.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores, log_start, log_table, alpha = ctx.saved_tensors
        table = log_table.double().exp()
        # p(this and later steps | z_t), up to a constant per step, and the same of the steps after t.
        later = scores.flip(0).double().exp_()
        _propagate(later, table.mT.contiguous())
        later = later.flip(0)
        beta = torch.ones_like(alpha)
        torch.matmul(later[1:], table.mT, out=beta[:-1])
        gamma = beta.mul_(alpha)
        share = gradient.double().unsqueeze(-1) / gamma.sum(-1, keepdim=True).clamp_min_(_TINY)
        gamma *= share
        # p(z_t, z_{t+1} | all steps) = α_t·table·later_{t+1} over its sum, which is that of α_t·β_t.
        pairs = (alpha[:-1] * share[:-1]).flatten(0, 1).mT @ later[1:].flatten(0, 1)
        dtype = scores.dtype
        return gamma.to(dtype), gamma[0].sum(0).to(log_start.dtype), (pairs * table).to(log_table.dtype)
