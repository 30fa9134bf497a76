"""Which runs Table 1 consists of, from the options of the command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

import torch

from kdmlab.common import chosen_device, read_rows
from kdmlab.common.checks import bad_argument, check_choice
from kdmlab.images.data import check_data
from kdmlab.images.jobs import Job, Place
from kdmlab.images.recipes import DATASETS, ENCODERS, MODELS, Encoder, Model, recipe_for

#: Runs of the residual network.
FEW_RUNS = 3
#: The files of lines: runs and generation, of the table and of searches.
LINES = tuple(f"table1{search}{part}.jsonl" for search in ("", "-search") for part in ("", "-generation"))


@dataclass(frozen=True)
class Plan:
    """Which runs to make.

    Args:
        datasets, models, encoders: which; in the order of the table.
        runs: of each with the paper's encoders; others have three at most.
        place: where data and weights are, and what computes.
        workers: processes that train at the same time, on the same device.
    """

    datasets: Sequence[str]
    models: Sequence[Model]
    encoders: Sequence[Encoder]
    runs: int
    place: Place
    workers: int

    def __post_init__(self) -> None:
        for name, values, choices in (
            ("dataset", self.datasets, DATASETS),
            ("model", self.models, MODELS),
            ("encoder", self.encoders, ENCODERS),
        ):
            for value in values:
                check_choice(name, value, choices)
        for name in ("runs", "workers"):
            if getattr(self, name) < 1:
                raise ValueError(bad_argument(name, "a whole number ≥ 1", getattr(self, name)))
        if self.place.device == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                bad_argument("device", "'cpu' or 'auto' where there is no CUDA device", "'cuda'")
            )

    def jobs(self, dataset: str, encoder: Encoder, model: Model = "kdm") -> list[Job]:
        """The runs of a row."""
        runs = self.runs if encoder == "paper" else min(self.runs, FEW_RUNS)
        recipe = recipe_for(dataset, encoder, model)
        return [Job(dataset, encoder, seed, recipe, False, self.place) for seed in range(runs)]

    def check(self, output: Path, say: Callable[[str], None]) -> None:
        """Reads lines and data sets and writes to the folders: what can fail does so before any training."""
        for name in LINES:
            read_rows(output / name)
        for folder in (output, self.place.work_dir):
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=folder):
                pass
        check_data(self.datasets, self.place.data_dir, say)


def plan(
    datasets: Sequence[str] | None = None,
    models: Sequence[str] | None = None,
    encoders: Sequence[str] | None = None,
    *,
    data_dir: Path | str,
    runs: int = 10,
    work_dir: Path | str = "runs/table1",
    device: str = "auto",
    workers: int = 1,
) -> Plan:
    """The plan for some options of the command; None means all of the table.

    >>> plan(["digits"], data_dir="data", runs=1, device="cpu").models
    ('dense', 'kdm', 'ml-kdm', 'dense-alone', 'kdm-alone', 'ml-kdm-alone')
    """
    # The precision of training depends on the device, and so do cached weights.
    place = Place(Path(data_dir), Path(work_dir), chosen_device(device))
    names = datasets or [name for name in DATASETS if name != "digits"]
    return Plan(names, models or MODELS, encoders or ENCODERS, runs, place, workers)  # type: ignore[arg-type]


def search_space(texts: Sequence[str] | None) -> dict[str, list[float]] | None:
    """Settings and the values to try, from the command line.

    >>> search_space(["latent=16,32", "smoothing=0.1"])
    {'latent': [16.0, 32.0], 'smoothing': [0.1]}
    """
    if not texts:
        return None
    space = {}
    for text in texts:
        name, _, values = text.partition("=")
        if name.strip() in space:
            raise ValueError(bad_argument("vary", "every setting once", repr(text)))
        try:
            space[name.strip()] = [float(value) for value in values.split(",")]
        except ValueError as error:
            raise ValueError(bad_argument("vary", "setting=number,number…", repr(text))) from error
    return space
