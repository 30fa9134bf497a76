"""The rows of a fit: uniform samples of frames, files and streams, and their weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit._core.checks import bad_argument, check_count
from kdmkit.estimators.common.arrays import weighted_rows
from kdmkit.estimators.common.arrow import need
from kdmkit.estimators.common.chunks import smallest
from kdmkit.estimators.common.csv_parquet import batches_of, is_streamed
from kdmkit.estimators.table.frames.read import RawFrame, checked_names, read_frame

# A sample grows to this many times its size before the rows that left it are dropped.
_SLACK = 1.25


def sample_frame(argument: str, data: Any, most: int | None, seed: int) -> RawFrame:
    """A whole table, or a uniform sample of its rows in their order.

    Args:
        argument: names the table in errors.
        data: a frame, a path, or an iterator of batches; files and iterators are read batch by batch.
        most: the number of rows of a sample; None takes all rows.
    """
    most = None if most is None else check_count("max_rows", most, "a whole number ≥ 1 or None")
    rng = np.random.default_rng(seed)
    if is_streamed(data):
        rows = Reservoir(most, rng)
        for batch in batches_of(data):
            rows.add(batch)
        return rows.sample(argument)
    frame = read_frame(argument, data)
    if most is None or frame.n_rows <= most:
        return frame
    return frame.take(smallest(rng.random(frame.n_rows), most))


class Reservoir:
    """A uniform sample of a stream of rows: those with the smallest of independent random numbers.

    Args:
        most: rows of the sample; None keeps all.
        rng: draws the numbers.
    """

    def __init__(self, most: int | None, rng: np.random.Generator) -> None:
        self.most, self._rng = most, rng
        self.n_rows = 0
        self._limit = np.inf
        self._tables: list[Any] = []
        self._keys = np.empty(0)
        self._index = np.empty(0, dtype=np.int64)

    def add(self, table: Any) -> None:
        """Takes the rows of an Arrow table into account."""
        checked_names("X", table.column_names)
        keys = self._rng.random(table.num_rows)
        index = np.flatnonzero(keys < self._limit)
        self._tables.append(table if len(index) == table.num_rows else table.take(index))
        self._keys = np.concatenate([self._keys, keys[index]])
        self._index = np.concatenate([self._index, self.n_rows + index])
        self.n_rows += table.num_rows
        if self.most is not None and len(self._keys) > _SLACK * self.most:
            self._drop()

    def _drop(self) -> None:
        """Only the rows of the sample remain."""
        arrow = need("pyarrow")
        try:
            table = arrow.concat_tables(self._tables, promote_options="permissive")
        except (arrow.ArrowInvalid, arrow.ArrowTypeError) as error:
            raise ValueError(bad_argument("X", "batches with the same types of columns", error)) from error
        if self.most is not None and len(self._keys) > self.most:
            index = smallest(self._keys, self.most)
            table = table.take(index)
            self._keys, self._index = self._keys[index], self._index[index]
            self._limit = self._keys.max()
        self._tables = [table]

    def sample(self, argument: str) -> RawFrame:
        """The rows that remain; `argument` names the table in errors."""
        if not self._tables:
            self._tables = [need("pyarrow").table({})]
        self._drop()
        frame = read_frame(argument, self._tables[0])
        if len(self._index) == self.n_rows:
            return frame
        return replace(frame, numbers=self._index, n_total=self.n_rows)


# ---- weights


def sampled_weights(
    sample_weight: Any, frame: RawFrame
) -> tuple[Float[Tensor, " m"] | None, Int[Tensor, " m"]]:
    """Weights of the rows of a sample, of mean 1, and the places in it of those whose weight is positive."""
    if sample_weight is not None and frame.numbers is not None:
        weighted_rows(sample_weight, np.arange(frame.n_total))  # raises unless every row has a weight
        sample_weight = np.asarray(sample_weight)[frame.numbers]
    weights, used = weighted_rows(sample_weight, np.arange(frame.n_rows))
    return None if weights is None else weights.float(), torch.from_numpy(used)


def chunk_weights(sample_weight: Any, n_rows: int) -> tuple[Float[Tensor, " m"], Int[Tensor, " m"]]:
    """Weights in the caller's unit, which all chunks share, and the rows whose weight is positive."""
    used = torch.from_numpy(weighted_rows(sample_weight, np.arange(n_rows))[1])
    if sample_weight is None:
        return torch.ones(n_rows), used
    return torch.as_tensor(np.asarray(sample_weight, dtype=np.float64))[used].float(), used
