"""A linear model for every member of an ensemble, from which its network starts."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kdmkit.estimators.common.member_losses import MemberLoss
from kdmkit.nn import MLPEnsemble

# Ridge penalties relative to the curvature of the loss summed over rows, from the strongest to the weakest.
_RIDGES = (10.0, 1.0, 0.1, 0.01, 0.001)
# Steps with each penalty.
_STEPS = 8
# The penalty of the constants, relative to the others': matrices stay positive definite.
_FREE = 1e-9
# Answers that are computed at once.
_ANSWERS_AT_ONCE = 1 << 20
_TINY = 1e-30
# At most this many directions, those in which rows vary most.
_MOST_DIRECTIONS = 500


@torch.no_grad()
def start_linear(
    ensemble: MLPEnsemble,
    x: Float[Tensor, "n d"],
    y: Tensor,
    weights: Float[Tensor, " n"] | None,
    holds_out: Bool[Tensor, "n k"],
    loss: MemberLoss,
) -> None:
    """Sets the linear part of every member to a regression, for labels a logistic one, with a ridge penalty.

    A member's regression is fitted to the rows that it learns from.
    The penalty is that with the smallest loss of held-out rows. No linear part competes, too.

    Args:
        ensemble: its biases of the last layer are the first constants.
        x, y, weights: rows, targets, sample weights.
        holds_out: which members hold out a row.
        loss: of an answer.
    """
    rows, directions = _principal(x)
    w = torch.ones_like(rows[:, :1]) if weights is None else (weights / weights.mean()).to(rows).unsqueeze(1)
    problem = _Problem(rows, y, w, holds_out, loss)
    constants = ensemble.biases[-1].squeeze(1)
    best = problem.first(constants)
    least = problem.held_out_loss(best)
    for answers in problem.path(best):
        after = problem.held_out_loss(answers)
        if not after < least:
            break
        best, least = answers, after
    ensemble.linear.copy_(directions @ best[:, :-1].float())
    ensemble.biases[-1].copy_(best[:, -1:])


def _principal(x: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "n r1"], Float[Tensor, "d r"]]:
    """The rows along the directions in which they vary, with a last column of ones, and the directions."""
    n, d = x.shape
    if d <= min(n, _MOST_DIRECTIONS):
        directions = torch.eye(d, dtype=x.dtype, device=x.device)
    else:
        wide = x.double()
        values, vectors = torch.linalg.eigh(wide @ wide.mT if d > n else wide.mT @ wide)
        kept = values > 1e-9 * values[-1]
        vectors, values = vectors[:, kept][:, -_MOST_DIRECTIONS:], values[kept][-_MOST_DIRECTIONS:]
        directions = (wide.mT @ vectors / values.sqrt() if d > n else vectors).to(x.dtype)
    return torch.cat([x @ directions, x.new_ones(n, 1)], 1), directions


class _Problem:
    """Linear models of all members, `(k, r + 1, outputs)` with the constants last, and their losses."""

    def __init__(
        self,
        rows: Float[Tensor, "n r1"],
        y: Tensor,
        w: Float[Tensor, "n 1"],
        holds_out: Bool[Tensor, "n k"],
        loss: MemberLoss,
    ) -> None:
        self.rows, self.y, self.loss = rows, y, loss
        self.learned, self.held = torch.where(holds_out, 0, w), torch.where(holds_out, w, 0)
        self.w = w.squeeze(1)

    def first(self, constants: Float[Tensor, "k outputs"]) -> Float[Tensor, "k r1 outputs"]:
        """Models that are constant."""
        shape = len(constants), self.rows.shape[1], constants.shape[1]
        models = constants.new_zeros(shape, dtype=torch.float64)
        models[:, -1] = constants
        return models

    def held_out_loss(self, models: Float[Tensor, "k r1 outputs"]) -> float:
        """The loss of the mean answer of the members that hold out a row, mean over rows."""
        total = 0.0
        for part in self._blocks(models):
            held = self.held[part]
            share = held / held.sum(1, keepdim=True).clamp_min(_TINY)
            answers = (share.unsqueeze(-1) * _answers(self.rows[part], models)).sum(1)
            total += float(self.w[part] @ self.loss(answers, self.y[part]))
        return total / float(self.w.sum())

    def path(self, models: Float[Tensor, "k r1 outputs"]) -> Iterator[Float[Tensor, "k r1 outputs"]]:
        """Models with weaker and weaker penalties.

        A step minimises the quadratic function that bounds the loss from above (for logistic regression:
        Böhning's bound), with Nesterov's momentum.
        """
        curvature, weight = self.loss.curvature(models.shape[-1]), float(self.w.sum())
        squares = self._squares()
        penalised = torch.ones(squares.shape[-1], dtype=torch.float64, device=squares.device)
        penalised[-1] = _FREE
        for ridge in _RIDGES:
            penalty = curvature * ridge * weight * penalised
            factor = torch.linalg.cholesky(curvature * squares + penalty.diag())
            before = ahead = models
            for step in range(_STEPS):
                gradient = self._gradient(ahead) + penalty.unsqueeze(1) * ahead
                models = ahead - torch.cholesky_solve(gradient, factor)
                ahead = models + step / (step + 3) * (models - before)
                before = models
            yield models

    def _squares(self) -> Float[Tensor, "k r1 r1"]:
        """Σ w·x·xᵀ over the rows that a member learns from."""
        total = self.rows.mT @ (self.w.unsqueeze(1) * self.rows)
        held = []
        for w in self.held.mT:
            index = torch.nonzero(w).squeeze(1)
            part = self.rows[index]
            held.append(part.mT @ (w[index].unsqueeze(1) * part))
        return (total - torch.stack(held)).double()

    def _gradient(self, models: Float[Tensor, "k r1 outputs"]) -> Float[Tensor, "k r1 outputs"]:
        """The gradient of the loss of the rows that a member learns from."""
        k, r, outputs = models.shape
        total = self.rows.new_zeros(r, k * outputs)
        for part in self._blocks(models):
            rows = self.rows[part]
            _, slopes = self.loss.with_slopes(_answers(rows, models), self.y[part].unsqueeze(1))
            total.addmm_(rows.mT, (self.learned[part].unsqueeze(-1) * slopes).flatten(1))
        return total.view(r, k, outputs).movedim(1, 0).double()

    def _blocks(self, models: Tensor) -> Iterator[slice]:
        size = max(1, _ANSWERS_AT_ONCE // (models.shape[0] * models.shape[2]))
        return (slice(start, start + size) for start in range(0, len(self.rows), size))


def _answers(
    rows: Float[Tensor, "n r1"], models: Float[Tensor, "k r1 outputs"]
) -> Float[Tensor, "n k outputs"]:
    k, r, outputs = models.shape
    return (rows @ models.to(rows).movedim(0, 1).reshape(r, -1)).view(-1, k, outputs)
