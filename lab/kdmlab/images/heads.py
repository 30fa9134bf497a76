"""Heads that are calibrated on validation images, and scores of novelty on the same vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from jaxtyping import Float, Int64
from torch import Tensor, nn

from kdmkit.metrics import expected_calibration_error
from kdmkit.training import calibrate, fit_temperature
from kdmlab.common import Report, Task, newest, processes, read_rows, run_tasks, write_report
from kdmlab.images.data import novel_images, pictures
from kdmlab.images.heads_report import search_table, table
from kdmlab.images.jobs import Job, Trained
from kdmlab.images.measures import auroc
from kdmlab.images.models import DenseModel, KDMModel, encode, in_parts
from kdmlab.images.novelty import head_scores, outsiders, vector_scores, vectors
from kdmlab.images.plans import Plan
from kdmlab.images.recipes import ALONE, Model, changed, recipe_of
from kdmlab.images.store import M

NAME, SEARCH = "table1-heads", "table1-heads-search"
#: Settings of these heads that differ from the recipe of Table 1; `table1-heads-search.md` compares values.
SETTINGS: dict[str, Any] = {"smoothing": 0.0}
#: What the search compares.
SEARCHED: Mapping[str, Sequence[Any]] = {"smoothing": [0.0, 0.1]}


# ---- models


class NormalizedTrained(Trained):
    """The models of a run whose encoder ends with a normalisation: latent vectors of mean 0 and variance 1.

    Without it, foreign images may have latent vectors of any length, and long ones look certain.
    """

    def new_encoder(self) -> nn.Sequential:
        normalization = nn.LayerNorm(self.job.recipe.latent, elementwise_affine=False)
        return nn.Sequential(*super().new_encoder(), normalization)

    def cached(self, phase: str, depends: Mapping[str, Any], module: M, train: Callable[[M], None]) -> M:
        return super().cached(phase, {"normalized": True, **depends}, module, train)


# ---- calibration


class Calibration(NamedTuple):
    """Parameters fitted to held-out images: a temperature, and for a KDM the factor of its bandwidths."""

    model: DenseModel | KDMModel
    width: float
    temperature: float

    @classmethod
    def of(cls, model: DenseModel | KDMModel, x: Tensor, y: Int64[Tensor, " n"]) -> Calibration:
        if isinstance(model, DenseModel):
            return cls(model, 1.0, float(fit_temperature(in_parts(model.log_probs, x), y)))
        calibrated = calibrate(model.layer, encode(model.encoder, x), y)
        head = KDMModel(model.encoder, calibrated.head).eval()
        return cls(head, calibrated.width, float(calibrated.temperature))

    def measured(self, x: Tensor, y: Int64[Tensor, " n"]) -> dict[str, float]:
        """Scores at the temperature, and what was fitted."""
        calibrated = scores(in_parts(self.model.log_probs, x), y, self.temperature)
        return {
            "width": self.width,
            "temperature": self.temperature,
            **{f"calibrated_{name}": value for name, value in calibrated.items()},
        }


def scores(log_probs: Float[Tensor, "n k"], y: Int64[Tensor, " n"], t: float = 1.0) -> dict[str, float]:
    """Accuracy, mean −log p(y) and expected calibration error at a temperature."""
    scaled = (log_probs.double() / t).log_softmax(-1)
    return {
        "accuracy": float((scaled.argmax(1) == y).double().mean()),
        "nll": float(-scaled.gather(1, y.unsqueeze(1)).mean()),
        "ece": float(expected_calibration_error(scaled.exp(), y)),
    }


# ---- runs


def measure(job: Job, model: Model) -> dict[str, Any]:
    """Trains on nine tenths, calibrates on the other tenth, and scores the test images once."""
    trained, classifier = _trained(job, model)
    data, device = trained.data, trained.data.x_train.device
    whole = pictures(job.dataset, job.place.data_dir, held_out=False)
    x, y = whole.x_test.to(device), whole.y_test.to(device)
    others = novel_images(job.dataset, job.place.data_dir, data.shape, held_out=False, padded=True)
    return {
        **{f"test_{name}": value for name, value in scores(in_parts(classifier.log_probs, x), y).items()},
        **Calibration.of(classifier, data.x_test, data.y_test).measured(x, y),
        "novelty_auroc": novelty(trained, classifier, x, {k: v.to(device) for k, v in others.items()}),
        "train_images": len(data.y_train),
        "precision": trained.setting.precision,
    }


def measure_validation(job: Job, model: Model) -> dict[str, Any]:
    """The same without test images and other sets.

    One half of the held-out images calibrates, chooses the bandwidth of the density, and is what outsiders
    are made of; the other half is scored.
    """
    trained, classifier = _trained(job, model)
    x, y = trained.data.x_test, trained.data.y_test
    half = len(x) // 2
    log_probs = in_parts(classifier.log_probs, x[half:])
    return {
        **{f"validation_{name}": value for name, value in scores(log_probs, y[half:]).items()},
        **Calibration.of(classifier, x[:half], y[:half]).measured(x[half:], y[half:]),
        "novelty_auroc": novelty(trained, classifier, x[half:], outsiders(x[:half]), judged=half),
        "train_images": len(trained.data.y_train),
        "precision": trained.setting.precision,
    }


def _trained(job: Job, model: Model) -> tuple[Trained, DenseModel | KDMModel]:
    trained = NormalizedTrained(replace(job, recipe=recipe_of(model, job.recipe), held_out=True))
    return trained, trained.model(ALONE.get(model, model)).eval()


def novelty(
    trained: Trained,
    model: DenseModel | KDMModel,
    familiar: Tensor,
    others: Mapping[str, Tensor],
    *,
    judged: int | None = None,
) -> dict[str, dict[str, float]]:
    """AUROC of every score for known images against each of the other sets.

    Args:
        trained: its training images are the model's, its held-out images choose the bandwidth.
        model: encoder and head.
        known, others: images.
        judged: how many of the held-out images to use; None for all.
    """
    data = trained.data
    train, held_out, inside = (
        vectors(model.encoder, x) for x in (data.x_train, data.x_test[:judged], familiar)
    )
    outside = {name: vectors(model.encoder, x) for name, x in others.items()}
    every = {("latent", name): score for name, score in head_scores(model).items()}
    for kind, v in train.items():
        scores_of = vector_scores(v, data.y_train, held_out[kind].values)
        every |= {(kind, name): score for name, score in scores_of.items()}
    result = {}
    for (kind, name), score in every.items():
        values = in_parts(score, inside[kind].values)
        areas = {other: auroc(values, in_parts(score, v[kind].values)) for other, v in outside.items()}
        result[f"{name}, {kind}"] = areas
    return result


def run(output: Path, plan: Plan, *, fresh: bool = False, verbose: bool = True) -> Report:
    """Measures what is missing in `table1-heads.jsonl` and writes `table1-heads.md` from all its lines."""
    jobs = [
        replace(job, recipe=changed(job.recipe, SETTINGS))
        for dataset in plan.datasets
        for job in plan.jobs(dataset, "paper")
    ]
    _work(output / f"{NAME}.jsonl", plan, jobs, measure, fresh=fresh, verbose=verbose)
    return summarize(output)


def search(
    output: Path,
    plan: Plan,
    vary: Mapping[str, Sequence[Any]] = SEARCHED,
    *,
    fresh: bool = False,
    verbose: bool = True,
) -> Report:
    """Every combination of some settings, measured on validation images and on outsiders made of them.

    Args:
        output: the folder of `table1-heads-search.jsonl` and its table.
        plan: which runs to make.
        vary: the values to try of every setting.
        fresh: whether to measure again what was measured before.
        verbose: whether to show progress.
    """
    jobs = [
        replace(job, recipe=changed(job.recipe, dict(zip(vary, values, strict=True))))
        for dataset in plan.datasets
        for job in plan.jobs(dataset, "paper")
        for values in product(*vary.values())
    ]
    _work(output / f"{SEARCH}.jsonl", plan, jobs, measure_validation, fresh=fresh, verbose=verbose)
    return summarize(output)


def _work(
    path: Path,
    plan: Plan,
    jobs: Sequence[Job],
    measured: Callable[[Job, Model], dict[str, Any]],
    *,
    fresh: bool,
    verbose: bool,
) -> None:
    """Measures all models of all jobs, by seed; the models of a job follow one another and share phases."""
    tasks = list[Task]()
    for job in sorted(jobs, key=lambda job: job.seed):
        after = None
        for model in plan.models:
            key = {**job.key(model), "held_out": True, "normalized": True}
            tasks.append(Task(key, partial(measured, job, model), after))
            after = key
    with processes(plan.workers) as pool:
        run_tasks(tasks, path, fresh=fresh, verbose=verbose, pool=pool)


def summarize(output: Path) -> Report:
    """Writes the tables from the lines that there are."""
    rows, searched = (read_rows(output / f"{name}.jsonl") for name in (NAME, SEARCH))
    more = write_report(search_table(searched), output / f"{SEARCH}.md").files if searched else ()
    return write_report(table(newest(rows, ("dataset", "model"))), output / f"{NAME}.md", *more)
