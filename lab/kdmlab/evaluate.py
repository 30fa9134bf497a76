"""The report of `KDMTable.evaluate` on real tables, beside the laboratory's numbers for the same draws."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import kdmkit as kdm
from kdmkit.metrics import boosting_score, c2st, dcr_share
from kdmlab.common import (
    Claim,
    Report,
    Row,
    Task,
    claims_table,
    markdown_table,
    provenance,
    read_rows,
    run_tasks,
    select,
    write_report,
)
from kdmlab.tables.data import PAPER, Array, Rows, TableData, complete, count, halves, sample_rows

DATASETS = ("adult", "magic", "shoppers")
#: What is measured of a table: all training rows with the test rows, a half with the other half, the time.
REPORT, HALF, TIME = "report", "half", "time"
#: Rows of the table whose report is timed, and threads.
TIMED_ROWS, SEED = 30_000, 0
# Targets: seconds, differences from the laboratory, membership inference.
_MOST_SECONDS, _MOST_GAP, _MOST_AUC = 60, 0.01, 0.53


def run(
    folder: Path,
    data_dir: Path,
    *,
    datasets: Sequence[str] = (),
    work_dir: Path = Path("runs/evaluate"),
    fresh: bool = False,
    verbose: bool = True,
) -> Report:
    """Fits tables with default settings, evaluates them, and writes `evaluate.jsonl` and `evaluate.md`.

    Args:
        folder: where the results are and go.
        data_dir: the folder of the files of Adult, MAGIC and Shoppers.
        datasets: some of these; none: all of them.
        work_dir: the folder of fits.
        fresh: whether to fit and measure again.
        verbose: whether to show progress.
    """
    wanted = tasks(data_dir, work_dir, datasets or DATASETS)
    run_tasks(wanted, folder / "evaluate.jsonl", fresh=fresh, verbose=verbose)
    return summarize(folder)


def tasks(data_dir: Path, work_dir: Path, datasets: Sequence[str] = DATASETS) -> list[Task]:
    """All measurements."""
    every = []
    for dataset in datasets:
        for part, measure in ((REPORT, measure_report), (HALF, measure_half), (TIME, measure_time)):
            if part != TIME or dataset == DATASETS[0]:
                key = {"part": part, "dataset": dataset, "seed": SEED, "settings": "defaults"}
                every.append(Task(key, partial(measure, dataset, data_dir, work_dir)))
    return every


def fitted(data: TableData, rows: Rows, path: Path) -> kdm.KDMTable:
    """A table with default settings, fitted once; unknown cells of categories are levels, as published."""
    if path.exists():
        loaded: kdm.KDMTable = kdm.load(path)
        return loaded
    schema = {"columns": {name: {"kind": "category", "missing": []} for name in data.categories}}
    table = kdm.KDMTable(schema=schema, random_state=SEED, device="cpu").fit(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    kdm.save(table, path)
    return table


def measure_report(dataset: str, data_dir: Path, work_dir: Path) -> dict[str, Any]:
    """The whole report, and the laboratory's C2ST and AUC of the same draws."""
    from kdmlab.tables.detection import xgboost_classifier

    data = PAPER[dataset](data_dir)
    table = fitted(data, data.train, work_dir / f"{dataset}-all.safetensors")
    synthetic = table.sample(count(data.train), random_state=SEED)
    start = time.process_time()
    report = table.evaluate(data.train, data.test, synthetic=synthetic, targets=[data.target])
    seconds = time.process_time() - start
    real = complete(data.train)
    drawn = complete(synthetic)
    lab = {
        "c2st": c2st(real, drawn),
        "c2st_xgboost": c2st(real, drawn, xgboost_classifier),
        "auc": boosting_score(synthetic, data.test, data.target),
    }
    return {"report": _short(report), "lab": lab, "cpu_seconds": seconds}


def measure_half(dataset: str, data_dir: Path, work_dir: Path) -> dict[str, Any]:
    """A fit to one half, judged with the other one: the DCR share of the protocol, and membership."""
    data = PAPER[dataset](data_dir)
    seen, unseen = halves(data.train, SEED)
    table = fitted(data, seen, work_dir / f"{dataset}-half.safetensors")
    synthetic = table.sample(count(seen), random_state=SEED)
    report = table.evaluate(seen, unseen, synthetic=synthetic)
    real = [complete(_common(part, synthetic)) for part in (seen, unseen)]
    return {"report": _short(report), "lab": {"dcr_share": dcr_share(complete(synthetic), *real)}}


def measure_time(dataset: str, data_dir: Path, work_dir: Path) -> dict[str, Any]:
    """The time of the report on 30,000 rows of the fit, as many draws, and the test rows."""
    data = PAPER[dataset](data_dir)
    table = fitted(data, data.train, work_dir / f"{dataset}-all.safetensors")
    rows = sample_rows(data.train, TIMED_ROWS)
    start, cpu = time.perf_counter(), time.process_time()
    report = table.evaluate(rows, data.test, targets=[data.target])
    return {
        "wall_seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu,
        "columns": len(report.columns),
        "parts": report.seconds,
    }


