"""The report: targets, and every table with the processor seconds and the score of every method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from kdmlab.common import Claim, Part, Report, Row, claims_table, markdown_table, provenance, select
from kdmlab.pace.data import TABLES, Kind
from kdmlab.pace.measure import BOOSTING, EFFORTS, FOLDS, LINEAR, OLD, PEERS

Values = NDArray[np.float64]
#: The score of a kind that ranks methods; smaller is better.
SCORE: dict[Kind, str] = {"classifier": "log_loss", "regressor": "rmse"}
#: All scores.
SCORES: dict[Kind, tuple[str, ...]] = {"classifier": ("log_loss",), "regressor": ("rmse", "nll")}
_NAMES = {"log_loss": "log-loss", "rmse": "RMSE", "nll": "NLL", "fit": "seconds"}
# The largest median of ratios to boosting, and the largest increase of the mean log-loss.
_PACE: dict[Kind, dict[str, float]] = {
    "classifier": {"default": 5, "fast": 2},
    "regressor": {"default": 8, "fast": 3},
}
_LOSS = {"default": 0.002, "fast": 0.015}
# A table is behind a linear model where its score is larger by this share.
_BEHIND = 1.05


def report(rows: Sequence[Row], part: Part) -> Report:
    """The measured tables of a part, and what is asked of them."""
    claims, sections = [], []
    for kind in TABLES:
        lines = select(rows, kind=kind)
        if lines:
            claims += _claims(lines, kind, part)
            sections += [f"## {kind.capitalize()}s", _table(lines, kind, part)]
    folds = len({row["fold"] for row in rows})
    notes = (
        claims_table(claims, ".4g"),
        *sections,
        f"Means of {folds} of {FOLDS} shuffled folds: score and processor seconds of the fit in one thread. "
        "Methods of a fold are measured one after the other in one run. Ratios are of mean seconds by table. "
        "Differences are paired, ± their standard errors over tables. RMSE is in standard deviations of the "
        "targets, and NLL that of targets in this unit. Peers are scikit-learn's histogram boosting, random "
        "forest, and logistic or ridge regression behind a scaler, with their default settings.",
        provenance(rows),
        f"Written by `kdmlab reproduce pace --part {part}` from the lines in `pace-{part}.jsonl`.",
    )
    return Report(f"The pace of fits: {part} tables", notes=notes)


def _claims(rows: Sequence[Row], kind: Kind, part: Part) -> list[Claim]:
    """Pace, differences to 0.2.0, tables behind a linear model, and ranks, of every measured effort."""
    claims = []
    for effort in EFFORTS:
        values = partial(_values, rows, kind, part)
        ratios = _finite(values(effort, "fit") / values(BOOSTING, "fit"))
        if not len(ratios):
            continue
        what, score, aimed = f"{kind}, {effort}", SCORE[kind], effort != "best"
        label = f"{what}: median ratio of seconds to boosting, {len(ratios)} tables"
        claims.append(Claim(label, [float(np.median(ratios))], most=_PACE[kind].get(effort)))
        claims += [_difference(values, kind, part, effort, s) for s in SCORES[kind]]
        behind = _finite(values(effort, score) / values(LINEAR, score)) > _BEHIND
        label = f"{what}: tables more than 5 % behind a linear model in {_NAMES[score]}"
        claims.append(Claim(label, [float(behind.sum())], most=0 if aimed else None))
        label = f"{what}: mean rank in {_NAMES[score]} among it and the three peers"
        claims.append(Claim(label, list(_ranks(rows, kind, part, effort))))
    return claims


def _difference(
    values: Callable[[str, str], Values], kind: Kind, part: Part, effort: str, score: str
) -> Claim:
    """The mean of the paired differences to 0.2.0; regressors may differ by their standard error."""
    gaps = _finite(values(effort, score) - values(OLD, score))
    error = float(gaps.std(ddof=1) / np.sqrt(len(gaps))) if len(gaps) > 1 else 0.0
    most = _LOSS.get(effort) if kind == "classifier" else (error if effort != "best" else None)
    label = f"{kind}, {effort}: mean {_NAMES[score]} less that of {OLD} (± {error:.4f})"
    return Claim(label, list(gaps), most=most, runs=len(TABLES[kind][part]))


def _finite(values: Values) -> Values:
    return np.asarray(values[np.isfinite(values)])


def _ranks(rows: Sequence[Row], kind: Kind, part: Part, effort: str) -> Values:
    scores = np.array([_values(rows, kind, part, m, SCORE[kind]) for m in (effort, *PEERS[kind])])
    complete = scores[:, np.isfinite(scores).all(0)]
    return np.asarray(1.0 + (complete[1:] < complete[0]).sum(0))


def _table(rows: Sequence[Row], kind: Kind, part: Part) -> str:
    methods = [m for m in (*EFFORTS, *PEERS[kind], OLD) if select(rows, method=m)]
    scores = SCORES[kind]
    columns = {(m, s): _values(rows, kind, part, m, s) for m in methods for s in (*scores, "fit")}
    cells = [
        [table, *(_cell([columns[m, s][i] for s in scores], columns[m, "fit"][i]) for m in methods)]
        for i, table in enumerate(TABLES[kind][part])
    ]
    means = [
        _cell([float(np.nanmean(columns[m, s])) for s in scores], float(np.nanmean(columns[m, "fit"])))
        for m in methods
    ]
    seconds = columns.get((BOOSTING, "fit"))
    ratios = (
        [""] * len(methods)
        if seconds is None
        else [f"{np.nanmedian(columns[m, 'fit'] / seconds):.1f}" for m in methods]
    )
    named = " / ".join(_NAMES[s] for s in (*scores, "fit"))
    heading = [f"table ({named})", *methods]
    return markdown_table(
        heading, [*cells, ["mean", *means], ["median ratio of seconds to boosting", *ratios]]
    )


def _cell(scores: Sequence[float], seconds: float) -> str:
    if not np.isfinite(seconds):
        return ""
    return " / ".join([*(f"{score:.3f}" for score in scores if np.isfinite(score)), f"{seconds:.2f}"])


def _values(rows: Sequence[Row], kind: Kind, part: Part, method: str, value: str) -> Values:
    """The mean over folds by table; NaN where nothing was measured."""
    means = []
    for table in TABLES[kind][part]:
        some = [row[value] for row in select(rows, method=method, table=table) if value in row]
        means.append(np.mean(some) if some else np.nan)
    return np.array(means)
