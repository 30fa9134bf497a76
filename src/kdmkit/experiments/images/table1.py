"""All runs of the table: what is finished is read, what is missing is trained, several at once if wanted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch

import kdmkit
from kdmkit._core.checks import bad_argument, check_choice
from kdmkit.experiments._processes import processes
from kdmkit.experiments._results import Report, Task, complete, forget, read_rows, write_report
from kdmkit.experiments.images import data, figures, report
from kdmkit.experiments.images.generation import GENERATORS, DrawingJob, draw
from kdmkit.experiments.images.jobs import Job, Place, held_out, measure
from kdmkit.experiments.images.recipes import (
    DATASETS,
    DRAWINGS,
    ENCODERS,
    MODELS,
    RECIPES,
    SPACE,
    Encoder,
    Model,
    changed,
)
from kdmkit.training.options import Device

#: The format of the lines; those of another one cannot be continued.
FORMAT = 1
#: Runs of the residual network.
FEW_RUNS = 3
#: The files of lines: runs and generation, of the table and of searches.
LINES = tuple(f"table1{search}{part}.jsonl" for search in ("", "-search") for part in ("", "-generation"))
#: What the names of a decoder's settings begin with in a search.
DRAWING = "drawing."


@dataclass(frozen=True)
class Wanted:
    """What to run, checked.

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

    def jobs(self, dataset: str, encoder: Encoder) -> list[Job]:
        runs = self.runs if encoder == "paper" else min(self.runs, FEW_RUNS)
        recipe = RECIPES[dataset, encoder]
        return [Job(dataset, encoder, seed, recipe, False, self.place) for seed in range(runs)]

    def check(self, output: Path, say: Callable[[str], None]) -> None:
        """Whatever can fail fails before anything is trained: lines, folders, data sets and strange ones."""
        for name in LINES:
            check_lines(output / name)
        for folder in (output, self.place.work_dir):
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=folder):
                pass
        data.check(self.datasets, self.place.data_dir, say)


def run(
    output: Path,
    wanted: Wanted,
    *,
    generation: int = 1,
    fresh: bool = False,
    verbose: bool = True,
    say: Callable[[str], None] = print,
) -> Report:
    """Table 1 and the generated images.

    Args:
        output: the folder of `table1.jsonl`, the table and the figures.
        wanted: what to run.
        generation: of how many runs to train decoders and judge generated images; 0 for none.
        fresh: whether to measure again what was measured before; lines of other runs stay.
        verbose: whether to show progress.
        say: takes one line of commentary at a time.
    """
    wanted.check(output, say)
    jobs = [job for d, e in product(wanted.datasets, wanted.encoders) for job in wanted.jobs(d, e)]
    tasks, drawings = _tasks(jobs, wanted.models), list[Task]()
    if generation and "ml-kdm" in wanted.models and "paper" in wanted.encoders:
        drawings = _drawing_tasks(jobs, output, generation)
    elif generation:
        say("no images are generated: that takes the model ml-kdm and the paper's encoder")
    _work(output, "table1", jobs, tasks, drawings, wanted.workers, fresh=fresh, verbose=verbose)
    return write(output, say)


def _work(
    output: Path,
    stem: str,
    jobs: Sequence[Job],
    tasks: Sequence[Task],
    drawings: Sequence[Task],
    workers: int,
    *,
    fresh: bool,
    verbose: bool,
) -> None:
    """Runs, and after them generation, each with lines of its own."""
    parts = [(tasks, output / f"{stem}.jsonl"), (drawings, output / f"{stem}-generation.jsonl")]
    if fresh:
        for some, path in parts:
            forget(some, path)
        for job in jobs:
            shutil.rmtree(job.folder, ignore_errors=True)
    with processes(workers) as pool:
        for some, path in parts:
            if some:
                complete(some, path, flat=True, verbose=verbose, pool=pool)


def write(output: Path, say: Callable[[str], None] = print) -> Report:
    """The table and the figures of the lines that there are."""
    output.mkdir(parents=True, exist_ok=True)
    for name in LINES:
        check_lines(output / name)
    rows, drawn = read_rows(output / "table1.jsonl"), read_rows(output / "table1-generation.jsonl")
    written = write_report(report.table(rows, drawn), output / "table1.md")
    files = (*written.files, *figures.draw_all(output / "table1-samples", say))
    if read_rows(output / "table1-search.jsonl"):
        files = (*files, *write_search(output).files)
    return Report(written.title, written.header, written.rows, written.notes, files)


def _tasks(jobs: Sequence[Job], models: Sequence[Model]) -> list[Task]:
    """Run after run, so that what is there when the command is killed is whole runs of all data sets."""
    return [task for job in sorted(jobs, key=lambda job: job.seed) for task in _chain(job, models)]


def _chain(job: Job, models: Sequence[Model]) -> list[Task]:
    """The models of a run, each trained from the one before."""
    keys = {model: _marked(job.key(model)) for model in MODELS if model in models}
    before = [None, *keys.values()]
    return [
        Task(key, partial(measure, job, model), after)
        for (model, key), after in zip(keys.items(), before, strict=False)
    ]


