"""A fit in progress: its epochs, steps, checkpoints and processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from kdmkit._core.checks import bad_argument
from kdmkit._core.runtime import keep_freed_memory
from kdmkit.training.averaging import MovingAverage
from kdmkit.training.checkpoint import Checkpoint, fingerprint
from kdmkit.training.graphs import Replayed
from kdmkit.training.optimizer import make_optimizer, make_schedule
from kdmkit.training.options import FitOptions
from kdmkit.training.processes import (
    Proxy,
    broadcast_buffers,
    call_on_main_process,
    make_accelerator,
    prepare,
)
from kdmkit.training.progress import Progress
from kdmkit.training.rows import Rows
from kdmkit.training.seeds import derive_seed, draws_globally, global_seed
from kdmkit.training.steps import Steps, weighted_sum

# Rows per forward pass without gradients.
_EVALUATION_ROWS = 4096
# A last batch with fewer rows joins the one before. A batch of one row would break batch normalisation, and
# a batch with fewer rows than processes would leave some of them without a row.
_SMALLEST_BATCH = 8


class Trainer:
    """One fit: see `kdmkit.training.fit` for the arguments."""

    def __init__(
        self,
        objective: nn.Module,
        train: Rows,
        validation: Rows | None,
        options: FitOptions,
        identity: dict[str, Any],
    ) -> None:
        self.options, self.objective = options, objective
        self.accelerator = make_accelerator(options)
        device = self.accelerator.device
        if device.type == "cpu":
            keep_freed_memory()
        self.train = train.to(device)
        self.validation = None if validation is None else validation.to(device)
        self._latest_order = -1, torch.empty(0)
        steps_per_epoch = len(self.batches(0))
        optimizer = make_optimizer(objective.to(device), options)
        self.scheduler = make_schedule(optimizer, options, steps_per_epoch)
        self.prepared = prepare(self.accelerator, Proxy(objective))
        # Accelerate's optimizer is needed for scaled gradients only: at every step it looks for optional
        # packages, which takes time.
        scaled = self.accelerator.scaler is not None
        self.optimizer = prepare(self.accelerator, optimizer) if scaled else optimizer
        # After `prepare`, which gives all processes the weights of the first.
        self.average: MovingAverage | None = None
        if options.averaging is not None:
            n_steps = steps_per_epoch * options.max_epochs
            self.average = MovingAverage(objective, options.averaging * n_steps)
        self.steps = Steps(
            objective,
            self.prepared,
            self.accelerator,
            self.optimizer,
            self.scheduler,
            self.average,
            self.train,
            options,
        )
        self._evaluation = torch.zeros((), dtype=torch.float64, device=device)
        self._replayed = Replayed(device) if self.steps.replays else None
        self.progress = Progress()
        self.checkpoint: Checkpoint | None = None
        if options.checkpoint_dir is not None:
            self.checkpoint = Checkpoint(options.checkpoint_dir, self._fingerprint(identity))
            self._resume(call_on_main_process(self.accelerator, self.checkpoint.load))

    @property
    def result(self) -> nn.Module:
        """The module whose weights are validated and returned: the average, or the objective itself."""
        return self.objective if self.average is None else self.average.module

    def run(
        self, last_epoch: int, description: str, on_epoch: Callable[[nn.Module], None] | None
    ) -> list[dict[str, float]]:
        """Trains until the last epoch or until patience ends; puts the best weights into the objective."""
        with self._progress_bar(description) as bar:
            while self.progress.epoch < last_epoch and not self.progress.should_stop(self.options.patience):
                with self._seeded(self.progress.epoch):
                    entry = self._run_epoch()
                if on_epoch is not None:
                    on_epoch(self.objective)
                bar.update()
                shown = ("loss", "validation_loss")
                bar.set_postfix({name: f"{entry[name]:.4f}" for name in shown if name in entry})
            self._adopt_result()
            self.objective.eval()
        return self.progress.history

    def _adopt_result(self) -> None:
        if self.progress.best_weights:
            self.objective.load_state_dict(self.progress.best_weights)
        elif self.average is not None:
            self.objective.load_state_dict(self.average.module.state_dict())

    # ---- one epoch

    def _run_epoch(self) -> dict[str, float]:
        """Steps through all batches, validates, records and saves."""
        number = self.progress.epoch
        self.prepared.train()
        for batch in self.batches(number):
            self.steps(batch)
        broadcast_buffers(self.objective, self.accelerator)
        if self.average is not None:
            broadcast_buffers(self.average.module, self.accelerator)
        rate = float(self.scheduler.get_last_lr()[0])
        sums, weights = [self.steps.total], [self.train.weight()]
        if self.validation is not None:
            sums.append(self._evaluate(self.validation))
            weights.append(self.validation.weight())
        # While the device is busy.
        self._order(number + 1)
        losses = [found / float(w) for found, w in zip(self._sums_over_processes(sums), weights, strict=True)]
        entry = {"epoch": float(number), "loss": losses[0], "learning_rate": rate}
        if self.validation is not None:
            entry["validation_loss"] = losses[1]
        _check_losses(entry)
        rules = {name: getattr(self.options, name) for name in ("min_improvement", "tolerance")}
        self.progress.record(entry, self.result, **rules)
        self._save()
        return entry

    def batches(self, epoch: int) -> list[Tensor]:
        """The row numbers of every step of an epoch, the same on all processes."""
        size = self.options.batch_size
        batches = list(self._order(epoch).to(self.accelerator.device).split(size))
        if len(batches) > 1 and len(batches[-1]) < min(size, _SMALLEST_BATCH):
            batches[-2:] = [torch.cat(batches[-2:])]
        return batches

    def _order(self, epoch: int) -> Tensor:
        """The rows of an epoch, in random order; that of the latest call is kept."""
        if self._latest_order[0] != epoch:
            generator = torch.Generator().manual_seed(derive_seed(self.options.seed, epoch, 0))
            self._latest_order = epoch, torch.randperm(len(self.train), generator=generator)
        return self._latest_order[1]

    @torch.no_grad()
    def _evaluate(self, rows: Rows) -> Tensor:
        """The weighted sum of losses; every row is evaluated on one process."""
        self.result.eval()
        self._evaluation.zero_()
        every_row = torch.arange(len(rows), device=self.accelerator.device)
        for index in self.steps.own_rows(every_row).split(_EVALUATION_ROWS):
            if self._replayed is None:
                self._evaluate_block(index)
            else:
                self._replayed(self._evaluate_block, index)
        return self._evaluation

    def _evaluate_block(self, index: Tensor) -> None:
        assert self.validation is not None
        tensors, weights = self.validation.take(index)
        with self.accelerator.autocast():
            losses = self.result(*tensors)
        self._evaluation += weighted_sum(losses.double(), tensors, weights)

    def _sums_over_processes(self, values: list[Tensor]) -> list[float]:
        stacked = torch.stack(values)
        if self.accelerator.num_processes > 1:
            stacked = self.accelerator.reduce(stacked, "sum")
        found: list[float] = stacked.tolist()
        return found

    # ---- resuming

    def _parts(self) -> dict[str, Any]:
        """What a checkpoint holds beside the progress, by name."""
        parts = {
            "model": self.objective,
            "average": self.average,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "scaler": self.accelerator.scaler,
        }
        return {name: part for name, part in parts.items() if part is not None}

    def _save(self) -> None:
        if self.checkpoint is not None and self.accelerator.is_main_process:
            states = {name: part.state_dict() for name, part in self._parts().items()}
            self.checkpoint.save({**states, "progress": self.progress.state()})

    def _resume(self, state: dict[str, Any] | None) -> None:
        if state is None:
            return
        for name, part in self._parts().items():
            # A fit on another device may have had no scaler.
            if state.get(name):
                part.load_state_dict(state[name])
        self.progress = Progress.from_state(state["progress"], self.accelerator.device)

    def _fingerprint(self, identity: dict[str, Any]) -> str:
        """A digest of what must agree for a checkpoint to be continued: settings, shapes, all rows."""
        rows = [self.train] if self.validation is None else [self.train, self.validation]
        data = [[*part.tensors, *(() if part.weights is None else (part.weights,))] for part in rows]
        values = self.objective.state_dict()
        description = {
            "options": self.options.identity(),
            "identity": identity,
            "model": {name: [*value.shape, str(value.dtype)] for name, value in values.items()},
            "tensors": [[len(part.tensors), part.weights is not None] for part in rows],
        }
        return fingerprint(description, [tensor for part in data for tensor in part])

    # ---- random numbers and progress bar

    @contextmanager
    def _seeded(self, epoch: int) -> Iterator[None]:
        """Every epoch starts from a seed of its own: a resumed fit draws what the uninterrupted one drew.

        Modules of the library draw from this fit's generator. Others may use torch's global one, which gets
        another seed on every process.
        """
        self.steps.restart(derive_seed(self.options.seed, epoch, 1))
        seed = derive_seed(self.options.seed, epoch, 2 + self.accelerator.process_index)
        foreign = draws_globally(self.objective)
        try:
            with global_seed(seed, self.accelerator.device) if foreign else nullcontext():
                yield
        finally:
            self.steps.finish()

    def _progress_bar(self, description: str) -> Any:
        hidden = not (self.options.verbose and self.accelerator.is_main_process)
        start = self.progress.epoch
        return tqdm(
            total=self.options.max_epochs, initial=start, desc=description, unit="epoch", disable=hidden
        )


def _check_losses(entry: dict[str, float]) -> None:
    """NaN is an error, and so is an infinite training loss.

    An infinite validation loss is not: it says that the model gives a row the probability zero.
    """
    for name in ("loss", "validation_loss"):
        loss = entry.get(name, 0.0)
        if math.isnan(loss) or (name == "loss" and math.isinf(loss)):
            advice = "a smaller learning_rate or clip_norm may help"
            got = f"{loss} in epoch {int(entry['epoch'])} ({advice})"
            raise FloatingPointError(bad_argument(name, "a finite value", got))
