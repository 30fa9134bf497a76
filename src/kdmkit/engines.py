"""Fitted models on engines that map functions over batches of rows: Ray Data, Spark, Dask."""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from kdmkit._core.checks import bad_argument, check_instance
from kdmkit.estimators.common import KDMEstimator
from kdmkit.estimators.common.arrow import as_arrow, need
from kdmkit.serialize import load

# Saved models that a process keeps in memory.
_MODELS = 4
# Several threads that need one model read it once.
_LOADING = threading.Lock()


class BatchFunction:
    """A fitted estimator as a function from Arrow batch to Arrow batch, with the columns of `stream`.

    The answer for a row depends on the row alone. An engine (Ray Data, Spark, Dask) can split rows among
    processes, and repeat batches that a lost process had begun. Pickles of the function hold the path of a
    saved model, or the estimator itself.

    Args:
        model: a fitted estimator, or the path of one that `kdmkit.save` wrote. The path has to name the same
            file in all processes; each reads it once.
        what, columns, keep, options: those of `KDMDensity.stream`, `KDMClassifier.stream`,
            `KDMRegressor.stream` and `KDMTable.stream`: `"score"`, `"predict"`, or `"impute"`. With
            `draw=True`, draws depend on `random_state` and on the cells of the batch: a batch that is
            repeated has the same draws.
        device: the device of a saved model.

    >>> import pickle, pyarrow
    >>> from kdmkit import KDMDensity
    >>> score = BatchFunction(KDMDensity(sigma=1.0).fit([[0.0], [1.0]]), "score", columns=["x"], keep=["id"])
    >>> batch = pyarrow.RecordBatch.from_pydict({"id": [7, 8], "x": [0.5, 9.0]})
    >>> pickle.loads(pickle.dumps(score))(batch).to_pydict()
    {'id': [7, 8], 'log_prob': [-0.822..., -65.265...]}
    """

    def __init__(
        self,
        model: KDMEstimator | str | os.PathLike[str],
        what: str,
        *,
        columns: Sequence[str] | None = None,
        keep: Sequence[str] = (),
        device: str = "cpu",
        **options: Any,
    ) -> None:
        if isinstance(model, str | os.PathLike):
            model = str(Path(model).absolute())
        else:
            check_instance("model", model, KDMEstimator, "a fitted estimator, or the path of a saved one")
        if what == "sample":
            raise ValueError(bad_argument("what", "an answer to rows", "'sample'"))
        self._model, self._device = model, device
        self._what, self._columns, self._keep, self._options = what, columns, keep, options
        if not isinstance(model, str):
            self._answer([], {})  # options that are wrong raise here

    def __call__(self, batch: Any) -> Any:
        """The answer for every row, in order: a record batch for one, else an Arrow table."""
        table = as_arrow(batch)
        options = {"random_state": self._seed(table)} if self._options.get("draw") else {}
        (answers,) = self._answer([table], options)
        return _as_record_batch(answers) if isinstance(batch, need("pyarrow").RecordBatch) else answers

    def _answer(self, batches: list[Any], options: dict[str, Any]) -> Any:
        options = {**self._options, **options}
        return self.model.stream(self._what, batches, columns=self._columns, keep=self._keep, **options)

    @property
    def model(self) -> KDMEstimator:
        """The estimator; a saved one is read when it is first asked for."""
        if not isinstance(self._model, str):
            return self._model
        status = Path(self._model).stat() if Path(self._model).is_file() else None
        stamp = None if status is None else (status.st_mtime_ns, status.st_size, status.st_ino)
        with _LOADING:
            return _loaded(self._model, stamp, self._device)

    def _seed(self, table: Any) -> int:
        """The seed of draws: a function of `random_state` and of the batch."""
        arrow = need("pyarrow")
        sink = arrow.BufferOutputStream()
        with arrow.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.combine_chunks())
        return zlib.crc32(sink.getvalue(), self._options.get("random_state") or 0)

    @property
    def __name__(self) -> str:
        """The name that engines show."""
        return f"kdmkit.{self._what}"

    def __repr__(self) -> str:
        model = self._model if isinstance(self._model, str) else type(self._model).__name__
        return f"BatchFunction({model!r}, {self._what!r})"


@lru_cache(_MODELS)
def _loaded(path: str, stamp: Any, device: str) -> KDMEstimator:
    """A saved estimator; `stamp` distinguishes files that were at one path at different times."""
    model: Any = load(path, device=device)
    check_instance("model", model, KDMEstimator, "the path of a saved estimator")
    estimator: KDMEstimator = model
    return estimator


def _as_record_batch(table: Any) -> Any:
    columns = [column.combine_chunks() for column in table.columns]
    return need("pyarrow").RecordBatch.from_arrays(columns, schema=table.schema)
