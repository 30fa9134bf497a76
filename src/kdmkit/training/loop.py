"""The one training loop: any device, any number of processes, resumable."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument, check_count, check_instance
from kdmkit._core.runtime import keep_freed_memory
from kdmkit.training.checkpoint import Checkpoint, fingerprint
from kdmkit.training.devices import (
    Replayed,
    WrittenSteps,
    broadcast_buffers,
    call_on_main_process,
    make_accelerator,
    writes_gradients,
)
from kdmkit.training.fit_arguments import FitOptions, Rows
from kdmkit.training.seeds import derive_seed, draws_globally, global_seed
from kdmkit.training.steps import Steps, decayed_parameters, weighted_sum

# Rows per forward pass without gradients.
_EVALUATION_ROWS = 4096
# A last batch with fewer rows joins the one before. A batch of one row would break batch normalisation, and
# a batch with fewer rows than processes would leave some of them without a row.
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
    """Minimises Σ_i w_i loss_i / Σ_i w_i over the parameters of an objective.

    At the end the objective holds the weights with the lowest validation loss. Without validation rows it
    holds the last weights. With `options.averaging`, averaged weights take the place of those of a step.

    In a distributed run every process calls this with the same rows. Each step takes one batch and divides
    its rows among the processes. The loss is divided by the weights of the whole batch, and noise is drawn by
    row. So the result does not depend on the number of processes, unless a module mixes rows (batch
    normalisation) or draws from torch's global generator (`torch.nn.Dropout`; `kdmkit.nn.Dropout` does not).

    Args:
        objective: a module that maps the tensors of a batch to one loss per row.
        train: the rows to learn from.
        validation: the rows that decide when to stop and which weights are best; None trains to the end.
        options: settings of the loop.
        identity: what else a checkpoint depends on; it must be JSON-serialisable.
        description: the name of the progress bar.
        epochs: stop after this many, part of the way through the schedule; None is `options.max_epochs`.
        on_epoch: called after every epoch with the objective, whose weights are those of the last step.

    Returns:
        One entry per epoch: `epoch`, `loss`, `learning_rate`, and `validation_loss` with validation rows.

    Raises:
        FloatingPointError: if a loss is not finite.

    >>> import torch, kdmkit as kdm
    >>> layer = kdm.nn.JointLayer(2, 3, n_components=4)
    >>> rows = kdm.training.Rows((torch.randn(30, 2), torch.arange(30) % 3))
    >>> objective = kdm.training.ConditionalObjective(None, layer)
    >>> len(fit(objective, rows, options=kdm.training.FitOptions(max_epochs=2, device="cpu")))
    2
    """
    check_instance("objective", objective, nn.Module, "an nn.Module")
    check_instance("train", train, Rows, "kdmkit.training.Rows")
    check_instance("validation", validation, (Rows, type(None)), "kdmkit.training.Rows or None")
    check_instance("options", options, FitOptions, "kdmkit.training.FitOptions")
    wanted = f"1 to max_epochs ({options.max_epochs})"
    last = check_count("epochs", options.max_epochs if epochs is None else epochs, wanted)
    if last > options.max_epochs:
        raise ValueError(bad_argument("epochs", wanted, epochs))
    trainer = Trainer(objective, train, validation, options, identity or {})
    return trainer.run(last, description, on_epoch)


class Trainer:
    """One fit: see `fit` for the arguments."""

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
        self.weights = [rows.weight for rows in (self.train, self.validation) if rows is not None]
        self.order = self._shuffled(0)
        n_steps = len(self._batches()) * options.max_epochs
        self.steps: Steps | WrittenSteps
        if writes_gradients(objective, options, self.accelerator):
            self.steps = WrittenSteps(objective, self.train, options, n_steps, decayed_parameters(objective))
        else:
            self.steps = Steps(objective, self.accelerator, self.train, options, n_steps)
        self.steps.prepared.train()
        self.draws_globally = draws_globally(objective)
        self._evaluation = torch.zeros((), dtype=torch.float64, device=device)
        self._replayed = Replayed(device) if self.steps.replays else None
        self.progress = Progress()
        self.checkpoint: Checkpoint | None = None
        if options.checkpoint_dir is not None:
            self.checkpoint = Checkpoint(options.checkpoint_dir, self._fingerprint(identity))
            self._resume(call_on_main_process(self.accelerator, self.checkpoint.load))

    def run(
        self, n_epochs: int, description: str, on_epoch: Callable[[nn.Module], None] | None
    ) -> list[dict[str, float]]:
        """Trains until the last epoch or until patience ends; puts the best weights into the objective."""
        if self.options.keep_start and not self.progress.history:
            self._validate_start()
        with self._progress_bar(description) as bar:
            for epoch in range(len(self.progress.history), n_epochs):
                if self.progress.should_stop(self.options.patience):
                    break
                entry = self._run_epoch(epoch)
                if on_epoch is not None:
                    on_epoch(self.objective)
                bar.update()
                shown = ("loss", "validation_loss")
                bar.set_postfix({name: f"{entry[name]:.4f}" for name in shown if name in entry})
        if self.progress.best_weights:
            self.objective.load_state_dict(self.progress.best_weights)
        elif self.steps.average is not None:
            self.objective.load_state_dict(self.steps.result.state_dict())
        self.steps.release()
        self.objective.eval()
        return self.progress.history

    def _validate_start(self) -> None:
        """Lets the first weights compete with those of the epochs."""
        if self.validation is None:
            return
        total = self._evaluate(self.validation)
        if self.accelerator.num_processes > 1:
            total = self.accelerator.reduce(total, "sum")
        self.progress.start(float(total) / self.weights[1], self.steps.result)

    # ---- one epoch

    def _run_epoch(self, epoch: int) -> dict[str, float]:
        """Steps through all batches, validates, records and saves.

        Every epoch has its own seed: a resumed fit draws the same numbers as an uninterrupted one. The
        library's modules draw from the generator of the steps. Others may use torch's global one, which has
        another seed on every process.
        """
        self.steps.restart(derive_seed(self.options.seed, epoch, 1))
        try:
            with self._global_seed(epoch) if self.draws_globally else nullcontext():
                entry = self._losses(epoch)
        finally:
            self.steps.finish()
        _check_losses(entry)
        rules = {"min_improvement": self.options.min_improvement, "tolerance": self.options.tolerance}
        self.progress.record(entry, self.steps.result, **rules)
        self._save()
        return entry

    def _global_seed(self, epoch: int) -> Any:
        seed = derive_seed(self.options.seed, epoch, 2 + self.accelerator.process_index)
        return global_seed(seed, self.accelerator.device)

    def _losses(self, epoch: int) -> dict[str, float]:
        """Trains for an epoch; returns its losses and learning rate."""
        # A wrapper of several processes, `prepared`, stays in training mode.
        _set_mode(self.objective, training=True)
        self.steps.run(self._batches())
        if self.accelerator.num_processes > 1:
            broadcast_buffers(self.objective)
            if self.steps.average is not None:
                broadcast_buffers(self.steps.average.module)
        rate = self.steps.rate
        sums = [self.steps.total]
        if self.validation is not None:
            sums.append(self._evaluate(self.validation))
        # While the device is busy.
        self.order = self._shuffled(epoch + 1)
        total = torch.stack(sums)
        if self.accelerator.num_processes > 1:
            total = self.accelerator.reduce(total, "sum")
        losses = [loss / weight for loss, weight in zip(total.tolist(), self.weights, strict=True)]
        entry = {"epoch": float(epoch), "loss": losses[0], "learning_rate": rate}
        return entry if self.validation is None else {**entry, "validation_loss": losses[1]}

    def _shuffled(self, epoch: int) -> Tensor:
        """The numbers of the rows in the random order of an epoch, the same on all processes."""
        generator = torch.Generator().manual_seed(derive_seed(self.options.seed, epoch, 0))
        return torch.randperm(len(self.train), generator=generator)

    def _batches(self) -> list[Tensor]:
        """The row numbers of every step of the present epoch."""
        size = self.options.batch_size
        batches = list(self.order.to(self.accelerator.device).split(size))
        if len(batches) > 1 and len(batches[-1]) < min(size, _SMALLEST_BATCH):
            batches[-2:] = [torch.cat(batches[-2:])]
        return batches

    @torch.no_grad()
    def _evaluate(self, rows: Rows) -> Tensor:
        """The weighted sum of losses; every row is evaluated on one process."""
        _set_mode(self.steps.result, training=False)
        self._evaluation.zero_()
        every_row = torch.arange(len(rows), device=self.accelerator.device)
        for index in every_row[self.steps.local].split(_EVALUATION_ROWS):
            if self._replayed is None:
                self._evaluate_block(index)
            else:
                self._replayed(self._evaluate_block, index)
        return self._evaluation

    def _evaluate_block(self, index: Tensor) -> None:
        assert self.validation is not None
        tensors, weights = self.validation.take(index)
        with self.accelerator.autocast():
            losses = self.steps.result(*tensors)
        self._evaluation += weighted_sum(losses.double(), weights, len(index))

    # ---- checkpoints and the progress bar

    def _save(self) -> None:
        if self.checkpoint is not None and self.accelerator.is_main_process:
            states = {name: part.state_dict() for name, part in self.steps.parts().items()}
            self.checkpoint.save({**states, "progress": vars(self.progress)})

    def _resume(self, state: dict[str, Any] | None) -> None:
        if state is None:
            return
        for name, part in self.steps.parts().items():
            # A fit on another device may have had no scaler.
            if state.get(name):
                part.load_state_dict(state[name])
        self.progress = Progress.from_state(state["progress"], self.accelerator.device)
        self.order = self._shuffled(len(self.progress.history))

    def _fingerprint(self, identity: dict[str, Any]) -> str:
        """A digest of everything that must agree for a checkpoint to be continued: settings, shapes, rows."""
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

    def _progress_bar(self, description: str) -> Any:
        from tqdm.auto import tqdm

        hidden = not (self.options.verbose and self.accelerator.is_main_process)
        start, total = len(self.progress.history), self.options.max_epochs
        return tqdm(total=total, initial=start, desc=description, unit="epoch", disable=hidden)


@dataclass
class Progress:
    """The history of losses and the state of early stopping."""

    history: list[dict[str, float]] = field(default_factory=list)
    best_loss: float = math.inf
    best_epoch: int = -1
    best_weights: dict[str, Tensor] = field(default_factory=dict)
    start_loss: float = math.inf

    def start(self, loss: float, model: nn.Module) -> None:
        """Lets the first weights compete with those of the epochs."""
        self.start_loss = self.best_loss = loss
        self.best_weights = _copied_state(model)

    def record(
        self,
        entry: dict[str, float],
        model: nn.Module,
        *,
        min_improvement: float = 0.0,
        tolerance: float = 0.0,
    ) -> None:
        """Adds an epoch, and keeps the model's weights if its validation loss is the best so far.

        After the first epoch a loss l counts only if l < l_first − min_improvement·|l_first|. A loss that is
        less than `tolerance` above the best one counts as well.
        """
        loss, limit = entry.get("validation_loss"), self.best_loss + tolerance
        first = self.start_loss
        if math.isinf(first) and self.history:
            first = self.history[0].get("validation_loss", math.inf)
        if not math.isinf(first):
            limit = min(limit, first - min_improvement * abs(first))
        self.history.append(entry)
        if loss is not None and loss < limit:
            self.best_loss, self.best_epoch = min(loss, self.best_loss), len(self.history) - 1
            self.best_weights = _copied_state(model)

    def should_stop(self, patience: int | None) -> bool:
        """Whether the validation loss has not improved for `patience` epochs."""
        if patience is None or not self.history or "validation_loss" not in self.history[-1]:
            return False
        return len(self.history) - 1 - self.best_epoch >= patience

    @classmethod
    def from_state(cls, state: dict[str, Any], device: torch.device) -> Progress:
        """The progress whose `vars` a checkpoint holds."""
        weights = {k: v.to(device) for k, v in state["best_weights"].items()}
        return cls(**{**state, "best_weights": weights})


def _copied_state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _set_mode(module: nn.Module, *, training: bool) -> None:
    """`train` or `eval`, which walk through all modules, where that changes something."""
    if module.training != training:
        module.train(training)


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
