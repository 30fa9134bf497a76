"""The one training loop: any device, any number of processes, resumable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from kdmkit._core.checks import bad_argument, check_count, check_instance
from kdmkit.training.options import FitOptions
from kdmkit.training.rows import Rows


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
        One entry per epoch: `epoch`, `loss`, `learning_rate`, and `validation_loss` where there is one.

    Raises:
        FloatingPointError: where a loss is not finite.

    >>> import torch, kdmkit as kdm
    >>> layer = kdm.nn.JointLayer(2, 3, n_components=4)
    >>> rows = kdm.training.Rows((torch.randn(30, 2), torch.arange(30) % 3))
    >>> objective = kdm.training.ConditionalObjective(None, layer)
    >>> len(fit(objective, rows, options=kdm.training.FitOptions(max_epochs=2, device="cpu")))
    2
    """
    # Accelerate takes half a second to import: only a fit needs it.
    from kdmkit.training.trainer import Trainer

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
