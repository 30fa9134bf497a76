"""Targets of the estimators: accuracy, calibration, novelty, generation, intervals and time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import (
    load_breast_cancer,
    load_digits,
    load_iris,
    load_wine,
    make_classification,
    make_moons,
)
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from kdmkit import KDMClassifier, KDMRegressor
from kdmkit.metrics import expected_calibration_error, interval_coverage
from kdmlab.common import (
    Claim,
    Report,
    Row,
    Task,
    provenance,
    read_rows,
    run_tasks,
    select,
    write_report,
)
from kdmlab.common.checks import check_choice

Array = NDArray[Any]


class Measure(StrEnum):
    """Groups of measurements; each can be run without the others."""

    accuracy = "accuracy"
    encoder = "encoder"
    digits = "digits"
    intervals = "intervals"
    scale = "scale"


FOLDS = 5
SPLITS = 10
REPEATS = 5
WHITE = 16.0


# ---- what is measured


def accuracy(X: Array, y: Array, train: Array, test: Array) -> dict[str, Any]:
    """Accuracy of the default classifier behind a scaler, on one fold."""
    model = make_pipeline(StandardScaler(), KDMClassifier(random_state=0)).fit(X[train], y[train])
    return {"accuracy": float(model.score(X[test], y[test]))}


def accuracy_tasks() -> Iterable[Task]:
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    for name, (X, y) in _tables().items():
        for fold, (train, test) in enumerate(folds.split(X, y)):
            key = {"measure": "accuracy", "data": name, "fold": fold, "folds": FOLDS, "seed": 0}
            yield Task(key, partial(accuracy, X, y, train, test))


def _tables() -> dict[str, tuple[Array, Array]]:
    loaders = {
        "digits": load_digits,
        "breast cancer": load_breast_cancer,
        "wine": load_wine,
        "iris": load_iris,
    }
    moons = make_moons(1000, noise=0.2, random_state=0)
    return {name: load(return_X_y=True) for name, load in loaders.items()} | {"two moons": moons}


def encoder(seed: int) -> dict[str, Any]:
    """Accuracy on digits with a multi-layer perceptron as encoder."""
    X, X_test, y, y_test = _split_digits(seed)
    model = KDMClassifier(encoder="mlp", random_state=seed).fit(X, y)
    return {"accuracy": float(model.score(X_test, y_test))}


def encoder_tasks() -> Iterable[Task]:
    for seed in range(SPLITS):
        yield Task(
            {"measure": "encoder", "data": "digits", "encoder": "mlp", "seed": seed}, partial(encoder, seed)
        )


def _split_digits(seed: int) -> list[Array]:
    X, y = load_digits(return_X_y=True)
    parts: list[Array] = train_test_split(X, y, test_size=0.25, random_state=seed)
    return parts


def digits(seed: int) -> dict[str, Any]:
    """Calibration, novelty and generation of one model of digits in pixels."""
    X, X_test, y, y_test = _split_digits(seed)
    model = KDMClassifier(random_state=seed).fit(X, y)
    inside = model.score_samples(X_test)
    noise = np.random.default_rng(seed).uniform(0, WHITE, X_test.shape)
    return {
        "ece": float(expected_calibration_error(model.predict_proba(X_test), y_test)),
        "auroc_noise": _auroc(inside, model.score_samples(noise)),
        "auroc_inverted": _auroc(inside, model.score_samples(WHITE - X_test)),
        "threes": float((model.predict(model.sample(20, y=3)) == 3).mean()),
    }


def digits_tasks() -> Iterable[Task]:
    for seed in range(REPEATS):
        yield Task({"measure": "digits", "data": "digits", "seed": seed}, partial(digits, seed))


def _auroc(inside: Array, novel: Array) -> float:
    """The area under the ROC curve of −log p(x) as a score of novelty."""
    truth = np.r_[np.zeros(len(inside)), np.ones(len(novel))]
    return float(roc_auc_score(truth, -np.r_[inside, novel]))


def intervals(problem: str, seed: int) -> dict[str, Any]:
    """The share of held-out targets inside 90 % intervals."""
    X, y = PROBLEMS[problem](np.random.default_rng(seed), 4000)
    model = KDMRegressor(random_state=seed).fit(X[::2], y[::2])
    low, high = model.predict_interval(X[1::2], coverage=0.9).T
    return {"coverage": float(interval_coverage(low, high, y[1::2]))}


def intervals_tasks() -> Iterable[Task]:
    for problem in PROBLEMS:
        for seed in range(REPEATS):
            key = {"measure": "intervals", "data": problem, "rows": 2000, "seed": seed}
            yield Task(key, partial(intervals, problem, seed))


def _heteroscedastic(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
    """A sine wave; the noise grows with |x|."""
    x = rng.uniform(-3, 3, (n, 1))
    return x, np.sin(2 * x[:, 0]) + (0.1 + 0.2 * np.abs(x[:, 0])) * rng.normal(size=n)


def _bimodal(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
    """Two equally likely branches, far apart."""
    x = rng.uniform(-3, 3, (n, 1))
    branch = rng.choice([-1.0, 1.0], n)
    return x, branch * (1.2 + 0.5 * np.sin(2 * x[:, 0])) + 0.15 * rng.normal(size=n)


PROBLEMS = {"heteroscedastic": _heteroscedastic, "bimodal": _bimodal}
SCALE = {"rows": 50_000, "features": 30, "components": 256, "epochs": 20}


def scale() -> dict[str, Any]:
    """Time of a large fit, and how much its peak of memory exceeds that of a fit of two epochs."""
    X, y = make_classification(
        SCALE["rows"], SCALE["features"], n_informative=15, n_classes=5, random_state=0
    )
    model = KDMClassifier(n_components=SCALE["components"], patience=None, random_state=0)
    model.set_params(max_epochs=2).fit(X, y)
    before = _peak_memory()
    start = time.perf_counter()
    model.set_params(max_epochs=SCALE["epochs"]).fit(X, y)
    seconds = time.perf_counter() - start
    return {"fit_seconds": round(seconds, 2), "memory_growth": _peak_memory() / before - 1}


def scale_tasks() -> Iterable[Task]:
    yield Task({"measure": "scale", "data": "made", **SCALE, "seed": 0}, scale)


def _peak_memory() -> int:
    """The largest resident size of this process so far."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