def _common(rows: Mapping[str, Array], others: Mapping[str, Array]) -> Rows:
    return {name: rows[name] for name in others}


def _short(report: Any) -> dict[str, Any]:
    """The numbers of a report that a line keeps."""
    numbers = report.to_dict()
    names = ("n_rows", "used_rows", "c2st", "prediction", "privacy", "rules", "seconds")
    return {
        **{name: numbers[name] for name in names},
        "similarity": report.similarity,
        "pair_similarity": report.pair_similarity,
    }


# ---- the report

_HEADER = (
    *("data", "columns", "pairs", "C2ST", "C2ST, XGBoost", "C2ST, test rows", "as many training rows"),
    *("AUC", "AUC, real", "copies", "nearer to training rows", "membership AUC", "broken rules"),
)


def summarize(folder: Path) -> Report:
    """Writes the tables from the lines that there are."""
    rows = read_rows(folder / "evaluate.jsonl")
    notes = [
        claims_table(_claims(rows), ".4f"),
        "## Reports",
        markdown_table(
            _HEADER,
            [_line(row) for row in select(rows, part=REPORT)],
        ),
        "Columns and pairs: mean similarity. C2ST: histogram boosting, 1 where synthetic rows cannot be told "
        "from real ones; by XGBoost on the same draws; against test rows, and against as many training rows. "
        "AUC: histogram boosting that learned from synthetic rows, or from the training rows, on test rows. "
        "Copies: the share of synthetic rows that equal a training row. Broken rules: the largest share of "
        "synthetic rows that break one rule.",
        "## Fits to one half",
        markdown_table(
            ["data", "DCR share, evaluate", "DCR share, laboratory", "membership AUC"],
            [_half_line(row) for row in select(rows, part=HALF)],
        ),
        "The model is fitted to one half of the training rows; the other half is held out. `evaluate` takes "
        "at most 16,000 rows of each part for distances, and 10,000 for membership.",
        "## Time",
        *(_time_note(row) for row in select(rows, part=TIME)),
        "Default settings, seed 0. Adult: UCI's files, `?` is a level. MAGIC, Shoppers: 90 % of the rows to "
        "train, 10 % to test; categories are named. The laboratory leaves rows with missing cells out.",
        provenance(rows),
        "Written by `kdmlab reproduce evaluate --data-dir DIR` from the lines in `evaluate.jsonl`.",
    ]
    return write_report(Report("Reports on synthetic rows", notes=notes), folder / "evaluate.md")


def _claims(rows: Sequence[Row]) -> list[Claim]:
    adult, half = select(rows, part=REPORT, dataset="adult"), select(rows, part=HALF, dataset="adult")
    gaps = {
        "C2ST": [abs(row["report"]["c2st"]["training"] - row["lab"]["c2st"]) for row in adult],
        "AUC": [abs(_auc(row)["synthetic"] - row["lab"]["auc"]) for row in adult],
        "DCR share": [abs(row["report"]["privacy"]["dcr_share"] - row["lab"]["dcr_share"]) for row in half],
    }
    return [
        *(
            Claim(f"Adult, {what}: evaluate less the laboratory", gap, most=_MOST_GAP)
            for what, gap in gaps.items()
        ),
        *(
            Claim(
                f"{dataset}, membership inference, AUC",
                [
                    row["report"]["privacy"]["membership_auc"]
                    for row in select(rows, part=REPORT, dataset=dataset)
                ],
                most=_MOST_AUC,
            )
            for dataset in DATASETS
        ),
        Claim(
            "30,000 rows: seconds of a processor, all threads",
            [row["cpu_seconds"] for row in select(rows, part=TIME)],
            most=_MOST_SECONDS,
        ),
    ]


def _auc(row: Row) -> dict[str, float]:
    scores: dict[str, float] = next(iter(row["report"]["prediction"].values()))
    return scores


def _line(row: Row) -> list[str]:
    report, lab, auc = row["report"], row["lab"], _auc(row)
    tests, privacy = report["c2st"], report["privacy"]
    broken = max((shares["synthetic"] for shares in report["rules"].values()), default=0.0)
    numbers = [
        *(report["similarity"], report["pair_similarity"], tests["training"], lab["c2st_xgboost"]),
        *(tests["holdout"], tests["as_many_training"], auc["synthetic"], auc["real"]),
    ]
    shares = [f"{privacy['copies']:.2%}", f"{privacy['dcr_share']:.3f}", f"{privacy['membership_auc']:.3f}"]
    return [row["dataset"], *(f"{number:.3f}" for number in numbers), *shares, f"{broken:.2%}"]


def _half_line(row: Row) -> list[str]:
    privacy = row["report"]["privacy"]
    shares = (privacy["dcr_share"], row["lab"]["dcr_share"], privacy["membership_auc"])
    return [row["dataset"], *(f"{share:.4f}" for share in shares)]


def _time_note(row: Row) -> str:
    parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in row["parts"].items())
    return (
        f"{TIMED_ROWS:,} rows of {row['dataset']} with {row['columns']} columns: {row['cpu_seconds']:.0f} s "
        f"of a processor, {row['wall_seconds']:.0f} s by the clock. Seconds of the parts there: {parts}."
    )
