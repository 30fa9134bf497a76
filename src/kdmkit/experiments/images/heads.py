"""Heads that are calibrated on validation images, and scores of novelty on the same latent vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from scipy.optimize import minimize_scalar
from torch import Tensor

from kdmkit.experiments.common import (
    Mean,
    Report,
    Row,
    Task,
    markdown_table,
    newest,
    processes,
    provenance,
    read_rows,
    run_tasks,
    select,
    write_report,
)
from kdmkit.experiments.images.data import novel_images, pictures
from kdmkit.experiments.images.jobs import Job, Trained
from kdmkit.experiments.images.measures import auroc
from kdmkit.experiments.images.models import DenseModel, KDMModel, encode, in_parts
from kdmkit.experiments.images.plans import Plan
from kdmkit.experiments.images.recipes import ALONE, DATASETS, MODELS, Model, recipe_of
from kdmkit.metrics import expected_calibration_error

NAME = "table1-heads"
# The neighbour whose distance is a score.
_NEIGHBOUR = 10
# Training images among which neighbours are looked for.
_MEMORY = 50_000

Score = Callable[[Tensor], Tensor]


# ---- calibration


def temperature(log_probs: Float[Tensor, "n k"], y: Int64[Tensor, " n"]) -> float:
    """T with the least mean −log p(y), p ∝ exp(log_probs / T).

    >>> logits, y = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0]]), torch.tensor([0, 0, 1])
    >>> round(temperature(logits, y), 3)    # two of three are right: logits of log 2
    5.771
    """

    def loss(log_t: float) -> float:
        return scores(log_probs, y, float(torch.tensor(log_t).exp()))["nll"]

    found = minimize_scalar(loss, bounds=(-3.0, 3.0), method="bounded", options={"xatol": 1e-5})
    return float(torch.tensor(found.x).double().exp())


def scores(log_probs: Float[Tensor, "n k"], y: Int64[Tensor, " n"], t: float = 1.0) -> dict[str, float]:
    """Accuracy, mean −log p(y) and expected calibration error at a temperature."""
    scaled = (log_probs.double() / t).log_softmax(-1)
    return {
        "accuracy": float((scaled.argmax(1) == y).double().mean()),
        "nll": float(-scaled.gather(1, y.unsqueeze(1)).mean()),
        "ece": float(expected_calibration_error(scaled.exp(), y)),
    }


# ---- novelty


def novelty_scores(
    model: DenseModel | KDMModel, z: Float[Tensor, "n e"], y: Int64[Tensor, " n"]
) -> dict[str, Score]:
    """Functions of latent vectors that are low for novel ones; z and y are those of training images."""
    found: dict[str, Score] = {
        "max-probability": lambda v: _head(model, v).log_softmax(-1).amax(-1),
        "Mahalanobis": mahalanobis(z, y),
        "nearest neighbour": partial(_nearest, z[:_MEMORY]),
    }
    if isinstance(model, KDMModel):
        found["log evidence"] = lambda v: model.layer.joint().marginal("x").log_prob(v)
    else:
        found["energy"] = lambda v: _head(model, v).logsumexp(-1)
    return found


def _head(model: DenseModel | KDMModel, z: Float[Tensor, "n e"]) -> Float[Tensor, "n k"]:
    """Logits, or log-probabilities of a KDM."""
    if isinstance(model, DenseModel):
        return model.head(z).float()
    rho = model.layer(z)
    labels = torch.arange(rho.event_shape[0], device=z.device).unsqueeze(-1)
    return rho.log_prob(labels).mT


def mahalanobis(z: Float[Tensor, "n e"], y: Int64[Tensor, " n"]) -> Score:
    """−min_c (v − μ_c)ᵀΣ⁻¹(v − μ_c), with the classes' means and their common covariance."""
    z = z.double()
    means = torch.stack([z[y == label].mean(0) for label in y.unique()])
    inside = z - means[torch.searchsorted(y.unique(), y)]
    covariance = inside.mT @ inside / len(z)
    ridge = 1e-6 * covariance.diagonal().mean() * torch.eye(len(covariance)).to(covariance)
    factor = torch.linalg.cholesky(covariance + ridge)

    def score(v: Tensor) -> Tensor:
        white = torch.linalg.solve_triangular(factor, v.double().mT, upper=False).mT
        centres = torch.linalg.solve_triangular(factor, means.mT, upper=False).mT
        return -torch.cdist(white, centres).square().amin(1)

    return score


