"""Cross-fitting: an ensemble of networks, of which every row has members that have not seen it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument, check_count, check_flag, in_memory
from kdmkit.estimators.common.effort import count_members, effort_of, patience_of
from kdmkit.estimators.common.member_losses import MemberLoss, start_linear
from kdmkit.nn import MLPEnsemble
from kdmkit.nn.predictor import BLOCK
from kdmkit.training import Rows

# The number of members that hold out each row: two, so that their difference shows how much members vary.
HOLDERS = 2
# Below this many rows there is nothing to hold out.
_FEWEST_ROWS = 8
# Weight decay, chosen by held-out errors on training rows: docs/decisions.md.
_DECAY = 1e-2
# EMA decay of the weights.
_AVERAGE_DECAY = 0.995
_EPOCHS = 300
# If targets are mostly noise, the best of many epochs is a little better by chance only.
_MIN_IMPROVEMENT = 0.01


class CrossFitting(nn.Module):
    """Every member learns from the rows that it does not hold out, and is validated on its held-out rows.

    In training, a row's loss is the mean loss of the members that learn from it. In evaluation, it is the
    loss of the mean answer of the members that hold it out, with exponentially averaged weights.
    """

    n_steps: Tensor
    writes_gradients = True

    def __init__(self, ensemble: MLPEnsemble, loss: MemberLoss) -> None:
        super().__init__()
        self.ensemble, self.loss = ensemble, loss
        self.averaged = copy.deepcopy(ensemble).requires_grad_(False)
        self.register_buffer("n_steps", torch.tensor(0))
        # To walk through the modules takes as long as to move the averages.
        self._averages: list[Tensor] = list(self.averaged.parameters())
        self._values: list[Tensor] = list(self.ensemble.parameters())

    def forward(
        self, x: Float[Tensor, "n d"], y: Tensor, holds_out: Bool[Tensor, "n k"]
    ) -> Float[Tensor, " n"]:
        if not self.training:
            return self.loss(held_out_mean(self.averaged, x, holds_out), y)
        self.move_average(on_device=x.device.type != "cpu")
        losses = self.loss(self.ensemble(x), y.unsqueeze(1))
        return mean_over(losses.unsqueeze(-1), ~holds_out).squeeze(-1)

    def with_gradients(
        self, x: Float[Tensor, "n d"], y: Tensor, holds_out: Bool[Tensor, "n k"], share: Float[Tensor, " n"]
    ) -> tuple[Float[Tensor, " n"], tuple[Tensor, ...]]:
        """The losses of a step, and the gradients of Σ_i share_i·loss_i by the ensemble's parameters."""
        self.move_average(on_device=False)
        answers, saved = self.ensemble.answers_of_step(x)
        losses, slopes = self.loss.with_slopes(answers, y.unsqueeze(1))
        # As many members learn from every row.
        learns = (~holds_out).to(losses.dtype) / (holds_out.shape[1] - HOLDERS)
        by_answers = (learns * share.unsqueeze(1)).unsqueeze(-1) * slopes
        return (learns * losses).sum(1), self.ensemble.gradients_of_step(by_answers, saved)

    @torch.no_grad()
    def move_average(self, *, on_device: bool) -> None:
        """Moves exponential means, whose decay starts lower: the first values count less.

        Args:
            on_device: whether not to read the number of steps, which would wait for a device.
        """
        averages, values = self._averages, self._values
        if on_device:
            changes = list(torch._foreach_sub(values, averages))
            decay = (self.n_steps / (self.n_steps + 10)).clamp_max(_AVERAGE_DECAY)
            torch._foreach_mul_(changes, 1 - decay)
            torch._foreach_add_(averages, changes)
        else:
            count = int(self.n_steps)
            torch._foreach_lerp_(averages, values, 1 - min(_AVERAGE_DECAY, count / (count + 10)))
        self.n_steps += 1


def held_out_mean(
    ensemble: MLPEnsemble, x: Float[Tensor, "n d"], holds_out: Bool[Tensor, "n k"]
) -> Float[Tensor, "n outputs"]:
    """The mean answer of the members that hold out a row."""
    if x.device.type != "cpu":
        # To find the rows of a member would wait for the device.
        return mean_over(ensemble(x), holds_out)
    members, rows = holds_out.mT.nonzero(as_tuple=True)
    counts = holds_out.sum(0)
    places = torch.arange(len(rows)) - (counts.cumsum(0) - counts)[members]
    # Row 0 fills up the members that hold out fewer rows.
    index = rows.new_zeros(ensemble.n_members, int(counts.max()))
    index[members, places] = rows
    answers = ensemble.of_members(x[index])[members, places]
    total = answers.new_zeros(len(x), answers.shape[1]).index_add_(0, rows, answers)
    return total / holds_out.sum(1, keepdim=True)


def mean_over(values: Float[Tensor, "n k outputs"], members: Bool[Tensor, "n k"]) -> Tensor:
    """The mean over the chosen members of every row."""
    chosen = members.to(values.dtype)
    return ((chosen / chosen.sum(1, keepdim=True)).unsqueeze(-1) * values).sum(1)


@dataclass(frozen=True)
class FittedEnsemble:
    """An ensemble, its answers at the rows of the fit, and which members hold out each row."""

    ensemble: MLPEnsemble
    answers: Float[Tensor, "n k outputs"]
    holds_out: Bool[Tensor, "n k"]
    history: list[dict[str, float]]

    @property
    def held_out_mean(self) -> Float[Tensor, "n outputs"]:
        """The mean answer of the members that have not seen the row."""
        return mean_over(self.answers, self.holds_out)


