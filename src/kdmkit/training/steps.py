"""The steps of a fit: losses of a batch, gradients, a move of the parameters and of their average."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument
from kdmkit.nn import DrawingModule, Draws
from kdmkit.training.averaging import MovingAverage
from kdmkit.training.graphs import Replayed, can_replay
from kdmkit.training.options import FitOptions
from kdmkit.training.rows import Rows
from kdmkit.training.seeds import is_replayable


class Steps:
    """Updates the parameters by one batch after the other, and sums up the losses.

    On a CUDA device a step is a graph, one for each size of a batch: the device is not kept waiting. The
    one-cycle schedule changes Adam's β₁, which a graph would keep: there the optimizer stays outside.

    Args:
        objective: the module that is trained; `prepared` is what Accelerate made of it.
        optimizer, scheduler: of its parameters; the schedule counts steps.
        average: follows the parameters, if there is one.
        train: all rows, on the device of the accelerator.

    Attributes:
        total: the weighted sum of the losses of this process since `restart`.
        generator: modules of the library draw from it.
    """

    def __init__(
        self,
        objective: nn.Module,
        prepared: nn.Module,
        accelerator: Accelerator,
        optimizer: torch.optim.Optimizer,
        scheduler: torch.optim.lr_scheduler.LRScheduler,
        average: MovingAverage | None,
        train: Rows,
        options: FitOptions,
    ) -> None:
        self.objective, self.prepared, self.accelerator = objective, prepared, accelerator
        self.optimizer, self.scheduler, self.average = optimizer, scheduler, average
        self.train, self.options = train, options
        self.generator = torch.Generator(accelerator.device)
        self.drawing = [part for part in objective.modules() if isinstance(part, DrawingModule)]
        self.total = torch.zeros((), dtype=torch.float64, device=accelerator.device)
        self.scaled = accelerator.scaler is not None
        device, is_static = accelerator.device, not self.scaled and train.sizes is None
        self.replays = is_static and can_replay(device) and is_replayable(objective)
        self.moves = self.replays and options.schedule != "one-cycle"
        self.rates = [torch.zeros((), device=device) for _ in optimizer.param_groups] if self.moves else []
        self._rates_set: list[float] = []
        self._replayed = Replayed(device, [self.generator]) if self.replays else None

    def __call__(self, batch: Tensor) -> None:
        """One update by the rows of these numbers, the same ones on all processes."""
        self._set_rates()
        work = self._update if self.moves else self._find_gradients
        if self._replayed is None:
            work(batch)
        else:
            self._replayed(work, batch)
        if not self.moves:
            self._move()
        if not self.accelerator.optimizer_step_was_skipped:
            self.scheduler.step()

    def restart(self, seed: int) -> None:
        """Before an epoch."""
        self.generator.manual_seed(seed)
        self.total.zero_()

    def finish(self) -> None:
        """After an epoch."""
        for module in self.drawing:
            module.draws = None

    # ---- what a graph holds

    def _update(self, batch: Tensor) -> None:
        # A capture that failed may have left gradients.
        self.optimizer.zero_grad()
        self._find_gradients(batch)
        self._move()

    def _find_gradients(self, batch: Tensor) -> None:
        rows, weights = self.train.take(self.own_rows(batch))
        draws = self._draws(batch)
        for module in self.drawing:
            module.draws = draws
        local = weighted_sum(self.prepared(*rows), rows, weights)
        # Processes average their gradients. The sum of local losses over the weight of the whole batch needs
        # their number as a factor.
        factor = self.accelerator.num_processes / _nonzero(self.train.weight(batch))
        if self.scaled:
            self.accelerator.backward(local * factor)
        else:
            (local * factor).backward()
        if self.options.clip_norm is not None:
            self._clip(self.options.clip_norm)
        self.total += local.detach().double()

    def _clip(self, norm: float) -> None:
        if self.scaled:
            self.accelerator.clip_grad_norm_(self.prepared.parameters(), norm)
            return
        # Without Accelerate, which at every step looks for optional packages and for parameters.
        groups = self.optimizer.param_groups
        nn.utils.clip_grad_norm_([p for group in groups for p in group["params"]], norm)

    def _move(self) -> None:
        with self._rates_on_device():
            self.optimizer.step()
        # Gradients that a graph writes and the optimizer outside reads stay where they are.
        self.optimizer.zero_grad(set_to_none=self.moves or not self.replays)
        if self.average is not None:
            self.average.update_parameters(self.objective)

    def _set_rates(self) -> None:
        """Brings the learning rates to the device, where they have changed."""
        rates = [group["lr"] for group in self.optimizer.param_groups[: len(self.rates)]]
        if rates != self._rates_set:
            for tensor, rate in zip(self.rates, rates, strict=True):
                tensor.fill_(rate)
            self._rates_set = rates

    @contextmanager
    def _rates_on_device(self) -> Iterator[None]:
        """The optimizer reads its learning rates from tensors, which a graph follows."""
        groups = self.optimizer.param_groups[: len(self.rates)]
        kept = [{name: group[name] for name in ("lr", "capturable")} for group in groups]
        for rate, group in zip(self.rates, groups, strict=True):
            group.update(lr=rate, capturable=rate.is_cuda)
        try:
            yield
        finally:
            for group, before in zip(groups, kept, strict=True):
                group.update(before)

    def own_rows(self, index: Tensor) -> Tensor:
        """The part of this process."""
        return index[self.accelerator.process_index :: self.accelerator.num_processes]

    def _draws(self, batch: Tensor) -> Draws:
        """The random numbers of a step, for the rows of this process."""
        own = slice(self.accelerator.process_index, None, self.accelerator.num_processes)
        sizes = self.train.sizes
        if sizes is None:
            return Draws(self.generator, len(batch), own)
        is_own = torch.zeros(len(batch), dtype=torch.bool, device=batch.device)
        is_own[own] = True
        of_rows = is_own.repeat_interleave(sizes[batch])
        return Draws(self.generator, len(of_rows), of_rows)


def weighted_sum(losses: Tensor, rows: tuple[Tensor, ...], weights: Tensor | None) -> Tensor:
    """Σ_i w_i·loss_i of a batch."""
    if losses.shape != (len(rows[0]),):
        wanted = f"one loss per row, shape ({len(rows[0])},)"
        raise ValueError(bad_argument("objective", wanted, tuple(losses.shape)))
    return losses.sum() if weights is None else (losses * weights).sum()


def _nonzero(weight: float | Tensor) -> float | Tensor:
    """The weight of a batch as a divisor: 1 where all rows have weight zero, whose sum of losses is zero."""
    return torch.where(weight > 0, weight, 1.0) if isinstance(weight, Tensor) else weight