def _nearest(memory: Float[Tensor, "n e"], v: Float[Tensor, "m e"]) -> Float[Tensor, " m"]:
    """Minus the distance to the tenth neighbour among training images, on the unit sphere."""
    memory, v = (torch.nn.functional.normalize(part, dim=-1) for part in (memory, v))
    return -torch.cdist(v, memory).kthvalue(min(_NEIGHBOUR, len(memory)), dim=1).values


# ---- runs


def measure(job: Job, model: Model) -> dict[str, Any]:
    """Trains on nine tenths, fits the temperature to the other tenth, and scores the test images once."""
    job = replace(job, recipe=recipe_of(model, job.recipe), held_out=True)
    trained = Trained(job)
    found, data = trained.model(ALONE.get(model, model)).eval(), trained.data
    whole = pictures(job.dataset, job.place.data_dir, held_out=False)
    test, labels = whole.x_test.to(data.x_train.device), whole.y_test.to(data.x_train.device)
    fitted = temperature(in_parts(found.log_probs, data.x_test), data.y_test)
    log_probs = in_parts(found.log_probs, test)
    others = novel_images(job.dataset, job.place.data_dir, data.shape, held_out=False, padded=True)
    known = novelty_scores(found, encode(found.encoder, data.x_train), data.y_train)
    inside = encode(found.encoder, test)
    outside = {name: encode(found.encoder, x.to(test.device)) for name, x in others.items()}
    return {
        "temperature": fitted,
        **{f"test_{name}": value for name, value in scores(log_probs, labels).items()},
        **{f"calibrated_{name}": value for name, value in scores(log_probs, labels, fitted).items()},
        "novelty_auroc": {
            name: {other: auroc(in_parts(score, inside), in_parts(score, v)) for other, v in outside.items()}
            for name, score in known.items()
        },
        "train_images": len(data.y_train),
        "precision": trained.setting.precision,
    }


def run(output: Path, plan: Plan, *, fresh: bool = False, verbose: bool = True) -> Report:
    """Measures what is missing in `table1-heads.jsonl` and writes `table1-heads.md` from all its lines."""
    tasks = [
        Task({**job.key(model), "held_out": True}, partial(measure, job, model))
        for dataset in plan.datasets
        for job in plan.jobs(dataset, "paper")
        for model in plan.models
    ]
    with processes(plan.workers) as pool:
        run_tasks(tasks, output / f"{NAME}.jsonl", fresh=fresh, verbose=verbose, pool=pool)
    return summarize(output)


def summarize(output: Path) -> Report:
    """Writes `table1-heads.md` from the lines that there are."""
    rows = newest(read_rows(output / f"{NAME}.jsonl"), ("dataset", "model"))
    return write_report(report(rows), output / f"{NAME}.md")


def report(rows: Sequence[Row]) -> Report:
    header = ["data", "model", "runs", "accuracy", "NLL", "ECE", "temperature", "NLL at it", "ECE at it"]
    groups = [
        (dataset, model, some)
        for dataset in DATASETS
        for model in MODELS
        if (some := select(rows, dataset=dataset, model=model))
    ]
    fields = ("test_accuracy", "test_nll", "test_ece", "temperature", "calibrated_nll", "calibrated_ece")
    cells = [
        [dataset, model, str(len(some)), *(f"{_mean(some, field):.4f}" for field in fields)]
        for dataset, model, some in groups
    ]
    novelty = [line for group in groups for line in _novelty(*group)]
    notes = (
        "Trained on nine tenths of the training images; the temperature has the least NLL on the other "
        "tenth. NLL in nats and ECE with 15 bins on the official test images, without and with the "
        "temperature.",
        "## Novelty",
        markdown_table(["data", "model", "score", "against", "AUROC"], novelty),
        "Test images against images of other sets (smaller ones are padded), by functions of the same latent "
        "vectors. Other sets choose nothing.",
        provenance(rows),
        "Written by `kdmkit reproduce heads` from the lines in `table1-heads.jsonl`.",
    )
    return Report("Calibration and novelty of image heads", header, cells, notes)


def _mean(rows: Sequence[Row], field: str) -> float:
    return Mean.of([row[field] for row in rows]).mean


def _novelty(dataset: str, model: str, rows: Sequence[Row]) -> list[list[str]]:
    found: Mapping[str, Mapping[str, float]] = rows[-1]["novelty_auroc"]
    return [
        [dataset, model, score, other, Mean.of([row["novelty_auroc"][score][other] for row in rows]).text]
        for score, others in found.items()
        for other in others
    ]
