"""Losses of the members of an ensemble, and the linear models from which their networks start."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kdmkit.nn import MLPEnsemble

# In standard deviations of the targets: larger errors count linearly instead of by their squares.
_DELTA = 3.0
# Ridge penalties relative to the curvature of the loss summed over rows, from the strongest to the weakest.
_RIDGES = (10.0, 1.0, 0.1, 0.01, 0.001)
# Steps with each penalty, at most; those of a member end when no coefficient changes by more than this.
_STEPS, _LEAST_CHANGE = 8, 1e-7
# The penalty of the constants, relative to the others': matrices stay positive definite.
_FREE = 1e-9
# Answers that are computed at once.
_ANSWERS_AT_ONCE = 1 << 18
_TINY = 1e-30
# At most this many directions, those in which rows vary most.
_MOST_DIRECTIONS = 500


class MemberLoss(ABC):
    """From answers `(*lead, outputs)` and targets to one loss per answer, `(*lead)`."""

    @abstractmethod
    def __call__(self, answers: Float[Tensor, "*lead outputs"], y: Tensor) -> Float[Tensor, "*lead"]:
        """The losses; targets broadcast."""

    @abstractmethod
    def with_slopes(self, answers: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The losses and their derivatives by the answers."""

    @abstractmethod
    def curvature(self, outputs: int) -> float:
        """An upper bound of the second derivatives by the answers."""


class LabelLoss(MemberLoss):
    """−log softmax of the label."""

    def __call__(self, answers: Float[Tensor, "*lead n"], y: Tensor) -> Float[Tensor, "*lead"]:
        chosen = torch.take_along_dim(answers, y.unsqueeze(-1), -1).squeeze(-1)
        return answers.logsumexp(-1) - chosen

    def with_slopes(self, answers: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        labels = y.unsqueeze(-1).expand(*answers.shape[:-1], 1)
        # Along the last of several dimensions a softmax of few numbers is ten times slower on a CPU.
        slopes = answers.movedim(-1, 0).softmax(0).movedim(0, -1)
        chosen = slopes.gather(-1, labels)
        losses = -chosen.log().squeeze(-1)
        if bool((chosen == 0).any()):
            losses = self(answers, y)
        return losses, slopes.scatter_(-1, labels, chosen - 1)

    def curvature(self, outputs: int) -> float:
        return 0.5


class TargetError(MemberLoss):
    """Huber's loss, e² or 2δ|e| − δ² if |e| > δ: a few wild targets do not bend the trend."""

    def __call__(self, answers: Float[Tensor, "*lead outputs"], y: Tensor) -> Float[Tensor, "*lead"]:
        error = (answers - y).abs()
        inner = error.clamp_max(_DELTA)
        return (inner * (2 * error - inner)).mean(-1)

    def with_slopes(self, answers: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        error = answers - y
        inner = error.clamp(-_DELTA, _DELTA)
        return (inner * (2 * error - inner)).mean(-1), inner * (2 / answers.shape[-1])

    def curvature(self, outputs: int) -> float:
        return 2.0 / outputs


label_losses = LabelLoss()
target_errors = TargetError()


# ---- linear models


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
    w = torch.ones_like(rows[:, 0]) if weights is None else (weights / weights.mean()).to(rows)
    linear = LinearModels(rows, y, w, holds_out, loss, ensemble.biases[-1].squeeze(1))
    best, least = linear.constant, linear.held_out_loss(linear.constant)
    for ridge in _RIDGES:
        models = linear.with_penalty(ridge, best)
        after = linear.held_out_loss(models)
        if not after < least:
            break
        best, least = models, after
    ensemble.linear.copy_(directions @ best[:, :-1].to(directions))
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


class LinearModels:
    """Linear models of all members, `(k, r1, outputs)` with the constants last, and their losses.

    Models are on the CPU, where small systems of equations are solved without loading libraries of a GPU.

    Args:
        rows: with a last column of ones.
        y, w: targets and weights of the rows.
        holds_out: which members hold out a row.
        loss: of an answer.
        constants: of the models before any regression.
    """

    def __init__(
        self,
        rows: Float[Tensor, "n r1"],
        y: Tensor,
        w: Float[Tensor, " n"],
        holds_out: Bool[Tensor, "n k"],
        loss: MemberLoss,
        constants: Float[Tensor, "k outputs"],
    ) -> None:
        self.loss, self.weight = loss, float(w.sum())
        (k, outputs), r = constants.shape, rows.shape[1]
        self.constant = torch.zeros(k, r, outputs, dtype=torch.float64)
        self.constant[:, -1] = constants
        held = torch.where(holds_out, w.unsqueeze(1), 0)
        learned = torch.where(holds_out, 0, w.unsqueeze(1))
        size = max(1, _ANSWERS_AT_ONCE // (k * outputs))
        parts = [tensor.split(size) for tensor in (rows, y, w, learned, held)]
        self.blocks = list(zip(*parts, strict=True))
        # Σ w·x·xᵀ over the rows that a member learns from: over all less over those that it holds out.
        weighted = w.unsqueeze(1) * rows
        left_out = [member.nonzero().squeeze(1) for member in held.mT]
        squares = torch.stack([rows[index].mT @ weighted[index] for index in left_out])
        self.squares = (rows.mT @ weighted - squares).double().cpu()

    def held_out_loss(self, models: Float[Tensor, "k r1 outputs"]) -> float:
        """The loss of the mean answer of the members that hold out a row, mean over rows."""
        (k, r, outputs), total = models.shape, 0.0
        coefficients = models.to(self.blocks[0][0]).movedim(0, 1).reshape(r, -1)
        for rows, y, w, _, held in self.blocks:
            share = held / held.sum(1, keepdim=True).clamp_min(_TINY)
            answers = (rows @ coefficients).view(-1, k, outputs)
            total += float(w @ self.loss((share.unsqueeze(-1) * answers).sum(1), y))
        return total / self.weight

    def with_penalty(
        self, ridge: float, models: Float[Tensor, "k r1 outputs"]
    ) -> Float[Tensor, "k r1 outputs"]:
        """The models with the least penalised loss of the rows that they learn from, by steps from others.

        A step minimises the quadratic function that bounds the loss from above (for logistic regression:
        Böhning's bound), with Nesterov's momentum.
        """
        k, r, outputs = models.shape
        curvature = self.loss.curvature(outputs)
        penalty = self.squares.new_full((r,), curvature * ridge * self.weight)
        penalty[-1] *= _FREE
        factor = torch.linalg.cholesky(curvature * self.squares + penalty.diag())
        ahead = models
        moves = torch.ones_like(models[:, :1, :1], dtype=torch.bool)
        for step in range(_STEPS):
            coefficients = ahead.to(self.blocks[0][0]).movedim(0, 1).reshape(r, -1)
            gradient = torch.zeros_like(coefficients)
            for rows, y, _, learned, _ in self.blocks:
                answers = (rows @ coefficients).view(-1, k, outputs)
                _, slopes = self.loss.with_slopes(answers, y.unsqueeze(1))
                gradient.addmm_(rows.mT, (learned.unsqueeze(-1) * slopes).flatten(1))
            by_models = gradient.cpu().view(r, k, outputs).movedim(1, 0) + penalty.unsqueeze(1) * ahead
            change = torch.where(moves, ahead - torch.cholesky_solve(by_models, factor) - models, 0)
            models = models + change
            moves = change.abs().amax((1, 2), keepdim=True) > _LEAST_CHANGE
            if not bool(moves.any()):
                break
            ahead = models + step / (step + 3) * change
        return models