def fit_ensemble(
    x: Float[Tensor, "n d"],
    y: Tensor,
    weights: Float[Tensor, " n"] | None,
    *,
    start: Float[Tensor, " outputs"],
    n_members: int,
    hidden: list[int],
    loss: MemberLoss,
    labels: Int[Tensor, " n"] | None = None,
    generator: torch.Generator,
    run: Callable[..., list[dict[str, float]]],
) -> FittedEnsemble:
    """Fits an ensemble whose members each hold out a part of the rows.

    The ensemble lies on the CPU, its answers on the device of the rows.

    Args:
        x, y, weights: rows, targets, sample weights.
        start: the answer of every member before training.
        n_members: K; every row is held out by two members.
        hidden: the widths of a member's layers.
        loss: of an answer.
        labels: if given, all parts have the same label proportions.
        generator: chooses the parts; its seed also chooses the first weights.
        run: minimises an objective: takes it, rows to train on and rows to validate on.
    """
    with in_memory("n_members", n_members):
        first = _first_ensemble([x.shape[1], *hidden, len(start)], n_members, start, generator)
        first = first.to(x.device)
        holds_out = held_out(len(x), n_members, generator, labels, x.device)
        start_linear(first, x, y, weights, holds_out, loss)
    rows = Rows((x, y, holds_out), None if weights is None else weights.float())
    objective = CrossFitting(first, loss)
    settings = {"weight_decay": _DECAY, "min_improvement": _MIN_IMPROVEMENT, "keep_start": True}
    history = run(objective, rows, rows, **settings)
    ensemble = objective.averaged.eval().to(x.device)
    with torch.no_grad():
        answers = torch.cat([ensemble(part) for part in x.split(BLOCK)])
    return FittedEnsemble(ensemble.cpu(), answers, holds_out, history)


def _first_ensemble(
    sizes: list[int], n_members: int, start: Float[Tensor, " outputs"], generator: torch.Generator
) -> MLPEnsemble:
    # From the seed again: the first weights do not depend on the number of rows.
    of_weights = torch.Generator().manual_seed(generator.initial_seed())
    ensemble = MLPEnsemble(sizes, n_members=n_members, generator=of_weights)
    with torch.no_grad():
        ensemble.biases[-1].copy_(start)
    return ensemble


def held_out(
    n: int,
    n_members: int,
    generator: torch.Generator,
    labels: Int[Tensor, " n"] | None = None,
    device: torch.device | None = None,
) -> Bool[Tensor, "n k"]:
    """Which members hold out a row: rows fall into K parts, and each member holds out two of them.

    >>> held_out(6, 3, torch.Generator().manual_seed(0)).sum(1)
    tensor([2, 2, 2, 2, 2, 2])
    """
    place = torch.randperm(n, generator=generator).to(device)
    if labels is not None:
        place = (labels * n + place).argsort().argsort()
    members = torch.arange(n_members, device=place.device)
    return (place.unsqueeze(1) - members) % n_members < HOLDERS


# ---- trends of estimators


def check_trend(estimator: Any) -> None:
    """Checks the parameters of an estimator that has a trend."""
    if estimator.trend not in ("auto", "mlp", None):
        raise ValueError(bad_argument("trend", "'auto', 'mlp' or None", repr(estimator.trend)))
    if estimator.trend == "mlp" and estimator.encoder is not None:
        raise ValueError(bad_argument("trend", "'auto' or None beside an encoder", "'mlp'"))
    if not isinstance(estimator.n_components, str) or estimator.n_components != "auto":
        check_count("n_components", estimator.n_components, "a whole number ≥ 1 or 'auto'")
    effort_of(estimator)
    if not isinstance(estimator.n_members, str) or estimator.n_members != "auto":
        wanted = f"a whole number > {HOLDERS} or 'auto'"
        check_count("n_members", estimator.n_members, wanted, least=HOLDERS + 1)
    check_flag("memory", estimator.memory)


def has_trend(estimator: Any, y: Tensor) -> bool:
    """Whether a trend is wanted and possible: few rows leave none to hold out; constants need none."""
    wanted = estimator.trend is not None and estimator.encoder is None
    return wanted and len(y) >= _FEWEST_ROWS and bool((y != y[0]).any())


def trend_options(estimator: Any, n: int, **changes: Any) -> dict[str, Any]:
    """Keyword arguments of `fit_ensemble` for an estimator's trend of n rows.

    Args:
        changes: settings of the training that differ from the estimator's.
    """
    effort = effort_of(estimator)
    batch = _trend_batch(n) if estimator.batch_size == "auto" else int(estimator.batch_size)
    automatic = estimator.max_epochs == "auto"
    epochs = _trend_epochs(n, batch, effort.steps) if automatic else int(estimator.max_epochs)
    patience = patience_of(estimator, math.ceil(n / batch))
    folder = None if estimator.checkpoint_dir is None else Path(estimator.checkpoint_dir) / "trend"
    settings = {
        "batch_size": batch,
        "max_epochs": epochs,
        "patience": patience,
        "schedule": "constant",
        "checkpoint_dir": folder,
    }
    return {
        "n_members": count_members(estimator),
        "hidden": effort.hidden(n),
        "generator": estimator._torch_generator(),
        "run": partial(estimator._run, description="trend", **settings, **changes),
    }


def _trend_batch(n: int) -> int:
    """A thirty-second of the rows, between 64 and 512; of few rows a quarter, 16 at least.

    >>> [_trend_batch(n) for n in (40, 100, 1000, 10_000)]
    [16, 25, 64, 312]
    """
    return max(16, min(64, n // 4), min(512, n // 32))


def _trend_epochs(n: int, batch: int, steps: int) -> int:
    """300 passes at most, and no more than a number of steps."""
    return max(1, min(_EPOCHS, steps // math.ceil(n / batch)))
