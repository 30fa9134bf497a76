"""Batches of rows through a fitted table, and into files: only one batch is in memory."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kdmkit._core.checks import bad_argument
from kdmkit.estimators.table.frames.optional import need

_STANDARD = "-"
# Rows that are drawn together.
_ROWS = 1 << 16


def predicted(table: Any, target: str, batch: Any, *, interval: float | None, proba: bool) -> Any:
    """Predictions of one column as an Arrow table."""
    columns: dict[str, Any] = {target: table.predict(batch, target)}
    if interval is not None:
        ends = table.predict_interval(batch, target, coverage=interval)
        columns |= {f"{target} low": ends[:, 0], f"{target} high": ends[:, 1]}
    if proba:
        probs = table.predict_proba(batch, target)
        columns |= {f"P({level})": probs[:, i] for i, level in enumerate(table.levels(target))}
    return _arrow(columns)


def imputed(table: Any, batch: Any, *, draw: bool, seed: int | None) -> Any:
    """The batch with its missing cells filled in."""
    return table.impute(batch, n=1, random_state=seed)[0] if draw else table.impute(batch)


def scored(table: Any, batch: Any) -> Any:
    """log p of every row as an Arrow table."""
    return _arrow({"log_prob": table.score_samples(batch)})


def sampled(table: Any, n: int, given: Any, seed: int | None) -> Iterator[Any]:
    """n rows as Arrow tables."""
    stream = None if seed is None else np.random.RandomState(seed)
    for start in range(0, n, _ROWS):
        yield _arrow(table.sample(min(_ROWS, n - start), given=given, random_state=stream))


def _arrow(columns: Any) -> Any:
    """Any frame, or a mapping of arrays, as an Arrow table."""
    arrow = need("pyarrow")
    if isinstance(columns, arrow.Table):
        return columns
    if isinstance(columns, dict):
        return arrow.table({str(name): arrow.array(_listed(values)) for name, values in columns.items()})
    return need("narwhals").from_native(columns).to_arrow()


def _listed(values: Any) -> Any:
    return values.tolist() if values.dtype == object else values


def write_batches(batches: Iterable[Any], output: str | Path) -> int:
    """Writes Arrow tables one after the other; returns the number of rows.

    Args:
        output: a file whose name ends in `.csv` or `.parquet`; `-` is CSV to standard output.
    """
    is_parquet = str(output).endswith((".parquet", ".pq"))
    if not is_parquet and str(output) != _STANDARD and not str(output).endswith(".csv"):
        raise ValueError(bad_argument("output", "a name that ends in .csv or .parquet, or -", str(output)))
    rows, writer = 0, None
    target = sys.stdout.buffer if str(output) == _STANDARD else str(output)
    try:
        for batch in batches:
            if writer is None:
                module = need("pyarrow.parquet" if is_parquet else "pyarrow.csv")
                make = module.ParquetWriter if is_parquet else module.CSVWriter
                writer = make(target, batch.schema)
            writer.write_table(batch.cast(writer.schema) if is_parquet else batch)
            rows += batch.num_rows
    finally:
        if writer is not None:
            writer.close()
    return rows
