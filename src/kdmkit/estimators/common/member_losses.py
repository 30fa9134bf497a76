"""Losses of the members of an ensemble, with their slopes."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor

# In standard deviations of the targets: larger errors count linearly instead of by their squares.
_DELTA = 3.0


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
        slopes = answers.softmax(-1)
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
