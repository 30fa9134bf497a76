"""Targets of the table model, its scores, and published scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kdmlab.common import Claim, Mean, Row, select
from kdmlab.tables import methods
from kdmlab.tables.parts import BOOSTING

#: Seeds that a claim is about.
SEEDS = 5


@dataclass(frozen=True)
class Target:
    """Targets on one table.

    Args:
        c2st: C2ST by XGBoost, at least.
        tstr: how far the AUC of trees trained on synthetic rows may be below that of real rows.
        dcr: the share of rows nearer to the training half, at most.
        joint, named: the AUC of the target given the rest less that of boosting, at least; `named`: of a fit
            that knows the target.
        processor_seconds: of a fit on a CPU, all threads, at most.
        gpu_seconds: of a fit, at most.
    """

    c2st: float
    tstr: float
    dcr: float
    joint: float
    named: float
    processor_seconds: float
    gpu_seconds: float


TARGETS = {
    "adult": Target(0.95, 0.005, 0.535, -0.005, 0, 30, 8),
    "magic": Target(0.90, 0.008, 0.535, -0.005, 0, 25, 4),
    "shoppers": Target(0.91, 0.010, 0.535, -0.012, -0.005, 15, 3),
}
#: Adult, MAGIC, Shoppers: C2ST, then the AUC of trees trained on synthetic rows; means of five runs by the
#: authors of TabPC (arXiv 2603.23016).
PUBLISHED = {
    "CTGAN": (0.000, 0.103, 0.000, 0.862, 0.882, 0.850),
    "TVAE": (0.000, 0.298, 0.000, 0.871, 0.918, 0.903),
    "TabSyn": (0.794, 0.760, 0.655, 0.910, 0.937, 0.914),
    "TabDiff": (0.841, 0.773, 0.736, 0.913, 0.936, 0.917),
    "independent columns": (0.016, 0.005, 0.021, 0.516, 0.512, 0.449),
    "flat mixture": (0.773, 0.626, 0.290, 0.902, 0.928, 0.863),
    "TabPC": (0.855, 0.860, 0.894, 0.916, 0.932, 0.897),
}


# ---- lines of results


def values(rows: Sequence[Row], what: str, **wanted: object) -> list[float]:
    """A field of all lines that have it, by seed."""
    some = [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]
    return [row[what] for row in sorted(some, key=lambda row: row["seed"]) if row.get(what) is not None]


def paired(rows: Sequence[Row], what: str, first: dict[str, str], second: dict[str, str]) -> list[float]:
    """Differences of a field between lines with the same seed."""
    one, two = (
        {row["seed"]: row[what] for row in rows if all(row.get(k) == v for k, v in wanted.items())}
        for wanted in (first, second)
    )
    return [one[seed] - two[seed] for seed in sorted(one) if seed in two]


def mean_ranks(rows: Sequence[Row]) -> dict[tuple[str, str], float]:
    """The mean rank over NRMSE and accuracy (means over seeds) by table and method; 1 is best."""
    ranks_of: dict[tuple[str, str], list[float]] = {}
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        for what, sign in (("nrmse", 1), ("accuracy", -1)):
            means = _by_method(rows, dataset, what)
            for method, mean in means.items():
                better = sum(sign * other < sign * mean for other in means.values())
                equal = sum(other == mean for other in means.values())
                ranks_of.setdefault((dataset, method), []).append(better + (equal + 1) / 2)
    return {subject: float(np.mean(ranks)) for subject, ranks in ranks_of.items()}


def _by_method(rows: Sequence[Row], dataset: str, what: str) -> dict[str, float]:
    names = dict.fromkeys(row["method"] for row in rows if row["dataset"] == dataset)
    scores = {name: values(rows, what, dataset=dataset, method=name) for name in names}
    return {name: Mean.of(numbers).mean for name, numbers in scores.items() if numbers}


# ---- claims


def preferred(rows: Sequence[Row]) -> list[Row]:
    """Lines of one device for each table, method and part: the device with the most seeds."""
    seeds: dict[tuple[str, ...], dict[str, int]] = {}
    for row in rows:
        counts = seeds.setdefault(_subject(row), {})
        counts[row.get("device", "")] = counts.get(row.get("device", ""), 0) + 1
    best = {subject: max(counts, key=lambda name: counts[name]) for subject, counts in seeds.items()}
    return [row for row in rows if row.get("device", "") == best[_subject(row)]]


def _subject(row: Row) -> tuple[str, ...]:
    return row["part"], row["dataset"], row["method"]


def claims(every: Sequence[Row], dataset: str, target: Target) -> list[Claim]:
    """The targets of the table model on one table."""
    rows = preferred(every)
    mine = {"dataset": dataset, "method": methods.KDM}

    def claim(
        what: str, scores: Sequence[float], least: float | None = None, most: float | None = None
    ) -> Claim:
        return Claim(what, scores, least, most, runs=SEEDS)

    def gap(what: str, part: str, method: str, other: str) -> list[float]:
        part_of = {"part": part, "dataset": dataset}
        return paired(rows, what, {**part_of, "method": method}, {**part_of, "method": other})

    seen, unseen, as_many = (
        values(rows, f"c2st_xgb{end}", part="generation", **mine) for end in ("", "_test", "_as_many")
    )

    intervals = [row for row in rows if row["part"] == "intervals"]
    claimed = [row["coverage"] - row["claimed"] for row in select(intervals, **mine) if "claimed" in row]

    def seconds(what: str, device: str) -> list[float]:
        """Seconds of fits that had the machine for themselves: others share its caches and memory."""
        return values(every, what, part="generation", device=device, processes=1, **mine)

    return [
        claim("C2ST by XGBoost", seen, least=target.c2st),
        claim("C2ST, test rows less training rows", np.subtract(unseen, seen).tolist(), least=-0.03),
        claim("the same, as many training rows", np.subtract(unseen, as_many).tolist(), least=-0.03),
        claim(
            "AUC, synthetic less real",
            gap("tstr_auc", "generation", methods.KDM, methods.REAL),
            least=-target.tstr,
        ),
        claim("DCR share", values(rows, "dcr_share", part="copying", **mine), most=target.dcr),
        claim(
            "processor seconds to fit, CPU",
            seconds("fit_processor_seconds", "cpu"),
            most=target.processor_seconds,
        ),
        claim("seconds to fit, GPU", seconds("fit_seconds", "cuda"), most=target.gpu_seconds),
        claim(
            "AUC of the target less boosting",
            gap("auc", "prediction", methods.KDM, BOOSTING),
            least=target.joint,
        ),
        claim(
            "the same, target named",
            gap("auc", "prediction", methods.TARGETS, BOOSTING),
            least=target.named,
        ),
        *_imputation_claims(rows, dataset),
        claim("coverage of 90 % intervals", values(intervals, "coverage", **mine), 0.87, 0.93),
        claim("the same, less what they claim", claimed, -0.03, 0.03),
        claim("the same, no value with 90 %", values(intervals, "coverage_other", **mine), 0.87, 0.93),
        claim("ms of a question, 95 %", values(every, "query_ms_p95", part="queries", **mine), most=10),
        claim(
            "the same, of the processor",
            values(every, "query_processor_ms_p95", part="queries", **mine),
            most=10,
        ),
    ]


def _imputation_claims(rows: Sequence[Row], dataset: str) -> list[Claim]:
    some = [row for row in rows if row["part"] == "imputation" and row["dataset"] == dataset]
    ranks = {method: rank for (_, method), rank in mean_ranks(some).items()}
    if methods.KDM not in ranks:
        return [Claim("imputation", [])]
    best = min(rank for method, rank in ranks.items() if method != methods.KDM) if len(ranks) > 1 else 0.0
    every_claim = [
        Claim("imputation: mean rank less that of the best peer", [ranks[methods.KDM] - best], most=0)
    ]
    for what, sign in (("nrmse", 1), ("accuracy", -1)):
        means = _by_method(some, dataset, what)
        if methods.KDM in means:
            leader = min(means.values(), key=lambda mean: sign * mean)
            worse = sign * (means[methods.KDM] / leader - 1) if leader else 0.0
            every_claim.append(Claim(f"imputation: {what}, share worse than the best", [worse], most=0.03))
    return every_claim
