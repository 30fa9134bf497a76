"""How a table learns: from a whole table, or from one chunk of rows after the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from kdmkit._core.checks import bad_argument, check_choice
from kdmkit.estimators.common.arrays import Array, plain
from kdmkit.estimators.common.base import KDMEstimator
from kdmkit.estimators.table.answering.engine import Inference
from kdmkit.estimators.table.chunk_fit import KeptRows, learn_chunk
from kdmkit.estimators.table.frames.read import read_frame
from kdmkit.estimators.table.model import ModelSettings, distribution_of, fit_model
from kdmkit.estimators.table.row_sample import chunk_weights, sample_frame, sampled_weights
from kdmkit.estimators.table.schema import Columns, Encoded, Schema


@dataclass(eq=False, repr=False, kw_only=True)
class TableEstimator(KDMEstimator):
    """An estimator of tables; `KDMTable` adds the questions to it."""

    types: Any = None
    model: Literal["tree", "flat"] = "tree"
    targets: Any = None
    max_rows: int | None = 500_000
    max_epochs: Any = "auto"
    patience: Any = "auto"

    _inference: Inference | None = field(init=False, default=None)
    _kept: KeptRows | None = field(init=False, default=None)

    # ---- fitting

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learns the joint distribution of all columns.

        Args:
            X: a frame of pandas, polars or Arrow, a mapping of arrays, an array; or a path to CSV or Parquet,
                or an iterator of Arrow batches: these are read batch by batch and never held in memory.
            y: ignored, for scikit-learn.
            sample_weight: a number ≥ 0 for every row.
        """
        check_choice("model", self.model, ("tree", "flat"))
        with self._seeded():
            schema, rows, n_rows, index = self._read(X)
            weights, used = sampled_weights(sample_weight, n_rows, index)
            rows = rows.take(used)
            layer, self.history_ = fit_model(schema, rows, weights, self._model_settings(schema, rows))
        self._kept = None
        self._adopt(schema, layer, n_rows)
        return self

    def _read(self, X: Any) -> tuple[Schema, Encoded, int, Array]:
        """The schema and the rows of a fit, how many rows X has, and the numbers of those of the fit."""
        sample = sample_frame("X", X, self.max_rows, self._seed)
        schema = Schema.from_frame(sample.frame, self.types, n_rows=sample.n_rows)
        return schema, schema.encode(sample.frame), sample.n_rows, sample.numbers

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
        check_choice("model", self.model, ("tree", "flat"))
        first = not hasattr(self, "module_")
        with self._seeded():
            raw = read_frame("X", X)
            schema = Schema.from_frame(raw, self.types) if first else self.schema_
            schema.check_columns(raw)
            weights, used = chunk_weights(sample_weight, raw.n_rows)
            rows = schema.encode(raw).take(used)
            n_rows = raw.n_rows + (0 if first else self.n_samples_seen_)
            layer, history, kept = learn_chunk(
                schema,
                None if first else self.module_,
                None if first else self._kept,
                (rows, weights),
                self._model_settings(schema, rows, starts=first),
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
        self._inference = None
        self._keep(layer)
        self._engine()

    def _model_settings(self, schema: Schema, rows: Encoded, *, starts: bool = True) -> ModelSettings:
        n = rows.n_rows
        count: int | None = None
        if not (isinstance(self.n_components, str) and self.n_components == "auto"):
            count = self._count_components(n, n) if starts else self.module_.n_components
        return ModelSettings(
            model=self.model,
            n_components=count,
            validation_fraction=self.validation_fraction,
            seed=self._seed,
            options=self._settings(self._seed, n),
            identity=self._identity(tuple(rows.values.values())),
            targets=self._target_variables(schema),
        )

    def _target_variables(self, schema: Schema) -> list[tuple[str, ...]]:
        if self.targets is None:
            return []
        if isinstance(self.targets, str) or self.model != "tree":
            wanted = "a list of columns, for the model 'tree'"
            raise ValueError(bad_argument("targets", wanted, repr(self.targets)))
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

    def _engine(self) -> Inference:
        """The fitted distribution; made once."""
        check_is_fitted(self)
        if self._inference is None or self._inference.module is not self.module_:
            with torch.no_grad():
                joint = distribution_of(self.module_)
            self._inference = Inference(self.schema_, joint, self.module_)
        return self._inference

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.categorical = tags.input_tags.string = True
        tags.non_deterministic = self.random_state is None
        return tags

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_inference": None}
