"""The tables of the comparison: the means of every method, and the targets of the KDM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kdmlab.common import Claim, Mean, Report, Row, markdown_table, provenance, select
from kdmlab.regression.methods import METHODS

# Means over twenty splits as published: RMSE and NLL of Lakshminarayanan et al. (2017), Gal and Ghahramani
# (2016) with the settings of Mukhoti et al. (2018), and Duan et al. (2020).
PUBLISHED = {
    "Deep Ensembles": {
        "concrete": (6.03, 3.06),
        "energy": (2.09, 1.38),
        "power-plant": (4.11, 2.79),
        "wine-quality-red": (0.64, 0.94),
    },
    "MC dropout": {
        "concrete": (4.83, 2.94),
        "energy": (0.54, 1.21),
        "power-plant": (4.01, 2.81),
        "wine-quality-red": (0.62, 0.93),
    },
    "NGBoost": {
        "concrete": (5.06, 3.04),
        "energy": (0.46, 0.60),
        "power-plant": (3.79, 2.79),
        "wine-quality-red": (0.63, 0.91),
    },
}
#: How far the NLL of the worst split may lie above the median of all splits.
WORST_SPLIT = 1.0


@dataclass(frozen=True)
class Target:
    """The targets of the KDM on one set: NLL and RMSE at most, coverage between two ends."""

    nll: float
    rmse: float
    coverage: tuple[float, float] = (0.87, 0.93)


TARGETS = {
    "concrete": Target(3.00, 5.3),
    "energy": Target(1.00, 0.70),
    "power-plant": Target(2.79, 4.00),
    # Targets are whole numbers: intervals of a density cover more of them than their level.
    "wine-quality-red": Target(0.90, 0.63, (0.87, 0.98)),
}


def values(rows: Sequence[Row], dataset: str, method: str, what: str) -> list[float]:
    return [row[what] for row in select(rows, dataset=dataset, method=method)]


def comparison(rows: Sequence[Row]) -> list[list[str]]:
    """A row for every set and method that was measured."""
    return [
        _method_cells(rows, dataset, method)
        for dataset in dict.fromkeys(row["dataset"] for row in rows)
        for method in METHODS
        if select(rows, dataset=dataset, method=method)
    ]


def _method_cells(rows: Sequence[Row], dataset: str, method: str) -> list[str]:
    def of(what: str) -> list[float]:
        return values(rows, dataset, method, what)

    nll = of("nll")
    return [
        dataset,
        method,
        *(_with_error(of(what)) for what in ("nll", "rmse")),
        *(f"{Mean.of(of(what)).mean:.3f}" for what in ("crps", "coverage90")),
        f"{Mean.of(of('width90')).mean:.3g}",
        f"{_above_median(nll):.2f}",
        f"{np.median(of('fit_seconds')):.1f}",
        str(len(nll)),
    ]


def _with_error(numbers: Sequence[float]) -> str:
    """Mean ± standard error."""
    mean = Mean.of(numbers)
    return mean.plus_minus(mean.standard_error, digits=3)


def _above_median(nll: Sequence[float]) -> float:
    return max(nll) - float(np.median(nll))


def targets(rows: Sequence[Row]) -> list[list[str]]:
    """Rows of a table: set, what, target, measured by the KDM, the best published number, and the verdict."""
    return [
        [dataset, claim.what, claim.target, claim.shown(".3f"), published, claim.verdict]
        for dataset in TARGETS
        if select(rows, dataset=dataset, method="kdm")
        for claim, published in _claims(rows, dataset)
    ]


def _claims(rows: Sequence[Row], dataset: str) -> list[tuple[Claim, str]]:
    """The claims about the KDM on one set, each with the best published number."""
    target = TARGETS[dataset]
    rmse, nll = (min(column[dataset][i] for column in PUBLISHED.values()) for i in (0, 1))
    scores = {what: values(rows, dataset, "kdm", what) for what in ("nll", "rmse", "coverage90")}
    worst = [_above_median(scores["nll"])]
    return [
        (Claim("NLL", scores["nll"], most=target.nll), f"{nll:g}"),
        (Claim("RMSE", scores["rmse"], most=target.rmse), f"{rmse:g}"),
        (Claim("coverage", scores["coverage90"], *target.coverage), ""),
        (Claim("worst split − median, NLL", worst, most=WORST_SPLIT), ""),
    ]


#: What is added, and the methods with and without it.
PARTS = (
    ("joint KDM of rows and residuals", "kdm-without-memory", "committee-gaussian"),
    ("joint KDM in place of a dense head", "kdm-without-memory", "committee-dense"),
    ("residual memory", "kdm", "kdm-without-memory"),
    ("both", "kdm", "committee-gaussian"),
    ("committee, beside the joint KDM", "kdm", "joint-kdm"),
)


def additions(rows: Sequence[Row]) -> list[list[str]]:
    """Rows of a table: set, part, and how much it lowers NLL, CRPS and RMSE, paired by split."""
    return _paired(rows, PARTS)


def against(rows: Sequence[Row]) -> list[list[str]]:
    """Rows of a table: set, method, and how much lower the scores of `kdm` are, paired by split."""
    return _paired(rows, [(method, "kdm", method) for method in METHODS if method != "kdm"])


def _paired(rows: Sequence[Row], pairs: Sequence[tuple[str, str, str]]) -> list[list[str]]:
    return [
        [
            dataset,
            name,
            *(_with_error(_lowered(rows, dataset, pair, what)) for what in ("nll", "crps", "rmse")),
            str(len(splits)),
        ]
        for dataset in dict.fromkeys(row["dataset"] for row in rows)
        for name, *pair in pairs
        if (splits := _lowered(rows, dataset, pair, "nll"))
    ]


def _additions(rows: Sequence[Row]) -> list[str]:
    """The sections about the parts of the KDM and about all other rows, where any was measured."""
    scores = ["NLL", "CRPS", "RMSE", "splits"]
    notes = []
    if cells := additions(rows):
        notes += [
            "## What each part adds",
            markdown_table(["data", "part", *scores], cells),
            "By how much a part lowers a score, mean of the paired differences ± standard error over splits. "
            "`committee-gaussian` is the committee with one Gaussian of its residuals and its excess "
            "variance. `committee-dense` is the committee with networks that answer with a mixture of "
            "Gaussians, learned from the same residuals. `joint-kdm` is the joint KDM of rows and targets "
            "without a committee, and `kdm` has all parts.",
        ]
    if cells := against(rows):
        notes += [
            "## The KDM against every other row",
            markdown_table(["data", "method", *scores], cells),
            "By how much lower the scores of `kdm` are than those of a method, on the same splits: mean of "
            "the paired differences ± standard error. Negative numbers: the method is better.",
        ]
    return notes


def _lowered(rows: Sequence[Row], dataset: str, pair: Sequence[str], what: str) -> list[float]:
    """The second method's score minus the first's, on the splits that both were measured on."""
    first, second = ({r["split"]: r[what] for r in select(rows, dataset=dataset, method=m)} for m in pair)
    return [second[split] - first[split] for split in first if split in second]


def report(rows: Sequence[Row], figures: Sequence[Path]) -> Report:
    header = ["data", "method", "NLL", "RMSE", "CRPS", "coverage", "width", "worst", "seconds", "splits"]
    published = [
        [name, *(f"{cells[dataset][1]:g} / {cells[dataset][0]:g}" for dataset in TARGETS)]
        for name, cells in PUBLISHED.items()
    ]
    notes = (
        "Mean over splits ± standard error, on test rows that took part in no fit, in the units of y "
        "and nats. Coverage and mean width of central 90 % intervals; worst: the largest NLL of a split "
        "minus the median; seconds: median of a fit with its predictions. Fits ran side by side, on the "
        "machines named below: seconds of different methods do not compare.",
        "Settings, the same for all sets: "
        + "; ".join(
            f"{name}: {', '.join(f'{k} {v}' for k, v in method.settings.items())}"
            for name, method in METHODS.items()
            if select(rows, method=name)
        )
        + ". The KDM's components have a standard deviation of at least half the smallest gap between "
        "distinct training targets (0.5 for wine), and its NLL is reported under that bound.",
        *_additions(rows),
        "## Targets of the KDM",
        markdown_table(["data", "what", "target", "measured", "best published", "met"], targets(rows)),
        "## Published, NLL / RMSE",
        markdown_table(["method", *TARGETS], published),
        *(f"![{figure.stem}]({figure.name})" for figure in figures),
        provenance(rows),
        "Written by `kdmlab reproduce uci-regression` from the lines in `uci-regression.jsonl`.",
    )
    return Report("Regression on UCI sets, twenty standard splits", header, comparison(rows), notes)
