"""Batches of rows through a fitted estimator, Arrow in and Arrow out: only one batch is in memory."""

from __future__ import annotations

import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from kdmkit._core.checks import bad_argument, check_choice, check_count
from kdmkit._core.files import replacing
from kdmkit.estimators.common.arrow import Features, as_arrow, batches_of, select_columns
from kdmkit.estimators.common.checks import Array, CheckedRows
from kdmkit.estimators.common.optional import need

_STANDARD = "-"
NO_DATA = "a path, or an iterable of frames or Arrow batches"

#: Makes named columns, or an Arrow table, of the rows of a batch; its keyword-only arguments are options.
Answer = Callable[..., Any]


def _answered(
    read: Callable[[Any], Any], answer: Callable[[Any], Any], keep: Sequence[str], table: Any
) -> Any:
    """What an estimator makes of one batch, beside the columns that are kept."""
    kept = select_columns("keep", table, keep)
    made = as_arrow(answer(read(table)))
    return _beside(kept, made) if keep else made


def _beside(kept: Any, made: Any) -> Any:
    for name in kept.column_names:
        if name in made.column_names:
            wanted = f"columns with other names than those of the answer, {made.column_names}"
            raise ValueError(bad_argument("keep", wanted, repr(name)))
    names = [*kept.column_names, *made.column_names]
    return need("pyarrow").table([*kept.columns, *made.columns], names=names)


class Streamed(ABC):
    """Estimators that answer Arrow batches."""

    @abstractmethod
    def _batch_answers(self) -> dict[str, Answer]:
        """What batches can be asked, by name: functions of rows and of keyword-only options."""

    def _batch_rows(self, columns: Sequence[str] | None, keep: Sequence[str]) -> Callable[[Any], Any]:
        """What takes the rows out of an Arrow table.

        Args:
            columns: those that the caller chose.
            keep: those that answers repeat.
        """
        names = getattr(self, "feature_names_in_", None) if columns is None else columns
        count = int(vars(self)["n_features_in_"])
        return Features(None if names is None else list(names), count).rows

    def stream(
        self,
        what: str,
        data: Any = None,
        *,
        batch_size: int = 1 << 16,
        columns: Sequence[str] | None = None,
        keep: Sequence[str] = (),
        **options: Any,
    ) -> Iterator[Any]:
        """Passes batches of rows through the fitted estimator; only one batch is in memory.

        `kdmkit.BatchFunction` is the same for one batch, as a function that other processes can be sent.

        Args:
            what: `"score"`: log p(x), in the column `log_prob`; of densities, if wanted with `rtol=1e-3`.
                `"predict"`: of classifiers the likeliest class, in the column `y`, and with `proba=True` all
                probabilities, in `P(<class>)`; of regressors the mean, in the column `y`, and if wanted
                `std=True` (`y std`), `interval=0.9` (`y low`, `y high`) and `quantiles=[0.1, 0.5]`
                (`y q0.1`, …); outputs of several are `y 0`, `y 1`, …. `target="price"` replaces the `y`.
            data: a path to CSV or Parquet, or an iterable of Arrow batches or other frames.
            batch_size: rows of a batch of a file.
            columns: the columns that hold the features, in their order; None takes those that the estimator
                was fitted to by name, all columns where it was fitted to an array. One column of lists may
                hold all features.
            keep: columns that answers repeat, in front of their own.
            options: those of `what`.

        Returns:
            Arrow tables, one for each batch, in order.

        >>> from kdmkit import KDMDensity
        >>> density = KDMDensity(sigma=1.0).fit([[0.0], [1.0]])
        >>> next(density.stream("score", [{"id": [7], "x": [0.5]}], columns=["x"], keep=["id"])).to_pydict()
        {'id': [7], 'log_prob': [-0.822...]}
        """
        check_is_fitted(self)
        batch_size = check_count("batch_size", batch_size)
        answers = self._batch_answers()
        check_choice("what", what, list(answers))
        _check_options(what, answers[what], options)
        for name, value in {"columns": columns, "keep": keep}.items():
            if isinstance(value, str):
                raise TypeError(bad_argument(name, "a list of names", repr(value)))
        if data is None:
            raise ValueError(bad_argument("data", NO_DATA, "None"))
        answer = partial(answers[what], **options)
        read = self._batch_rows(columns, keep)
        return map(partial(_answered, read, answer, keep), batches_of(data, batch_size))


def _check_options(what: str, answer: Answer, options: Mapping[str, Any]) -> None:
    """Options that an answer lacks, or does not know, raise before the first batch."""
    kinds = [k for k in inspect.signature(answer).parameters.values() if k.kind is k.KEYWORD_ONLY]
    known, needed = [k.name for k in kinds], [k.name for k in kinds if k.default is k.empty]
    wrong = [name for name in options if name not in known]
    if wrong:
        raise TypeError(bad_argument(f"options of {what!r}", f"some of {known}", repr(wrong[0])))
    absent = [name for name in needed if name not in options]
    if absent:
        raise TypeError(bad_argument(f"options of {what!r}", f"{absent[0]}=…", list(options) or "none"))


def answer_rows(answer: Callable[[CheckedRows], dict[str, Array]], rows: CheckedRows) -> Any:
    """`answer` as an Arrow table, also where there are no rows: columns of the same types, without cells."""
    if len(rows.array):
        return as_arrow(answer(rows))
    stand_in = CheckedRows(np.zeros((1, rows.array.shape[1]), dtype=rows.array.dtype))
    return as_arrow(answer(stand_in)).slice(0, 0)


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