def _drawing_tasks(jobs: Sequence[Job], output: Path, runs: int) -> list[Task]:
    """Judges, and after them what they judge."""
    samples = output / "table1-samples"
    drawn = [
        DrawingJob(job, DRAWINGS[job.dataset], samples if job.seed == 0 else None)
        for job in jobs
        if job.encoder == "paper" and job.seed < runs
    ]
    tasks = []
    for job in sorted(drawn, key=lambda job: job.run.seed):
        judge = _marked(job.key("judge"))
        if job.run.seed == 0:
            tasks.append(Task(judge, partial(draw, job, "judge")))
        tasks += [Task(_marked(job.key(name)), partial(draw, job, name), judge) for name in GENERATORS[1:]]
    return tasks


def _marked(key: Mapping[str, Any]) -> dict[str, Any]:
    return {"format": FORMAT, **key}


# ---- search


def search(
    output: Path,
    wanted: Wanted,
    vary: Mapping[str, Sequence[Any]] | None = None,
    *,
    fresh: bool = False,
    verbose: bool = True,
    say: Callable[[str], None] = print,
) -> Report:
    """Accuracy on a held-out part of the training images for every combination of some settings.

    The test images are not looked at.

    Args:
        output: the folder of `table1-search.jsonl` and its table.
        wanted: what to run.
        vary: by setting of a recipe, the values to try; None is the paper's space of (m, e). Those of a
            setting of decoders, `drawing.…`, are tried on generated images.
        fresh: whether to measure again what was measured before; lines of other runs stay.
        verbose: whether to show progress.
        say: takes one line of commentary at a time.
    """
    space = dict(SPACE if vary is None else vary)
    of_drawing = {name: space.pop(name) for name in list(space) if name.startswith(DRAWING)}
    jobs = [
        held_out(job, changed(job.recipe, variant))
        for d, e in product(wanted.datasets, wanted.encoders)
        for job in wanted.jobs(d, e)
        for variant in _combinations(space)
    ]
    drawings = [
        task
        for job in jobs
        if of_drawing and job.encoder == "paper"
        for task in _drawing_variants(job, _combinations(of_drawing))
    ]
    wanted.check(output, say)
    tasks = [task for job in jobs for task in _chain(job, wanted.models)]
    _work(output, "table1-search", jobs, tasks, drawings, wanted.workers, fresh=fresh, verbose=verbose)
    return write_search(output)


def _combinations(space: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(space, values, strict=True)) for values in product(*space.values())]


def _drawing_variants(job: Job, variants: Sequence[Mapping[str, Any]]) -> list[Task]:
    """One after the other, for several spreads share a decoder."""
    tasks: list[Task] = []
    for variant in variants:
        values = {name.removeprefix(DRAWING): value for name, value in variant.items()}
        drawing = DrawingJob(job, changed(DRAWINGS[job.dataset], values), None)
        after = tasks[-1].key if tasks else None
        tasks.append(Task(_marked(drawing.key("ml-kdm")), partial(draw, drawing, "ml-kdm"), after))
    return tasks


def write_search(output: Path) -> Report:
    """The table of all lines of searches."""
    lines, drawn = (read_rows(output / f"table1-search{name}.jsonl") for name in ("", "-generation"))
    found = report.search_table(lines, drawn)
    return write_report(found, output / "table1-search.md")


# ---- from words


def wanted(
    datasets: Sequence[str] | None = None,
    models: Sequence[str] | None = None,
    encoders: Sequence[str] | None = None,
    *,
    data_dir: Path | str,
    runs: int = 10,
    work_dir: Path | str = "runs/table1",
    device: str = "auto",
    workers: int = 1,
) -> Wanted:
    """What to run, None meaning all of the table.

    >>> wanted(["digits"], data_dir="data", runs=1, device="cpu").models
    ('dense', 'kdm', 'ml-kdm')
    """
    check_choice("device", device, ("auto", "cpu", "cuda"))
    place = Place(Path(data_dir), Path(work_dir), _settled_device(device))
    names = datasets or [name for name in DATASETS if name != "digits"]
    return Wanted(names, models or MODELS, encoders or ENCODERS, runs, place, workers)  # type: ignore[arg-type]


def _settled_device(device: str) -> Device:
    """What "auto" means here: the precision of training depends on it."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device  # type: ignore[return-value]


def varied(texts: Sequence[str] | None) -> dict[str, list[float]] | None:
    """Settings and their values from the command line.

    >>> varied(["latent=16,32", "smoothing=0.1"])
    {'latent': [16.0, 32.0], 'smoothing': [0.1]}
    """
    if not texts:
        return None
    found = {}
    for text in texts:
        name, _, values = text.partition("=")
        if name.strip() in found:
            raise ValueError(bad_argument("vary", "every setting once", repr(text)))
        try:
            found[name.strip()] = [float(value) for value in values.split(",")]
        except ValueError as error:
            raise ValueError(bad_argument("vary", "setting=number,number…", repr(text))) from error
    return found


# ---- surroundings


def check_lines(path: Path) -> None:
    """Lines of another format or version cannot be continued: their numbers are not comparable."""
    try:
        rows = read_rows(path)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(bad_argument(str(path), "JSON lines", f"something else ({error})")) from error
    for number, row in enumerate(rows, start=1):
        found = (row.get("format"), row.get("versions", {}).get("kdmkit")) if isinstance(row, dict) else None
        if found != (FORMAT, kdmkit.__version__):
            wanted = f"lines of format {FORMAT} written by kdmkit {kdmkit.__version__}"
            got = "another format" if found is None else f"format {found[0]} by kdmkit {found[1]}"
            raise ValueError(bad_argument(str(path), wanted, f"{got} in line {number} (move it away)"))
