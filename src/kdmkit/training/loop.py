"""The one training loop: any device, any number of processes, resumable."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from kdmkit._core.checks import bad_argument
from kdmkit.training.checkpoint import Checkpoint, fingerprint
from kdmkit.training.optimizer import make_optimizer, make_schedule
from kdmkit.training.options import FitOptions
from kdmkit.training.processes import Shell, make_accelerator, on_main, share_buffers
from kdmkit.training.progress import Progress
from kdmkit.training.rows import Rows

# Rows per forward pass without gradients.
_EVALUATION_ROWS = 4096
# A last batch with fewer rows joins the one before: it would break batch normalisation, and leave processes
# without a row.
_SMALLEST_BATCH = 8


def fit(
    objective: nn.Module,
    train: Rows,
    validation: Rows | None = None,
    *,
    options: FitOptions,
    identity: dict[str, Any] | None = None,
    description: str = "fit",
    epochs: int | None = None,
    on_epoch: Callable[[nn.Module], None] | None = None,
) -> list[dict[str, float]]:
    """Minimises the weighted mean of an objective's losses; its best weights are in place at the end.

    Every process of a distributed run calls this with the same rows. Each step takes one batch of all
    processes together, every row on one of them, and divides by the weights of the whole batch: the result
    does not depend on the number of processes.

    Args:
        objective: a module that maps the tensors of a batch to one loss per row.
        train: the rows to learn from.
        validation: the rows that decide when to stop and which weights are best; None trains to the end.
        options: how to run.
        identity: what else a checkpoint depends on, JSON-ready.
        description: the name of the progress bar.
        epochs: stop after this many, part of the way through the schedule; None is `options.max_epochs`.
        on_epoch: called with the objective after every epoch.

    Returns:
        One entry per epoch: `epoch`, `loss`, `learning_rate`, and `validation_loss` where there is one.

    Raises:
        FloatingPointError: where a loss is not finite.
    """
    last = options.max_epochs if epochs is None else epochs
    if not 1 <= last <= options.max_epochs:
        raise ValueError(bad_argument("epochs", f"1 to max_epochs ({options.max_epochs})", epochs))
    run = _Run(objective, train, validation, options, identity or {})
    with run.seeded(), run.bar(description) as bar:
        while run.progress.epoch < last and not run.progress.exhausted(options.patience):
            entry = run.epoch()
            if on_epoch is not None:
                on_epoch(run.bare)
            bar.update()
            shown = ("loss", "validation_loss")
            bar.set_postfix({name: f"{entry[name]:.4f}" for name in shown if name in entry})
        run.progress.restore_best(run.bare)
        run.bare.eval()
    return run.progress.history


class _Run:
    """One fit in progress."""

    def __init__(
        self,
        objective: nn.Module,
        train: Rows,
        validation: Rows | None,
        options: FitOptions,
        identity: dict[str, Any],
    ) -> None:
        self.options, self.bare = options, objective
        self.accelerator = make_accelerator(options)
        device = self.accelerator.device
        self.train = train.to(device)
        self.validation = None if validation is None else validation.to(device)
        optimizer = make_optimizer(objective.to(device), options)
        self.scheduler = make_schedule(optimizer, options, len(self.batches(0)))
        self.model = self.accelerator.prepare(Shell(objective))
        # Accelerate's optimizer is for scaled gradients; it looks for optional packages at every step.
        self.scaled = self.accelerator.scaler is not None
        self.optimizer = self.accelerator.prepare(optimizer) if self.scaled else optimizer
        self.progress = Progress()
        self.checkpoint: Checkpoint | None = None
        if options.checkpoint_dir is not None:
            mark = fingerprint(*_described(objective, train, validation, options, identity))
            self.checkpoint = Checkpoint(options.checkpoint_dir, mark)
            self._resume(on_main(self.accelerator, self.checkpoint.load))

    # ---- one epoch

    def epoch(self) -> dict[str, float]:
        """Steps through all batches, evaluates, records, saves."""
        number = self.progress.epoch
        # Every epoch starts from a seed of its own: a resumed fit draws what the uninterrupted one drew.
        self._seed(_mix(self.options.seed, number, self.accelerator.process_index))
        self.model.train()
        total = torch.zeros((), dtype=torch.float64, device=self.accelerator.device)
        for batch in self.batches(number):
            total += self._step(batch)
        share_buffers(self.bare, self.accelerator)
        entry = {
            "epoch": float(number),
            "loss": self._summed(total) / float(self.train.weight()),
            "learning_rate": float(self.scheduler.get_last_lr()[0]),
        }
        if self.validation is not None:
            entry["validation_loss"] = self._evaluate(self.validation)
        _check_losses(entry)
        self.progress.record(entry, self.bare, least_gain=self.options.least_gain)
        self._save()
        return entry

    def batches(self, epoch: int) -> list[Tensor]:
        """The rows of every step of an epoch, the same on all processes."""
        size = self.options.batch_size
        generator = torch.Generator().manual_seed(_mix(self.options.seed, epoch))
        order = torch.randperm(len(self.train), generator=generator).to(self.accelerator.device)
        batches = list(order.split(size))
        if len(batches) > 1 and len(batches[-1]) < min(size, _SMALLEST_BATCH):
            batches[-2:] = [torch.cat(batches[-2:])]
        return batches

    def _mine(self, index: Tensor) -> Tensor:
        return index[self.accelerator.process_index :: self.accelerator.num_processes]

    def _step(self, batch: Tensor) -> Tensor:
        """One update; returns this process's weighted sum of losses."""
        rows, weights = self.train.take(self._mine(batch))
        local = _weighted_sum(self.model(*rows), rows, weights)
        # Processes average their gradients; times their number, over the whole batch's weight, is the mean.
        share = self.accelerator.num_processes / _divisor(self.train.weight(batch))
        if self.scaled:
            self.accelerator.backward(local * share)
        else:
            (local * share).backward()
        if self.options.clip_norm is not None:
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.options.clip_norm)
        self.optimizer.step()
        if not self.accelerator.optimizer_step_was_skipped:
            self.scheduler.step()
        self.optimizer.zero_grad()
        return local.detach().double()

    @torch.no_grad()
    def _evaluate(self, rows: Rows) -> float:
        """The weighted mean loss, every row on one process."""
        self.model.eval()
        total = torch.zeros((), dtype=torch.float64, device=self.accelerator.device)
        everything = torch.arange(len(rows), device=self.accelerator.device)
        for index in self._mine(everything).split(_EVALUATION_ROWS):
            tensors, weights = rows.take(index)
            with self.accelerator.autocast():
                losses = self.bare(*tensors)
            total += _weighted_sum(losses.double(), tensors, weights)
        return self._summed(total) / float(rows.weight())

    def _summed(self, value: Tensor) -> float:
        return float(self.accelerator.reduce(value, "sum"))

    # ---- resuming

    def _save(self) -> None:
        if self.checkpoint is None or not self.accelerator.is_main_process:
            return
        scaler = self.accelerator.scaler
        self.checkpoint.save(
            {
                "model": self.bare.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scheduler": self.scheduler.state_dict(),
                "scaler": None if scaler is None else scaler.state_dict(),
                "progress": self.progress.state(),
            }
        )

    def _resume(self, state: dict[str, Any] | None) -> None:
        if state is None:
            return
        self.bare.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        if self.accelerator.scaler is not None and state["scaler"]:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        self.progress = Progress.from_state(state["progress"], self.accelerator.device)

    # ---- surroundings

    def seeded(self) -> Any:
        """Global random states are put back when the fit ends."""
        device = self.accelerator.device
        return torch.random.fork_rng([device] if device.type == "cuda" else [])

    def _seed(self, seed: int) -> None:
        # torch.manual_seed would also seed devices that this fit does not use.
        torch.default_generator.manual_seed(seed)
        if self.accelerator.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def bar(self, description: str) -> Any:
        hidden = not (self.options.verbose and self.accelerator.is_main_process)
        start = self.progress.epoch
        return tqdm(
            total=self.options.max_epochs, initial=start, desc=description, unit="epoch", disable=hidden
        )


