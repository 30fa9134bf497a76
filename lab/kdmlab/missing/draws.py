"""Missing cells of drawn rows, compared with the data: how many, beside what, never beside what."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from kdmkit import KDMTable
from kdmlab.missing.data import load

DRAWS = 100_000
#: The fewest rows that have an outcome; and the tolerance beside Monte Carlo error.
LEAST_ROWS, TOLERANCE = 200, 0.01
#: Standard errors that count as Monte Carlo error.
SIGMAS = 3.0
#: Two outcomes exclude each other if no row has both, and independence would give at least this number.
_EXPECTED = 20

Masks = dict[str, dict[str, np.ndarray]]


def measure(dataset: str, seed: int) -> dict[str, Any]:
    """Fits a table with defaults to a data set, draws rows and compares."""
    frame = load(dataset)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = KDMTable(random_state=seed).fit(frame)
        drawn = table.sample(DRAWS, random_state=seed)
    data, draws = masks(frame, drawn, table), masks(drawn, drawn, table)
    shares = {name: column["missing"] for name, column in data.items() if "missing" in column}
    by_column = [_gap(name, name, mask.mean(), draws[name].get("missing")) for name, mask in shares.items()]
    pairs = list(_pairs(data, draws))
    broken = list(_structural(data, draws))
    any_broken = np.logical_or.reduce([both for _, both in broken]) if broken else np.zeros(1, bool)
    return {
        "rows": len(frame),
        "columns": frame.shape[1],
        "shares": by_column,
        "pairs": len(pairs),
        "pairs_within": sum(pair["within"] for pair in pairs),
        "worst_pairs": sorted(pairs, key=lambda pair: -pair["beyond"])[:10],
        "structural": len(broken),
        "structural_broken": {name: float(both.mean()) for name, both in broken if both.mean() > 1e-4},
        "structural_worst": max((float(both.mean()) for _, both in broken), default=0.0),
        "structural_any": float(any_broken.mean()),
    }


def masks(frame: Any, drawn: Any, table: KDMTable) -> Masks:
    """For each column of the draws, the rows with each frequent value and the rows with a missing cell."""
    markers = {name: set(column.storage.markers) for name, column in table.columns_.items()}
    rows: Masks = {}
    for name in drawn:
        cells = frame[name].astype(object)
        missing = (cells.isna() | cells.isin(markers[name])).to_numpy()
        values = cells.where(~missing)
        counts = values.value_counts()
        column = {f"= {value}": (values == value).to_numpy() for value in counts.index[:100]}
        rows[name] = {**column, **({"missing": missing} if missing.any() else {})}
    return rows


def _pairs(data: Masks, draws: Masks) -> Iterator[dict[str, Any]]:
    """P(a column is missing | an outcome of another) in the data and in the draws."""
    for name, column in data.items():
        if "missing" not in column:
            continue
        for other, outcomes in data.items():
            for outcome, rows in outcomes.items():
                if other != name and rows.sum() >= LEAST_ROWS:
                    beside = draws[other].get(outcome, np.zeros(DRAWS, bool))
                    share = float(column["missing"][rows].mean())
                    yield _gap(name, f"{other} {outcome}", share, draws[name].get("missing"), beside)


def _gap(
    name: str, given: str, share: float, missing: np.ndarray | None, beside: np.ndarray | None = None
) -> dict[str, Any]:
    """A share of missing cells in the data and in the draws, and how far they are beyond the tolerance."""
    missing = np.zeros(DRAWS, bool) if missing is None else missing
    cells = missing if beside is None else missing[beside]
    drawn = float(cells.mean()) if len(cells) else float("nan")
    error = SIGMAS * float(np.sqrt(max(share * (1 - share), drawn * (1 - drawn)) / max(1, len(cells))))
    beyond = abs(drawn - share) - TOLERANCE - error
    return {
        "column": name,
        "given": given,
        "data": round(float(share), 4),
        "draws": round(drawn, 4),
        "beyond": round(beyond, 4),
        "within": bool(beyond <= 0),
    }


def _structural(data: Masks, draws: Masks) -> Iterator[tuple[str, np.ndarray]]:
    """Outcomes that no row has together: a cell that is missing, or there, beside an outcome of another."""
    for name, column in data.items():
        if "missing" not in column:
            continue
        for other, outcomes in data.items():
            for outcome, rows in outcomes.items():
                if other == name or rows.sum() < LEAST_ROWS:
                    continue
                for state, mask in (("missing", column["missing"]), ("there", ~column["missing"])):
                    if (mask & rows).any() or mask.mean() * rows.sum() < _EXPECTED:
                        continue
                    drawn = draws[name].get("missing", np.zeros(DRAWS, bool))
                    both = drawn if state == "missing" else ~drawn
                    yield (
                        f"{name} {state} and {other} {outcome}",
                        both & draws[other].get(outcome, np.zeros(DRAWS, bool)),
                    )
