"""All runs of Table 1. What is finished is read, what is missing is trained, several at once if wanted."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, cast

from kdmlab.common import Report, Task, processes, read_rows, remove_rows, run_tasks, write_report
from kdmlab.common.files import make_folder
from kdmlab.images import figures, report, searches
from kdmlab.images.generation import (
    DRAWING,
    JUDGE_HALF,
    MODELS_HALF,
    GenerationJob,
    Generator,
    generate,
)
from kdmlab.images.jobs import Job, held_out, measure
from kdmlab.images.plans import LINES, Plan
from kdmlab.images.recipes import ALONE, DECODER_RECIPES, MODELS, SPACE, Model, changed

#: What the names of a decoder's settings begin with in a search.
PREFIX = "drawing."


def run(
    output: Path,
    plan: Plan,
    *,
    generation: int = 3,
    fresh: bool = False,
    verbose: bool = True,
    say: Callable[[str], None] = print,
) -> Report:
    """Table 1 and the generated images.

    Args:
        output: the folder of `table1.jsonl`, the table and the figures.
        plan: which runs to make.
        generation: of how many runs to train decoders and judge generated images; 0 for none.
        fresh: whether to measure again what was measured before; lines of other runs stay.
        verbose: whether to show progress.
        say: takes one line of commentary at a time.
    """
    plan.check(output, say)
    runs = [
        {model: plan.jobs(d, e, model)[seed] for model in plan.models}
        for d, e in product(plan.datasets, plan.encoders)
        for seed in range(len(plan.jobs(d, e)))
    ]
    # Sorted by seed, so that a killed command leaves complete runs of all data sets.
    runs.sort(key=lambda jobs: max(job.seed for job in jobs.values()))
    jobs = [job for run in runs for job in run.values()]
    tasks, generations = [task for run in runs for task in _chain(run)], list[Task]()
    if generation and "ml-kdm" in plan.models and "paper" in plan.encoders:
        generations = _generation_tasks([run["ml-kdm"] for run in runs], output, generation)
    elif generation:
        say("no images are generated: that takes the model ml-kdm and the paper's encoder")
    _work(output, "table1", jobs, tasks, generations, plan.workers, fresh=fresh, verbose=verbose)
    return summarize(output, say)


def _work(
    output: Path,
    stem: str,
    jobs: Sequence[Job],
    tasks: Sequence[Task],
    generations: Sequence[Task],
    workers: int,
    *,
    fresh: bool,
    verbose: bool,
) -> None:
    """Measures runs, then generation; each has a file of lines."""
    parts = [(tasks, output / f"{stem}.jsonl"), (generations, output / f"{stem}-generation.jsonl")]
    if fresh:
        for some, path in parts:
            remove_rows([task.key for task in some], path)
        for job, half in product(jobs, (None, MODELS_HALF, JUDGE_HALF)):
            shutil.rmtree(replace(job, half=half).folder, ignore_errors=True)
    with processes(workers) as pool:
        for some, path in parts:
            if some:
                run_tasks(some, path, verbose=verbose, pool=pool)


def summarize(output: Path, say: Callable[[str], None] = print) -> Report:
    """Writes the table and the figures from the lines that there are."""
    make_folder(output)
    rows, generated, searched, _ = (read_rows(output / name) for name in LINES)
    more = [*figures.save_figures(output / "table1-samples", say)]
    if searched:
        more += write_search(output).files
    return write_report(report.table(rows, generated), output / "table1.md", *more)


def _chain(jobs: Mapping[Model, Job]) -> list[Task]:
    """The models of a run, each trained from the one before; those of `ALONE` are a chain of their own."""
    residual = any(job.encoder != "paper" for job in jobs.values())
    chains = [[model for model in MODELS if model not in ALONE], [] if residual else list(ALONE)]
    return [
        task for chain in chains for task in _linked({model: jobs[model] for model in chain if model in jobs})
    ]


def _linked(jobs: Mapping[Model, Job]) -> list[Task]:
    keys = [job.key(model) for model, job in jobs.items()]
    return [
        Task(key, partial(measure, job, model), after)
        for (model, job), key, after in zip(jobs.items(), keys, [None, *keys], strict=False)
    ]


def _generation_tasks(jobs: Sequence[Job], output: Path, runs: int) -> list[Task]:
    """The judge of every data set, then run by run the KDM and what draws."""
    samples = output / "table1-samples"
    made = [
        GenerationJob(job, DECODER_RECIPES[job.dataset], samples if job.seed == 0 else None)
        for job in sorted(jobs, key=lambda job: job.seed)
        if job.encoder == "paper" and job.seed < runs
    ]
    judges = [Task(job.key("judge"), partial(generate, job, "judge")) for job in made if not job.run.seed]
    return [*judges, *(task for job in made for task in _drawing(job))]


def _drawing(job: GenerationJob) -> list[Task]:
    """The KDM of a run, then what draws; a plain decoder needs the same latent vectors as the other."""
    first = job.key("judge"), job.key("classifier")
    tasks = [Task(first[1], partial(generate, job, "classifier"))]
    for name in DRAWING:
        other = job.key(cast(Generator, name.removesuffix("-plain")))
        after = (*first, other) if name.endswith("-plain") else first
        tasks.append(Task(job.key(name), partial(generate, job, name), after))
    return tasks


# ---- search


def search(
    output: Path,
    plan: Plan,
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
        plan: which runs to make.
        vary: the values to try of every setting; None is the paper's space of (m, e). Settings of decoders
            are called `drawing.…`, and are tried on generated images.
        fresh: whether to measure again what was measured before; lines of other runs stay.
        verbose: whether to show progress.
        say: takes one line of commentary at a time.
    """
    space = dict(SPACE if vary is None else vary)
    of_decoder = {name: space.pop(name) for name in list(space) if name.startswith(PREFIX)}
    runs = [
        {
            model: held_out(job, changed(job.recipe, variant))
            for model in plan.models
            for job in plan.jobs(d, e, model)[seed : seed + 1]
        }
        for d, e in product(plan.datasets, plan.encoders)
        for seed in range(len(plan.jobs(d, e)))
        for variant in _combinations(space)
    ]
    generations = [
        task
        for run in runs
        if of_decoder and (job := run.get("ml-kdm")) and job.encoder == "paper"
        for task in _decoder_variants(job, _combinations(of_decoder))
    ]
    plan.check(output, say)
    jobs = [job for run in runs for job in run.values()]
    tasks = [task for run in runs for task in _chain(run)]
    _work(output, "table1-search", jobs, tasks, generations, plan.workers, fresh=fresh, verbose=verbose)
    return write_search(output)


def _combinations(space: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(space, values, strict=True)) for values in product(*space.values())]


def _decoder_variants(job: Job, variants: Sequence[Mapping[str, Any]]) -> list[Task]:
    """Variants run one after the other, since several spreads share a decoder."""
    tasks: list[Task] = []
    for variant in variants:
        values = {name.removeprefix(PREFIX): value for name, value in variant.items()}
        variant_job = GenerationJob(job, changed(DECODER_RECIPES[job.dataset], values), None)
        after = tasks[-1].key if tasks else None
        tasks.append(Task(variant_job.key("ml-kdm"), partial(generate, variant_job, "ml-kdm"), after))
    return tasks


def write_search(output: Path) -> Report:
    """Writes the table of all searches."""
    rows, generated = (read_rows(output / f"table1-search{name}.jsonl") for name in ("", "-generation"))
    return write_report(searches.search_table(rows, generated), output / "table1-search.md")