def _described(
    objective: nn.Module,
    train: Rows,
    validation: Rows | None,
    options: FitOptions,
    identity: dict[str, Any],
) -> tuple[dict[str, Any], list[Tensor]]:
    """What must agree for a checkpoint to be continued: settings, the shape of the model, all rows."""
    rows = [train] if validation is None else [train, validation]
    data = [[*part.tensors, *(() if part.weights is None else (part.weights,))] for part in rows]
    shapes = {name: [*value.shape, str(value.dtype)] for name, value in objective.state_dict().items()}
    description = {
        "options": options.identity(),
        "identity": identity,
        "model": shapes,
        "tensors": [[len(part.tensors), part.weights is not None] for part in rows],
    }
    return description, [tensor for part in data for tensor in part]


def _check_losses(entry: dict[str, float]) -> None:
    """An infinite validation loss is merely bad (a row that the model rules out), all else is a failure."""
    for name in ("loss", "validation_loss"):
        loss = entry.get(name, 0.0)
        if math.isnan(loss) or (name == "loss" and math.isinf(loss)):
            advice = "a smaller learning_rate or clip_norm may help"
            got = f"{loss} in epoch {int(entry['epoch'])} ({advice})"
            raise FloatingPointError(bad_argument(name, "a finite value", got))


def _weighted_sum(losses: Tensor, rows: tuple[Tensor, ...], weights: Tensor | None) -> Tensor:
    if losses.shape != (len(rows[0]),):
        wanted = f"one loss per row, shape ({len(rows[0])},)"
        raise ValueError(bad_argument("objective", wanted, tuple(losses.shape)))
    return losses.sum() if weights is None else (losses * weights).sum()


def _divisor(weight: float | Tensor) -> float | Tensor:
    """The weight to divide by: rows that all count nothing have no mean, and their sum is 0 already."""
    return torch.where(weight > 0, weight, 1.0) if isinstance(weight, Tensor) else weight


def _mix(*numbers: int) -> int:
    """One seed from several numbers."""
    mixed = 0
    for number in numbers:
        mixed = (mixed * 1_000_003 + number + 0x9E3779B97F4A7C15) % (1 << 63)
    return mixed