TASKS: dict[Measure, Callable[[], Iterable[Task]]] = {
    Measure.accuracy: accuracy_tasks,
    Measure.encoder: encoder_tasks,
    Measure.digits: digits_tasks,
    Measure.intervals: intervals_tasks,
    Measure.scale: scale_tasks,
}


# ---- targets

ACCURACY = {"digits": 0.975, "breast cancer": 0.965, "wine": 0.97, "iris": 0.95, "two moons": 0.96}


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Every target with what was measured."""

    def values(measure: Measure, data: str, result: str) -> list[float]:
        return [row[result] for row in select(rows, measure=measure.value, data=data)]

    def of_digits(result: str) -> list[float]:
        return values(Measure.digits, "digits", result)

    mlp = values(Measure.encoder, "digits", "accuracy")
    of_mlp = f"digits, encoder='mlp': accuracy, {SPLITS} splits"
    large = f"{SCALE['rows']:,} × {SCALE['features']} rows, {SCALE['components']} components"
    return [
        *(
            Claim(f"{name}: accuracy, {FOLDS} folds", values(Measure.accuracy, name, "accuracy"), least)
            for name, least in ACCURACY.items()
        ),
        Claim(f"{of_mlp}, mean", mlp, 0.98),
        Claim(f"{of_mlp}, minimum", mlp, 0.955, summary="minimum"),
        Claim("digits: share of sample(20, y=3) read as 3", of_digits("threes"), 0.9),
        Claim("digits: expected calibration error", of_digits("ece"), most=0.03),
        Claim("digits: novelty AUROC against uniform noise", of_digits("auroc_noise"), 0.99),
        Claim("digits: novelty AUROC against inverted digits", of_digits("auroc_inverted"), 0.99),
        *(
            Claim(
                f"{name}: coverage of 90 % intervals",
                values(Measure.intervals, name, "coverage"),
                0.87,
                0.93,
            )
            for name in PROBLEMS
        ),
        Claim(
            f"{large}, {SCALE['epochs']} epochs: seconds",
            values(Measure.scale, "made", "fit_seconds"),
            most=60,
        ),
        Claim(
            "the same: growth of peak memory since 2 epochs",
            values(Measure.scale, "made", "memory_growth"),
            most=0.05,
        ),
    ]


def run(
    folder: Path,
    *,
    only: Sequence[str] = (),
    fresh: bool = False,
    verbose: bool = True,
) -> Report:
    """Measures what is missing and writes `estimators.jsonl` and `estimators.md`.

    Args:
        folder: where the results are and go.
        only: the measures to take; none means all of them.
        fresh: whether to measure again what was measured before.
        verbose: whether to show progress.
    """
    for name in only:
        check_choice("only", name, [measure.value for measure in Measure])
    path = folder / "estimators.jsonl"
    chosen = [task for name in only or Measure for task in TASKS[Measure(name)]()]
    rows = run_tasks(chosen, path, fresh=fresh, verbose=verbose)
    return write_report(report(rows), path.with_suffix(".md"))


def summarize(folder: Path) -> Report:
    """Writes `estimators.md` from the lines that there are."""
    path = folder / "estimators.jsonl"
    return write_report(report(read_rows(path)), path.with_suffix(".md"))


def report(rows: Sequence[Row]) -> Report:
    """Every claim with its target, what was measured, and the lowest and highest run."""
    header = ["what", "target", "measured", "lowest", "highest", "met"]
    notes = (
        f"Default parameters. {FOLDS} folds: stratified, shuffled with seed 0, a StandardScaler in front, "
        f"`random_state=0`. Digits otherwise: 25 % held out, split and fit with seeds 0 … {SPLITS - 1} "
        f"(encoder) and 0 … {REPEATS - 1}. Intervals: 2,000 rows to fit, 2,000 to judge, {REPEATS} seeds. "
        "Measured is the mean unless it says minimum.",
        provenance(rows),
        "Written by `kdmlab reproduce estimators` from the lines in `estimators.jsonl`.",
    )
    return Report("What the estimators promise", header, [_cells(claim) for claim in claims(rows)], notes)


def _cells(claim: Claim) -> list[str]:
    ends = [f"{end(claim.values):.4g}" if claim.values else "" for end in (min, max)]
    return [claim.what, claim.target, claim.shown(".4g"), *ends, claim.verdict]
