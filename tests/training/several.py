"""Fits that test_processes.py runs in one process and in two: `torchrun … -m training.several folder`."""

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from helpers import seeded
from kdmkit.estimators.proportions.bag_likelihood import BagLoss
from kdmkit.nn import MLP, Dropout, JointLayer
from kdmkit.training import Bags, ConditionalObjective, FitOptions, Rows, fit
from training.problems import Objective, data, options, rows


class Recorder(nn.Module):
    """Remembers which rows this process was shown, in training and in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self.shown: dict[bool, list[list[int]]] = {True: [], False: []}

    def forward(self, number: Tensor) -> Tensor:
        self.shown[self.training].append(number.long().tolist())
        return (number - self.slope).square()


class Pretraining(nn.Module):
    """Trains the encoder of an objective; its layer gets no gradient."""

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.objective = objective
        with torch.random.fork_rng([]):
            torch.manual_seed(5)
            self.head = nn.Linear(2, 3, dtype=torch.float64)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.head(self.objective.encoder(x)), y, reduction="none")


def _state(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def _recorded(rank: int) -> dict[str, Any]:
    """`auto` finds no GPU here and has to join the other process all the same."""
    model = Recorder()
    numbers = [torch.arange(n).double() for n in (50, 23)]
    settings = options(max_epochs=2, batch_size=16, device="auto")
    fit(model, Rows((numbers[0],)), Rows((numbers[1],)), options=settings)
    return {"train": model.shown[True], "validation": model.shown[False]}


def _twenty_steps(rank: int) -> dict[str, Any]:
    """Five epochs of four batches, weighted; every process starts from other parameters, rank 0's count."""
    objective = Objective(seed=rank)
    history = fit(
        objective,
        rows(weighted=True),
        rows(21, seed=9, weighted=True),
        options=options(max_epochs=5, batch_size=16, patience=None),
    )
    return {"state": _state(objective), "history": history}


def _two_phases(rank: int) -> dict[str, Any]:
    """Pre-training leaves parameters without a gradient; then the same parameters are fitted again."""
    objective = Objective()
    fit(Pretraining(objective), rows(), options=options(max_epochs=2))
    fit(objective, rows(), options=options(max_epochs=2))
    return {"state": _state(objective)}


class _Stop(Exception):
    pass


def _resumed(rank: int, folder: Path) -> dict[str, Any]:
    """Stopped after two epochs and taken up again. Only rank 0 sees the files: the machines differ."""
    files = folder / f"files-{rank}"

    def run(on_epoch: Any = None) -> tuple[Objective, list[dict[str, float]]]:
        objective = Objective()
        changes = options(max_epochs=4, checkpoint_dir=files)
        return objective, fit(objective, rows(), options=changes, on_epoch=on_epoch)

    epochs = []

    def stop(_: nn.Module) -> None:
        epochs.append(1)
        if len(epochs) == 2:
            raise _Stop

    with contextlib.suppress(_Stop):
        run(stop)
    objective, history = run()
    return {"state": _state(objective), "history": history, "files": files.exists()}


def _refused(rank: int, folder: Path) -> dict[str, Any]:
    """Another fit's checkpoint: every process says so, none waits for ever."""
    try:
        fit(Objective(), rows(seed=1), options=options(max_epochs=4, checkpoint_dir=folder / f"files-{rank}"))
    except ValueError as error:
        return {"error": str(error)}
    return {"error": ""}


def _statistics(rank: int) -> dict[str, Any]:
    """Batch normalisation: its running statistics end up the same on all processes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1), nn.Flatten(0))
    x = data(50, dtype=torch.float32)[0]
    fit(model, Rows((x,)), Rows((x,)), options=options(max_epochs=2, batch_size=16))
    return {"state": _state(model)}


def _averaged(rank: int) -> dict[str, Any]:
    """The average is validated and returned. Every process starts from other parameters, rank 0's count."""
    objective = Objective(seed=rank)
    settings = options(max_epochs=3, averaging=0.5)
    history = fit(objective, rows(weighted=True), rows(21, seed=9), options=settings)
    return {"state": _state(objective), "history": history}


def _averaged_statistics(rank: int) -> dict[str, Any]:
    """Averaged running statistics end up the same on all processes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1), nn.Flatten(0))
    x = data(50, dtype=torch.float32)[0]
    fit(model, Rows((x,)), options=options(max_epochs=2, batch_size=16, averaging=0.5))
    return {"state": _state(model)}


def _classifier(rank: int) -> dict[str, Any]:
    """A whole fit with dropout, as an estimator would run it."""
    objective = Objective(dropout=0.1, dtype=torch.float32)
    x, y = data(400, dtype=torch.float32)
    objective.layer.initialize(objective.encoder(x), y, method="balanced", generator=seeded(0))
    settings = FitOptions(max_epochs=10, batch_size=32, patience=3)
    validation = Rows(data(100, seed=20, dtype=torch.float32))
    history = fit(objective, Rows((x, y)), validation, options=settings)
    return {"accuracy": objective.accuracy(*data(400, seed=40, dtype=torch.float32)), "epochs": len(history)}


def _noisy(rank: int) -> dict[str, Any]:
    """Noise on inputs, drawn for every row whichever process has it."""
    x, y = data()
    layer = JointLayer(3, 3, 6, dtype=torch.float64, generator=seeded(0))
    fit(ConditionalObjective(None, layer, noise=0.5), Rows((x, y)), options=options(max_epochs=2))
    return {"state": _state(layer)}


def _dropout(rank: int) -> dict[str, Any]:
    """The dropout of the library's own encoders."""
    x, y = data()
    encoder = MLP([3, 8, 2], dropout=0.5, generator=seeded(0)).double()
    layer = JointLayer(2, 3, 6, dtype=torch.float64, generator=seeded(0))
    fit(ConditionalObjective(encoder, layer), Rows((x, y)), options=options(max_epochs=2))
    return {"state": _state(encoder)}


def _bags(rank: int) -> dict[str, Any]:
    """Entries that stand for several rows, with noise on every row."""
    x, y = data()
    bags = Bags(x, torch.arange(len(x)) // 3 % 17)
    shares = torch.nn.functional.one_hot(y, 3)[: len(bags.size)].double()
    layer = JointLayer(3, 3, 6, dtype=torch.float64, generator=seeded(0))
    encoder = Dropout(0.3)
    entries = Rows((bags.first, bags.size, shares), None, bags.size)
    fit(BagLoss(bags, encoder, layer), entries, options=options(max_epochs=2))
    return {"state": _state(layer)}


def everything(rank: int, folder: Path) -> dict[str, Any]:
    return {
        "recorded": _recorded(rank),
        "twenty steps": _twenty_steps(rank),
        "two phases": _two_phases(rank),
        "resumed": _resumed(rank, folder),
        "refused": _refused(rank, folder),
        "statistics": _statistics(rank),
        "averaged": _averaged(rank),
        "averaged statistics": _averaged_statistics(rank),
        "classifier": _classifier(rank),
        "noisy": _noisy(rank),
        "dropout": _dropout(rank),
        "bags": _bags(rank),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    process, place = int(os.environ["RANK"]), Path(sys.argv[1])
    torch.save(everything(process, place), place / f"{process}.pt")
    torch.distributed.destroy_process_group()
