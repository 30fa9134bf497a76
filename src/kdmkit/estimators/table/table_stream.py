"""Answers of a fitted table to batches of rows, Arrow in and Arrow out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from kdmkit._core.checks import check_count, check_number
from kdmkit.estimators.common.arrow import BatchAnswer, as_arrow, need, select_columns
from kdmkit.estimators.common.csv_parquet import batches_of, is_parquet
from kdmkit.estimators.table.answering.engine import check_plain
from kdmkit.estimators.table.answering.given_rows import held_columns
from kdmkit.estimators.table.frames.read import RawFrame
from kdmkit.estimators.table.outcomes import columns_of, read_event


def answers_of(table: Any) -> dict[str, BatchAnswer]:
    """The questions to batches, by name."""
    answers: dict[str, Callable[..., Any]] = {
        "score": scored,
        "predict": predicted,
        "probability": probable,
        "impute": imputed,
    }
    return {name: partial(answer, table) for name, answer in answers.items()}


def scored(table: Any, batch: Any) -> Any:
    """log p of every row, as the column `log_prob`."""
    return {"log_prob": table.score_samples(batch)}


def predicted(
    table: Any,
    batch: Any,
    *,
    target: str | None = None,
    interval: float | None = None,
    quantiles: Sequence[float] = (),
    proba: bool = False,
) -> Any:
    """Predictions of a column.

    Args:
        target: the column; None: the only target of the fit.
        interval: the coverage of intervals, in the columns `<target> low` and `<target> high`.
        quantiles: levels of quantiles to add, in the columns `<target> q<level>`.
        proba: whether to add the probability of every level, in the columns `P(<level>)`.
    """
    target = table.checked_target(target).name
    columns: dict[str, Any] = {target: table.predict(batch, target)}
    if interval is not None:
        ends = table.predict_interval(batch, target, coverage=interval)
        columns |= {f"{target} low": ends[:, 0], f"{target} high": ends[:, 1]}
    if len(quantiles):
        levels = [check_number("quantiles", q, "0 < q < 1", positive=True, below=1) for q in quantiles]
        values = table._rows_of(batch, target, lambda rho: np.moveaxis(rho.quantile(levels), 0, -1))
        columns |= {f"{target} q{q:g}": values[:, i] for i, q in enumerate(levels)}
    if table.schema_.columns[target].storage.unit == "D":
        columns = {name: dates.astype("datetime64[D]") for name, dates in columns.items()}
    if proba:
        probs = table.predict_proba(batch, target)
        columns |= {f"P({level})": probs[:, i] for i, level in enumerate(table.levels(target))}
    return columns


@torch.no_grad()
def probable(table: Any, batch: Any, *, event: Any) -> Any:
    """P(event | the cells of columns that are not in the event) of every row, as the column `probability`.

    Args:
        event: as in `KDMTable.probability`, on single columns.
    """
    engine = table._engine()
    event = read_event(engine.schema, event)
    asked = [engine.column("event", name) for name in sorted(columns_of(event))]
    boxes = engine.boxes(event, "event")
    check_plain(boxes)
    parts = [part for box in boxes for part in engine.schema.boxes(box)]
    others = as_arrow(batch).drop_columns([c.name for c in asked if c.name in batch.column_names])
    if not any(name in engine.schema.columns for name in others.column_names):
        return {"probability": np.full(len(batch), table.probability(event))}
    rows = [engine.rows.event_probability(asked, parts, block) for block in table._blocks(others)]
    blocks = [block.numpy() for block in rows]
    return {"probability": np.concatenate(blocks)}


def imputed(table: Any, batch: Any, *, draw: bool = False, random_state: Any = None) -> Any:
    """The rows with their missing cells filled in, by their expectation or by draws."""
    return table.impute(batch, n=1, random_state=random_state)[0] if draw else table.impute(batch)


def sampled(
    table: Any,
    *,
    n: int | None = None,
    given: Any = None,
    hold: Sequence[str] | None = None,
    random_state: Any = None,
    batch_size: int,
) -> Iterator[Any]:
    """New rows: n of them; given a frame of conditions, n for each of its rows (None: 1)."""
    options: dict[str, Any] = {"random_state": random_state, "frame": "arrow"}
    given = held_columns(given, hold)
    if isinstance(given, RawFrame):
        n = check_count("n", 1 if n is None else n)
        step = max(1, batch_size // n)
        for start in range(0, max(given.n_rows, 1), step):
            rows = given.take(np.arange(start, min(start + step, given.n_rows)))
            yield table.sample(n, rows, first_key=start * n, **options)
        return
    n = check_count("n", n)
    for start in range(0, n, batch_size):
        yield table.sample(min(batch_size, n - start), given, first_key=start, **options)


def known_columns(table: Any, columns: Sequence[str] | None, keep: Sequence[str], batch: Any) -> Any:
    """The columns of a batch that the table sees: those that were chosen, or all.

    Columns to keep that are not columns of the table are left out.
    """
    if columns is not None:
        return select_columns("columns", batch, columns)
    unknown = [name for name in keep if name not in table.schema_.columns]
    return batch.drop_columns(unknown) if unknown else batch


def batches_for(table: Any, data: Any, batch_size: int) -> Iterable[Any]:
    """Batches of a file or an iterable, in types that the table can fill in."""
    batches = batches_of(data, batch_size)
    if isinstance(data, str | os.PathLike) and not is_parquet(data):
        return map(partial(_with_fractions, table), batches)
    return batches


def _with_fractions(table: Any, batch: Any) -> Any:
    """A batch of a CSV file: whole numbers become floats if the table has floats in the column."""
    arrow = need("pyarrow")
    for i, field in enumerate(batch.schema):
        column = table.schema_.columns.get(field.name)
        if column is not None and column.storage.base == "float" and arrow.types.is_integer(field.type):
            batch = batch.set_column(i, field.name, batch.column(i).cast(arrow.float64()))
    return batch
