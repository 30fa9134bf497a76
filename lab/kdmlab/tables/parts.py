"""The parts of the comparison: what is measured of a table, a method and a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from kdmkit.metrics import boosting_score, dcr_share
from kdmlab.tables import answers, fits, methods
from kdmlab.tables.data import PAPER, TableData, complete, count, halves, sample_rows
from kdmlab.tables.detection import c2st, c2st_sdmetrics
from kdmlab.tables.fits import Fit, Variant
from kdmlab.tables.imputation import PEERS as IMPUTERS
from kdmlab.tables.imputation import SHARE, errors, table_imputed
from kdmlab.tables.others import read
from kdmlab.tables.prediction import GRID, table_auc, trained_auc

PartName = Literal["generation", "copying", "prediction", "imputation", "intervals", "queries"]
BOOSTING = "boosting"


@dataclass(frozen=True)
class Job:
    """A task: the part, table, method and seed that it measures, and the folders of its files.

    Args:
        part: what is measured.
        dataset, method, seed: of what.
        device: where table models are fitted.
        rows: training rows and test rows at most; None is all.
        data_dir: the folder of the data.
        work_dir: the folder of fits.
        processes: that fit at the same time.
    """

    part: PartName
    dataset: str
    method: str
    seed: int
    device: str
    rows: int | None
    data_dir: Path
    work_dir: Path
    processes: int = 1

    @property
    def key(self) -> dict[str, Any]:
        """The fields that identify the line."""
        fitted = {"device": self.device} if self.fit else {}
        rows = {} if self.rows is None else {"most_rows": self.rows}
        settings = {**PARTS[self.part].settings, **methods.settings(self.method), **rows}
        names = {"part": self.part, "dataset": self.dataset, "method": self.method, "seed": self.seed}
        return {**names, **fitted, "settings": settings}

    @property
    def fit(self) -> Fit | None:
        """The fit that the task needs; None for methods that are fitted while they are measured."""
        part = PARTS[self.part]
        if self.method not in (*methods.TABLES, *methods.PEERS, methods.TARGETS):
            return None
        if self.method == methods.TARGETS:
            return Fit(self.dataset, methods.KDM, "targets", self.seed, self.device, self.rows)
        return Fit(self.dataset, self.method, part.variant, self.seed, self.device, self.rows)

    def data(self) -> TableData:
        return PAPER[self.dataset](self.data_dir) if self.dataset in PAPER else read(self.dataset)

    def prepare(self) -> Path | None:
        """Makes the fit unless it is there; its folder."""
        return None if self.fit is None else fits.make(self.fit, self.data(), self.work_dir, self.processes)

    def measure(self) -> dict[str, Any]:
        folder = self.prepare()
        measured = PARTS[self.part].measure(self, self.data().limited(self.rows), folder)
        return {**measured, **({} if folder is None else fits.facts(folder))}


# ---- measures


def generation(job: Job, data: TableData, folder: Path | None) -> dict[str, Any]:
    """C2ST against training rows and against test rows, and AUC of XGBoost trained on the synthetic rows.

    Against test rows there are as many synthetic rows as test rows. A classifier that has fewer rows sees
    less, so the same is measured with as many training rows, for a fair comparison (`c2st_xgb_as_many`). The
    method `real` has the training rows in place of synthetic ones.
    """
    train, test = complete(data.train), complete(data.test)
    if folder is None:
        auc = trained_auc(data.train, data.test, data.target, job.seed)
        return {"tstr_auc": auc, "c2st_xgb_test": c2st(test, sample_rows(train, count(test), job.seed))}
    synthetic = fits.synthetic_in(folder)
    few = sample_rows(synthetic, count(test), job.seed)
    likelihood = _log_prob(folder, data) if job.method in methods.TABLES else {}
    return {
        **likelihood,
        "c2st_xgb": c2st(train, synthetic),
        "c2st_sdmetrics": c2st_sdmetrics(train, synthetic, data.codes),
        "c2st_xgb_test": c2st(test, few),
        "c2st_xgb_as_many": c2st(sample_rows(train, count(test), job.seed), few),
        "tstr_auc": trained_auc(synthetic, data.test, data.target, job.seed),
    }


def _log_prob(folder: Path, data: TableData) -> dict[str, float]:
    """Mean log p of the test rows."""
    return {"test_log_prob": float(np.mean(fits.model_in(folder).score_samples(data.test)))}


def copying(job: Job, data: TableData, folder: Path | None) -> dict[str, Any]:
    """A model of one half of the training rows: are its rows nearer to that half than to the other?"""
    assert folder is not None
    synthetic = fits.synthetic_in(folder)
    real = [complete({name: part[name] for name in synthetic}) for part in halves(data.train, job.seed)]
    return {"dcr_share": dcr_share(synthetic, *real)}


def prediction(job: Job, data: TableData, folder: Path | None) -> dict[str, Any]:
    """AUC of the target given the rest of each test row."""
    if folder is None:
        return {"auc": boosting_score(data.train, data.test, data.target, seed=job.seed)}
    return {"auc": table_auc(fits.model_in(folder), data.test, data.target)}


def imputation(job: Job, data: TableData, folder: Path | None) -> dict[str, Any]:
    truth, left, removed = fits.incomplete(data, job.seed)
    if folder is None:
        filled = IMPUTERS[job.method](left, job.seed)
    else:
        filled = table_imputed(fits.model_in(folder), left)
    return {**errors(truth, filled, removed), "rows": count(truth)}


def intervals(job: Job, data: TableData, folder: Path | None) -> dict[str, Any]:
    assert folder is not None
    return answers.interval_scores(fits.model_in(folder), data.test)


def queries(job: Job, data: TableData, folder: Path | None) -> dict[str, Any]:
    assert folder is not None
    return answers.query_times(fits.model_in(folder), data.train, job.seed)


@dataclass(frozen=True)
class Part:
    """A part of the comparison: its measure, the fits that it needs, its methods and their settings."""

    measure: Callable[[Job, TableData, Path | None], Mapping[str, Any]]
    variant: Variant
    methods: Sequence[str]
    settings: Mapping[str, Any]
    more_methods: Sequence[str] = ()


PARTS: dict[PartName, Part] = {
    "generation": Part(
        generation,
        "all",
        (*methods.DEFAULT, methods.REAL),
        {"xgboost": {key: list(values) for key, values in GRID.items()}},
        ("ctgan", "tvae"),
    ),
    "copying": Part(copying, "half", methods.DEFAULT, {}, ("ctgan", "tvae")),
    "prediction": Part(prediction, "all", (methods.KDM, methods.TARGETS, BOOSTING), {}),
    "imputation": Part(
        imputation,
        "incomplete",
        (methods.KDM, *IMPUTERS),
        {"share": SHARE, "imputed_rows": fits.IMPUTATION_ROWS},
    ),
    "intervals": Part(intervals, "all", (methods.KDM,), {"test_rows": answers.INTERVAL_ROWS}),
    "queries": Part(queries, "all", (methods.KDM,), {"questions": answers.QUESTIONS}),
}
