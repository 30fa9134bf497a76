"""What a fit is given: the rows that it learns from, and its settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit._core.checks import (
    bad_argument,
    check_choice,
    check_count,
    check_finite,
    check_number,
    check_path,
)

Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["no", "bf16", "fp16"]
Schedule = Literal["one-cycle", "cosine", "constant"]


@dataclass(frozen=True)
class Rows:
    """Tensors with one entry per sample, and a weight for each (None: 1).

    Args:
        tensors: the arguments of an objective.
        weights: of the entries.
        sizes: the number of data rows that an entry stands for, for example those of a bag (None: 1). Noise
            is drawn per data row.

    >>> rows = Rows((torch.zeros(3, 2), torch.tensor([0, 1, 1])), weights=torch.tensor([1.0, 1.0, 2.0]))
    >>> len(rows)
    3
    """

    tensors: tuple[Tensor, ...]
    weights: Float[Tensor, " n"] | None = None
    sizes: Int[Tensor, " n"] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.tensors, Sequence) or not all(map(torch.is_tensor, self.tensors)):
            raise TypeError(bad_argument("rows", "a tuple of tensors", type(self.tensors).__name__))
        lengths = set(map(len, self.tensors))
        if len(lengths) != 1 or 0 in lengths:
            wanted = "one or more rows, as many in every tensor"
            raise ValueError(bad_argument("rows", wanted, sorted(lengths)))
        if self.weights is not None:
            self._check_weights(self.weights)

    def _check_weights(self, weights: Tensor) -> None:
        if weights.shape != (len(self),):
            raise ValueError(bad_argument("weights", f"shape ({len(self)},)", tuple(weights.shape)))
        check_finite("weights", weights)
        if bool((weights < 0).any()) or not bool((weights > 0).any()):
            wanted = "non-negative values, at least one of them positive"
            raise ValueError(bad_argument("weights", wanted, f"a smallest value of {float(weights.min()):g}"))

    def __len__(self) -> int:
        return len(self.tensors[0])

    def to(self, device: torch.device) -> Rows:
        """The same rows on a device."""
        others = [None if part is None else part.to(device) for part in (self.weights, self.sizes)]
        return Rows(tuple(tensor.to(device) for tensor in self.tensors), *others)

    def take(self, index: Tensor) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """The tensors and weights of some rows."""
        weights = None if self.weights is None else self.weights[index]
        return tuple(map(itemgetter(index), self.tensors)), weights

    @property
    def weight(self) -> float:
        """The sum of all weights."""
        return float(len(self) if self.weights is None else self.weights.double().sum())


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """Settings of the training loop.

    Args:
        max_epochs: passes over the data at most.
        batch_size: rows per step, over all processes together.
        learning_rate: the schedule's peak.
        betas: of AdamW.
        schedule: `"one-cycle"` (a short warm-up, then down to almost zero), `"cosine"`, or `"constant"`.
        weight_decay: of AdamW; for weights of linear and convolutional maps, not for biases, scales and
            parameters of KDM layers and kernels.
        clip_norm: the largest norm of a gradient; None for no limit.
        patience: epochs without a better validation loss before stopping; None to go on.
        averaging: horizon of an exponential moving average of the weights, as a share of all steps: after
            every step w̄ ← w̄ + (w − w̄)/h with h = averaging · steps. The averaged weights are validated and
            returned. None for no average.
        min_improvement: how much lower than the first validation loss a later one must be to count, as a
            share of the first.
        tolerance: how much higher than the least validation loss a later one may be and still count. The last
            weights that count are returned: with a schedule, those of the smaller learning rate.
        keep_start: whether the first weights compete: they are validated before the first epoch.
        seed: of the order of rows, of noise and of dropout: the same seed gives the same fit. torch's dropout
            and modules of unknown origin draw from torch's global generator: a fit with such modules sets its
            seed in every epoch and restores its state, one fit at a time.
        device: `"auto"` is CUDA if there is a device.
        precision: mixed precision; the reductions stay in float32 or wider.
        checkpoint_dir: the folder in which every epoch is saved, and from which a killed fit resumes; None
            saves nothing.
        verbose: whether to show a progress bar.

    >>> FitOptions(max_epochs=20, learning_rate=3e-3, device="cpu").schedule
    'one-cycle'
    """

    max_epochs: int = 100
    batch_size: int = 64
    learning_rate: float = 1e-2
    betas: tuple[float, float] = (0.9, 0.999)
    schedule: Schedule = "one-cycle"
    weight_decay: float = 0.0
    clip_norm: float | None = 5.0
    patience: int | None = 20
    averaging: float | None = None
    min_improvement: float = 0.0
    tolerance: float = 0.0
    keep_start: bool = False
    seed: int = 0
    device: Device = "auto"
    precision: Precision = "no"
    checkpoint_dir: str | Path | None = None
    verbose: bool = False

    def __post_init__(self) -> None:
        for name, least in {"max_epochs": 1, "batch_size": 1, "seed": 0, "patience": 1}.items():
            value = getattr(self, name)
            if name != "patience" or value is not None:
                # A Python int, so that checkpoints do not depend on the type.
                object.__setattr__(self, name, check_count(name, value, least=least))
        check_number("learning_rate", self.learning_rate, "a finite number > 0", positive=True)
        check_number("weight_decay", self.weight_decay, "a finite number ≥ 0")
        check_number("min_improvement", self.min_improvement, "0 ≤ min_improvement < 1", below=1)
        check_number("tolerance", self.tolerance, "a finite number ≥ 0")
        for i, beta in enumerate(self.betas):
            check_number(f"betas[{i}]", beta, "0 ≤ β < 1", below=1)
        if self.averaging is not None:
            wanted = "0 < averaging ≤ 1, or None"
            check_number("averaging", self.averaging, wanted, positive=True, below=1, most=1)
        if self.clip_norm is not None:
            check_number("clip_norm", self.clip_norm, "> 0 or None", positive=True, most=math.inf)
        if self.checkpoint_dir is not None:
            check_path("checkpoint_dir", self.checkpoint_dir)
        check_choice("schedule", self.schedule, ("one-cycle", "cosine", "constant"))
        check_choice("device", self.device, ("auto", "cpu", "cuda"))
        check_choice("precision", self.precision, ("no", "bf16", "fp16"))

    def identity(self) -> dict[str, Any]:
        """The settings that change the numbers: a checkpoint is continued only if they agree."""
        return {k: v for k, v in asdict(self).items() if k not in ("checkpoint_dir", "verbose", "device")}
