"""The fit of a table: from all rows, or from one chunk of rows after the other."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from kdmkit._core.checks import bad_argument
from kdmkit.estimators.common.arrays import plain
from kdmkit.estimators.common.base import KDMEstimator
from kdmkit.estimators.table.answering.engine import TableEngine
from kdmkit.estimators.table.chunk_fit import ReplayRows, learn_chunk
from kdmkit.estimators.table.frames.read import read_frame
from kdmkit.estimators.table.model import TableSettings, fit_model
from kdmkit.estimators.table.row_sample import chunk_weights, sample_frame, sampled_weights
from kdmkit.estimators.table.schema import Columns, Schema
from kdmkit.training import Table


@dataclass(eq=False, repr=False, kw_only=True)
class TableEstimator(KDMEstimator):
    """The fit of a table; `KDMTable` adds the questions."""

    types: Any = None
    targets: Any = None
    max_rows: int | None = 500_000
    max_epochs: Any = "auto"
    patience: Any = "auto"

    _cached_engine: TableEngine | None = field(init=False, default=None)
    _kept: ReplayRows | None = field(init=False, default=None)

    def __new__(cls, **parameters: Any) -> Self:
        if "model" in parameters:
            wanted = "no such argument: tables are trees; kdmkit.nn.JointLayer is one mixture of all columns"
            raise TypeError(bad_argument("model", wanted, repr(parameters["model"])))
        return super().__new__(cls)

    # ---- fitting

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learns the joint distribution of all columns.

        Args:
            X: a frame of pandas, polars or Arrow, a mapping of arrays, an array; or a path to CSV or Parquet,
                or an iterator of Arrow batches: these are read batch by batch and never held in memory.
            y: ignored, for scikit-learn.
            sample_weight: a number ≥ 0 for every row.
        """
        with self._seeded():
            frame = sample_frame("X", X, self.max_rows, self._seed)
            schema = Schema.from_frame(frame, self.types)
            weights, used = sampled_weights(sample_weight, frame)
            rows = replace(schema.encode(frame).take(used), weights=weights)
            layer, self.history_ = fit_model(schema, rows, self._fit_settings(schema, rows))
        self._kept = None
        self._adopt(schema, layer, frame.n_rows if frame.n_total is None else frame.n_total)
        return self

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learns from one more chunk of rows.

        The first call decides what the columns are, as `fit` does; later chunks must have the same columns.
        Levels that the first chunk lacks are later taken for missing cells, and `score_samples` gives them
        the share of unseen levels; a categorical dtype declares levels that no row of it has.

        Later calls train the same model further: with steps in proportion to s, the share of the chunk among
        all rows so far, and with learning rates smaller by √s. A uniform sample of `max_rows` earlier rows
        stays in memory. A part of it is learned again beside each chunk, so that the order of chunks matters
        little. With automatic `n_components`, the model starts anew from these rows when `fit` would give
        them twice as many components. `kdmkit.save` leaves the sample out.

        Args:
            X: as in `fit`; a chunk is held in memory.
            sample_weight: a number ≥ 0 for every row, in the same unit in all chunks.
        """
        first = not hasattr(self, "module_")
        with self._seeded():
            raw = read_frame("X", X)
            schema = Schema.from_frame(raw, self.types) if first else self.schema_
            schema.check_columns(raw)
            weights, used = chunk_weights(sample_weight, raw.n_rows)
            rows = replace(schema.encode(raw).take(used), weights=weights)
            n_rows = raw.n_rows + (0 if first else self.n_samples_seen_)
            layer, history, kept = learn_chunk(
                schema,
                None if first else self.module_,
                None if first else self._kept,
                rows,
                self._fit_settings(schema, rows, starts=first),
                share=raw.n_rows / n_rows,
                most=self.max_rows,
            )
        self.history_ = history if first else [*self.history_, *history]
        self._kept = kept
        self._adopt(schema, layer, n_rows)
        return self

    def _adopt(self, schema: Schema, layer: Any, n_rows: int) -> None:
        self.schema_ = schema
        self.n_samples_seen_ = n_rows
        self.n_features_in_ = len(schema.columns)
        self.feature_names_in_ = np.array(list(schema.columns), dtype=object)
        self._cached_engine = None
        self._keep(layer)
        self._engine()

    def _fit_settings(self, schema: Schema, rows: Table, *, starts: bool = True) -> TableSettings:
        n = len(rows)
        count: int | None = None
        if not (isinstance(self.n_components, str) and self.n_components == "auto"):
            count = self._count_components(n, n) if starts else self.module_.n_components
        return TableSettings(
            n_components=count,
            validation_fraction=self.validation_fraction,
            seed=self._seed,
            options=self._settings(self._seed, n),
            identity=self._identity(*rows.columns.values()),
            targets=self._target_variables(schema),
        )

    def _target_variables(self, schema: Schema) -> list[tuple[str, ...]]:
        if self.targets is None:
            return []
        if isinstance(self.targets, str):
            raise ValueError(bad_argument("targets", "a list of columns", repr(self.targets)))
        return [schema.modelled_column("targets", name).variables for name in self.targets]

    def _settings(self, seed: int, rows: int) -> dict[str, Any]:
        """Settings of the loop that are not automatic."""
        names = ("max_epochs", "batch_size", "learning_rate", "patience", "checkpoint_dir", "device")
        chosen = {name: plain(getattr(self, name)) for name in names}
        chosen = {name: value for name, value in chosen.items() if value != "auto" or name == "device"}
        return {**chosen, "verbose": bool(self.verbose), "seed": seed}

    @property
    def columns_(self) -> Columns:
        """What every column was taken for, by name; prints as a table."""
        check_is_fitted(self)
        return Columns(self.schema_)

    def _engine(self) -> TableEngine:
        """The fitted distribution; made once."""
        check_is_fitted(self)
        if self._cached_engine is None or self._cached_engine.module is not self.module_:
            with torch.no_grad():
                joint = self.module_.tree(validate_args=False)
            self._cached_engine = TableEngine(self.schema_, joint, self.module_)
        return self._cached_engine

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.categorical = tags.input_tags.string = True
        tags.non_deterministic = self.random_state is None
        return tags

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_cached_engine": None}
