"""Batches of rows through a fitted table, Arrow in and Arrow out: only one batch is in memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from sklearn.utils import check_random_state

from kdmkit._core.checks import bad_argument, check_choice, check_count
from kdmkit._core.files import replacing
from kdmkit.estimators.table.frames.files import checked_path, is_parquet
from kdmkit.estimators.table.frames.optional import need
from kdmkit.estimators.table.sampling import as_arrow, batches_of

_STANDARD = "-"


def scored(table: Any, batch: Any) -> Any:
    """log p of every row, as the column `log_prob`."""
    return as_arrow({"log_prob": table.score_samples(batch)})


def predicted(
    table: Any, batch: Any, *, target: str, interval: float | None = None, proba: bool = False
) -> Any:
    """Predictions of a column.

    Args:
        interval: the coverage of intervals, in the columns `<target> low` and `<target> high`.
        proba: whether to add the probability of every level, in the columns `P(<level>)`.
    """
    columns: dict[str, Any] = {target: table.predict(batch, target)}
    if interval is not None:
        ends = table.predict_interval(batch, target, coverage=interval)
        columns |= {f"{target} low": ends[:, 0], f"{target} high": ends[:, 1]}
    if table.schema_.columns[target].storage.unit == "D":
        columns = {name: dates.astype("datetime64[D]") for name, dates in columns.items()}
    if proba:
        probs = table.predict_proba(batch, target)
        columns |= {f"P({level})": probs[:, i] for i, level in enumerate(table.levels(target))}
    return as_arrow(columns)


def imputed(table: Any, batch: Any, *, draw: bool = False, random_state: Any = None) -> Any:
    """The rows with their missing cells filled in, by their expectation or by draws."""
    batch = as_arrow(batch)
    return table.impute(batch, n=1, random_state=random_state)[0] if draw else table.impute(batch)


def sampled(
    table: Any, *, n: int, given: Any = None, random_state: Any = None, batch_size: int
) -> Iterator[Any]:
    """New rows."""
    n = check_count("n", n)
    for start in range(0, n, batch_size):
        drawn = table.sample(min(batch_size, n - start), given=given, random_state=random_state)
        yield as_arrow(drawn)


_OF_BATCHES: dict[str, Callable[..., Any]] = {"score": scored, "predict": predicted, "impute": imputed}


def stream(table: Any, what: str, data: Any, *, batch_size: int, **options: Any) -> Iterator[Any]:
    """What a table makes of batches; see `KDMTable.stream`."""
    check_choice("what", what, [*_OF_BATCHES, "sample"])
    batch_size = check_count("batch_size", batch_size)
    if options.get("random_state") is not None:
        # One stream of random numbers for all batches: with a seed each would draw the same numbers.
        options["random_state"] = check_random_state(options["random_state"])
    if what == "sample":
        if data is not None:
            raise ValueError(bad_argument("data", "None for new rows", type(data).__name__))
        return sampled(table, batch_size=batch_size, **options)
    if data is None:
        raise ValueError(bad_argument("data", "a path, or an iterable of frames or Arrow batches", "None"))
    batches: Iterable[Any] = batches_of(data, batch_size)
    if isinstance(data, str | os.PathLike) and not is_parquet(checked_path(data)):
        batches = map(partial(_with_fractions, table), batches)
    return map(partial(_OF_BATCHES[what], table, **options), batches)


def _with_fractions(table: Any, batch: Any) -> Any:
    """A batch of a CSV file: whole numbers that the table knows with fractions have them here, too."""
    arrow = need("pyarrow")
    for i, field in enumerate(batch.schema):
        known = table.schema_.columns.get(field.name)
        if known is not None and known.storage.base == "float" and arrow.types.is_integer(field.type):
            batch = batch.set_column(i, field.name, batch.column(i).cast(arrow.float64()))
    return batch


# ---- files


def write_batches(batches: Iterable[Any], output: str | Path) -> int:
    """Writes Arrow tables one after the other; returns the number of rows. An error leaves no partial file.

    Args:
        output: a file whose name ends in `.csv` or `.parquet`; `-` is CSV to standard output.
    """
    is_parquet = str(output).endswith((".parquet", ".pq"))
    if not is_parquet and str(output) != _STANDARD and not str(output).endswith(".csv"):
        raise ValueError(bad_argument("output", "a name that ends in .csv or .parquet, or -", str(output)))
    rows, writer = 0, None
    with _target(output) as target:
        try:
            for batch in batches:
                if writer is None:
                    module = need("pyarrow.parquet" if is_parquet else "pyarrow.csv")
                    make = module.ParquetWriter if is_parquet else module.CSVWriter
                    writer = make(target, batch.schema)
                    schema = batch.schema
                writer.write_table(batch.cast(schema))
                rows += batch.num_rows
        finally:
            if writer is not None:
                writer.close()
    return rows


@contextmanager
def _target(output: str | Path) -> Iterator[Any]:
    if str(output) == _STANDARD:
        yield sys.stdout.buffer
        return
    with replacing(Path(output)) as temporary:
        yield str(temporary)
