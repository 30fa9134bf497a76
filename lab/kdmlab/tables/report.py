"""The report of the comparison: targets of the table model, and every part by table and method."""

from __future__ import annotations

from collections.abc import Sequence

from kdmlab.common import Mean, Report, Row, markdown_table, provenance, select
from kdmlab.tables.claims import PUBLISHED, TARGETS, claims, mean_ranks, values
from kdmlab.tables.parts import PARTS, PartName

_Cells = Sequence[tuple[str, str, str]]
#: The columns of every part: heading, field, format.
_COLUMNS: dict[PartName, _Cells] = {
    "generation": (
        ("C2ST", "c2st_xgb", ".3f"),
        ("C2ST, sdmetrics", "c2st_sdmetrics", ".3f"),
        ("C2ST, test rows", "c2st_xgb_test", ".3f"),
        ("C2ST, as many training rows", "c2st_xgb_as_many", ".3f"),
        ("AUC of XGBoost", "tstr_auc", ".4f"),
        ("parameters", "parameters", ",.0f"),
        ("log p, test rows", "test_log_prob", ".3f"),
        ("fit, s", "fit_seconds", ".0f"),
        ("processor, s", "fit_processor_seconds", ".0f"),
        ("draw, s", "draw_seconds", ".1f"),
    ),
    "copying": (("DCR share", "dcr_share", ".3f"), ("processor, s", "fit_processor_seconds", ".0f")),
    "prediction": (
        ("AUC", "auc", ".4f"),
        ("fit, s", "fit_seconds", ".0f"),
        ("processor, s", "fit_processor_seconds", ".0f"),
    ),
    "imputation": (("NRMSE", "nrmse", ".4f"), ("accuracy", "accuracy", ".4f"), ("s", "seconds", ".0f")),
    "intervals": (
        ("coverage", "coverage", ".3f"),
        ("claimed", "claimed", ".3f"),
        ("coverage of others", "coverage_other", ".3f"),
        ("claimed of others", "claimed_other", ".3f"),
        ("width", "width", ".3f"),
    ),
    "queries": (
        ("median, ms", "query_ms_p50", ".1f"),
        ("95 %, ms", "query_ms_p95", ".1f"),
        ("95 %, ms of the processor", "query_processor_ms_p95", ".1f"),
        ("95 % of levels", "levels_ms_p95", ".1f"),
        ("95 % of numbers", "numbers_ms_p95", ".1f"),
    ),
}
_DATA = (
    "Means over seeds; all methods have their default settings. `kdm` is `KDMTable()`, `independent` "
    "draws every column on its own. Device: where a table was fitted. "
    "Adult: UCI's files, `?` is a level (`adult`, as in published runs) or missing (`adult-missing`). Other "
    "tables: 90 % of the rows to train, 10 % to test (seed 0). Shoppers: codes are categories; its few "
    "empty cells are missing (the published copy has none)."
)
_NOTES: dict[PartName, str] = {
    "generation": "C2ST by XGBoost, 1: synthetic rows cannot be told from real ones (three folds, native "
    "categories); by sdmetrics' metric, as in published tables; against test rows with as many synthetic "
    "rows, and the same with as many training rows. AUC of XGBoost trained on synthetic rows (of `real`: on "
    "the training rows), tested on test rows, settings chosen on a held-out ninth of what it was trained on. "
    "Fit: by the clock, other programs may have run at the same time; processor: all threads of the fit. "
    "Real rows with a missing cell are left out of C2ST: synthetic rows have none.",
    "copying": "The share of synthetic rows that are nearer to the half of the training rows that the model "
    "was fitted to than to the other half; ties count ½, ½ is ideal.",
    "prediction": "AUC of the target given the rest of a test row; `kdm-targets` was told the target, "
    "`boosting` is scikit-learn's histogram boosting on the same rows.",
    "imputation": "30 % of all cells removed completely at random; every method is fitted to the incomplete "
    "rows (at most 10,000) and fills in the same rows. Means over columns: error of numbers over the "
    "standard deviation, share of right categories. The rank is the mean over both scores, among the "
    "methods that have them.",
    "intervals": "Share of held-out numbers within 90 % intervals given the rest of their row (at most "
    "2,000 test rows); the probability that the model gives to the same intervals; and width in standard "
    "deviations of the column. Where one value has more than 90 %, no interval holds less: the others are "
    "the cells without such a value.",
    "queries": "One question with one to four conditions and its answer: probabilities of levels, or mean "
    "and 90 % interval of a number.",
}


def section(rows: Sequence[Row], part: PartName) -> list[str]:
    """The table of a part: means over seeds by table, method and device."""
    subjects = dict.fromkeys((row["dataset"], row["method"], row.get("device", "")) for row in rows)
    columns = _COLUMNS[part]
    ranks = mean_ranks(rows) if part == "imputation" else {}
    lines = []
    for dataset, method, device in sorted(subjects, key=lambda s: (s[0], _place(part, s[1]), s[2])):
        some = select(rows, dataset=dataset, method=method)
        some = [row for row in some if row.get("device", "") == device]
        cells = [_mean(values(some, what), form) for _, what, form in columns]
        rank = [f"{ranks[dataset, method]:.1f}"] if (dataset, method) in ranks else []
        lines.append([dataset, method, device, *cells, *rank, str(len(some))])
    extra = ["rank"] if ranks else []
    header = ["data", "method", "device", *(heading for heading, _, _ in columns), *extra, "seeds"]
    return [f"## {part.capitalize()}", markdown_table(header, lines), _NOTES[part]]


def _place(part: PartName, method: str) -> int:
    measure = PARTS[part]
    return [*measure.methods, *measure.more_methods].index(method)


def _mean(numbers: Sequence[float], form: str) -> str:
    return format(Mean.of(numbers).mean, form) if numbers else ""


def report(rows: Sequence[Row], tables: str) -> Report:
    parts = [part for part in PARTS if select(rows, part=part)]
    notes = [
        *_targets(rows, tables),
        *(text for part in parts for text in section(select(rows, part=part), part)),
        *(_published() if tables == "paper" else []),
        _DATA,
        provenance(rows),
        f"Written by `kdmlab reproduce tables --list {tables} --data-dir DIR` from the lines beside it.",
    ]
    return Report("Mixed tables", notes=notes)


def _targets(rows: Sequence[Row], tables: str) -> list[str]:
    lines = [
        [dataset, claim.what, claim.target, claim.shown(".4g"), claim.verdict]
        for dataset, target in TARGETS.items()
        if tables == "paper" and select(rows, dataset=dataset)
        for claim in claims(rows, dataset, target)
    ]
    header = ["data", "what", "target", "measured", "met"]
    return ["## Targets", markdown_table(header, lines)] if lines else []


def _published() -> list[str]:
    lines = [[name, *(f"{v:g}" for v in numbers)] for name, numbers in PUBLISHED.items()]
    header = [f"{what}, {name}" for what in ("C2ST", "AUC") for name in ("Adult", "MAGIC", "Shoppers")]
    return ["## Published (TabPC's authors, C2ST by sdmetrics)", markdown_table(["method", *header], lines)]
