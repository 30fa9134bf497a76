"""The fit of a table, and the rows that it takes from frames, files and streams."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.base import DensityMixin
from sklearn.utils import ClassifierTags, RegressorTags
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from kdmkit._core.checks import bad_argument, check_choice, check_count
from kdmkit.estimators.common.arrays import plain, weighted_rows
from kdmkit.estimators.common.arrow import need
from kdmkit.estimators.common.base import KDMEstimator
from kdmkit.estimators.common.chunks import smallest
from kdmkit.estimators.common.csv_parquet import batches_of, is_streamed
from kdmkit.estimators.table.answering.engine import BLOCK, TableEngine
from kdmkit.estimators.table.answering.support import Margins
from kdmkit.estimators.table.codecs.kinds import are_classes
from kdmkit.estimators.table.column import Column, Columns
from kdmkit.estimators.table.decisions import read_decisions, warn_of_few_rows, warn_of_unsure
from kdmkit.estimators.table.derived import places_of_variables
from kdmkit.estimators.table.frames.read import RawFrame, checked_names, read_frame, with_target
from kdmkit.estimators.table.model import ReplayRows, TableSettings, fit_model, learn_chunk
from kdmkit.estimators.table.outcomes import check_target
from kdmkit.estimators.table.row_rules import scored_rows
from kdmkit.estimators.table.rule_fitting import with_rules
from kdmkit.estimators.table.rules import Rules
from kdmkit.estimators.table.schema import Schema
from kdmkit.nn.pair_information import PairInformation
from kdmkit.training import Table

# A sample grows to this many times its size before the rows that left it are dropped.
_SLACK = 1.25


@dataclass(eq=False, repr=False, kw_only=True)
class TableEstimator(DensityMixin, KDMEstimator):
    """The fit of a table; `KDMTable` adds the questions."""

    types: Any = None
    schema: Any = None
    targets: Any = None
    texts: Literal["left out", "pooled", "drawn"] = "left out"
    min_level_rows: int | Literal["auto"] = "auto"
    identifiers: Literal["new", "left out"] = "new"
    missing: Literal["outcome", "unknown"] = "outcome"
    rules: Any = True
    broken_rules: Literal["impossible", "rare"] = "impossible"
    max_rows: int | None = 500_000
    max_epochs: Any = "auto"
    patience: Any = "auto"

    targets_: list[str] = field(init=False, repr=False)
    pair_information_: PairInformation | None = field(init=False, default=None)
    _cached_engine: TableEngine | None = field(init=False, default=None)
    _kept: ReplayRows | None = field(init=False, default=None)
    _margins: Margins = field(init=False, default_factory=Margins)

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
                or an iterator of Arrow batches: these are read batch by batch: memory holds only the sample.
            y: one more column that will be predicted, as scikit-learn passes it: a series, whose name the
                column takes, or an array, "y". Two numbers, and whole numbers from 0 or 1 to at most 10, are
                classes; `types={"y": "count"}` makes them quantities.
            sample_weight: a number ≥ 0 for every row.
        """
        with self._seeded():
            self.targets_, data = self._with_target(X, y)
            frame = sample_frame("X", data, self.max_rows, self._seed)
            schema = self._new_schema(frame)
            weights, used = sampled_weights(sample_weight, frame)
            rows = replace(schema.encode(frame, missing=self.missing).take(used), weights=weights)
            layer, self.history_, information = fit_model(schema, rows, self._fit_settings(schema, rows))
        warn_of_few_rows("X", frame.n_rows)
        self._kept = None
        self._adopt(
            schema, layer, information, rows, frame.n_rows if frame.n_total is None else frame.n_total
        )
        return self

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learns from one more chunk of rows.

        The first call decides what the columns are, as `fit` does; later chunks must have the same columns.
        Columns without a missing cell in it take missing cells of later chunks for unknown values.
        New texts in a column of levels become levels of it. Other new levels are taken for missing cells, and
        `score_samples` gives them the share of unseen levels.

        Later calls train the same model further: with steps in proportion to s, the share of the chunk among
        all rows so far, and with learning rates smaller by √s. A uniform sample of `max_rows` earlier rows
        stays in memory. A part of it is learned again beside each chunk, so that the order of chunks matters
        little. With automatic `n_components`, the model starts anew from these rows when `fit` would give
        them twice as many components. `kdmkit.save` leaves the sample out.

        Args:
            X, y: as in `fit`; memory holds a whole chunk.
            sample_weight: a number ≥ 0 for every row, in the same unit in all chunks.
        """
        first = not hasattr(self, "module_")
        with self._seeded():
            names = None if first else self.targets_
            self.targets_, raw = self._with_target(read_frame("X", X), y, names)
            if not raw.n_rows:
                raise ValueError(bad_argument("X", "at least one row", "none"))
            schema = self._new_schema(raw) if first else self._grown_schema(raw)
            weights, used = chunk_weights(sample_weight, raw.n_rows)
            rows = replace(schema.encode(raw, missing=self.missing).take(used), weights=weights)
            n_rows = raw.n_rows + (0 if first else self.n_samples_seen_)
            layer, history, kept, information = learn_chunk(
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
        self._adopt(schema, layer, information, kept.table, n_rows)
        return self

    def _with_target(self, X: Any, y: Any, names: Sequence[str] | None = None) -> tuple[list[str], Any]:
        """The columns that will be predicted, and the rows with y among their columns.

        Args:
            names: of the columns of y, if an earlier call gave them.
        """
        if y is None:
            return [self.targets] if isinstance(self.targets, str) else list(self.targets or ()), X
        if self.targets is not None:
            raise ValueError(bad_argument("y", "None, since `targets` are columns of X", type(y).__name__))
        if is_streamed(X):
            wanted = "None for files and streams: `targets` names a column of them"
            raise ValueError(bad_argument("y", wanted, type(y).__name__))
        frame = read_frame("X", X)
        joined = with_target(frame, y, names)
        return list(joined.columns)[len(frame.columns) :], joined

    def _classes(self, frame: RawFrame) -> dict[str, str]:
        """The kind of y if its numbers are classes."""
        names = self.targets_ if self.targets is None else []
        return {name: "category" for name in names if are_classes(frame.columns[name])}

    def _new_schema(self, frame: RawFrame) -> Schema:
        check_choice("missing", self.missing, ("outcome", "unknown"))
        check_choice("broken_rules", self.broken_rules, ("impossible", "rare"))
        check_choice("identifiers", self.identifiers, ("new", "left out"))
        check_choice("texts", self.texts, ("left out", "pooled", "drawn"))
        decisions = read_decisions(self.schema)
        schema = Schema.from_frame(
            frame,
            {**self._classes(frame), **decisions.types, **(self.types or {})},
            missing=self.missing,
            texts=self.texts,
            least_rows=self._least_rows(),
            markers=decisions.markers,
            identifiers=self.identifiers,
            reviewed=decisions.types.keys() - (self.types or {}).keys(),
        )
        warn_of_unsure(schema.columns)
        return with_rules(schema, frame, self.rules, self.broken_rules)

    def _grown_schema(self, frame: RawFrame) -> Schema:
        """The schema with the levels of one more chunk."""
        rows = self.schema_.read(frame)
        self.schema_.check_columns(rows)
        return self.schema_.grown(rows, 1 if self.texts == "drawn" else self._least_rows())

    def _least_rows(self) -> int | None:
        if isinstance(self.min_level_rows, str) and self.min_level_rows == "auto":
            return None
        return check_count("min_level_rows", self.min_level_rows, 'a whole number ≥ 1 or "auto"')

    def _adopt(self, schema: Schema, layer: Any, information: Any, rows: Table, n_rows: int) -> None:
        self.schema_ = schema
        self.pair_information_ = information.of_groups(places_of_variables(schema))
        self.n_samples_seen_ = n_rows
        no_features = {*schema.texts.values(), *(self.targets_ if self.targets is None else ())}
        names = [name for name in schema.columns if name not in no_features]
        self.n_features_in_ = len(names)
        self.feature_names_in_ = np.array(names, dtype=object)
        self._margins = Margins.by(rows, self._seed)
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
            presences=frozenset(v.name for presence in schema.presences.values() for v in presence.variables)
            | {column.code for column in schema.derived.values()},
        )

    def _target_variables(self, schema: Schema) -> list[tuple[str, ...]]:
        argument = "targets" if self.targets is not None else "y"
        return [schema.modelled_column(argument, name).variables for name in self.targets_]

    def checked_target(self, target: Any) -> Column:
        """The column of the model that is predicted; None is the only target of the fit."""
        if target is None and len(self.targets_) != 1:
            wanted = "a column; only with `y` or with one column in `targets` is there a default"
            raise ValueError(bad_argument("target", wanted, None))
        return check_target(self.schema_, self.targets_[0] if target is None else target)

    def _settings(self, seed: int, rows: int) -> dict[str, Any]:
        """Settings of the loop that are not automatic."""
        names = ("max_epochs", "batch_size", "learning_rate", "patience", "checkpoint_dir", "device")
        chosen = {name: plain(getattr(self, name)) for name in names}
        chosen = {name: value for name, value in chosen.items() if value != "auto" or name == "device"}
        return {**chosen, "verbose": bool(self.verbose), "seed": seed}

    @property
    def rules_(self) -> Rules:
        """The rules between columns that rows keep; prints as a table."""
        check_is_fitted(self)
        return self.schema_.rules

    @property
    def columns_(self) -> Columns:
        """The columns and their kinds, by name; prints as a table."""
        check_is_fitted(self)
        return Columns(self.schema_.columns, self.schema_.origin)

    @property
    def classes_(self) -> np.ndarray:
        """The levels of the only target, which scikit-learn's scores of classifiers ask for."""
        names = getattr(self, "targets_", [])
        codec = self.schema_.columns[names[0]].codec if len(names) == 1 else None
        if codec is None or codec.levels is None:
            raise AttributeError("classes_: expected a fit with one target that has levels")
        return np.array(codec.levels)

    def levels(self, target: str) -> list[Any]:
        """The levels of a column, as `predict_proba` has them."""
        check_is_fitted(self)
        column = check_target(self.schema_, target)
        if column.codec.levels is None:
            wanted = "a column with levels"
            raise TypeError(bad_argument("target", wanted, f"{target!r}, of kind {column.kind}"))
        return list(column.codec.levels)

    def _engine(self) -> TableEngine:
        """The fitted distribution; made once."""
        if self._cached_engine is None or self._cached_engine.module is not self.module_:
            check_is_fitted(self)
            with torch.no_grad():
                joint = self.module_.tree(validate_args=False)
            self._cached_engine = TableEngine(self.schema_, joint, self.module_, self._margins)
        return self._cached_engine

    def _blocks(self, X: Any, *, scored: bool = False) -> Iterator[Table]:
        """Rows as events, in blocks; files and iterators are read batch by batch.

        Args:
            scored: whether log p is wanted: then rows have to keep the rules.
        """
        for batch in batches_of(X) if is_streamed(X) else [X]:
            encode = scored_rows if scored else Schema.encode
            yield from encode(self.schema_, batch, missing=self.missing).blocks(BLOCK)

    @property
    def to_module(self) -> Any:
        """Tables have no such method: `module_.tree()` is their distribution in PyTorch."""
        advice = "module_.tree() is the distribution in PyTorch"
        raise AttributeError(f"{type(self).__name__!r} object has no attribute 'to_module': {advice}")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.categorical = tags.input_tags.string = True
        tags.non_deterministic = self.random_state is None
        if hasattr(self, "module_") and self.targets is None and len(self.targets_) == 1:
            numeric = self.schema_.columns[self.targets_[0]].codec.numeric
            tags.estimator_type = "regressor" if numeric else "classifier"
            tags.classifier_tags = None if numeric else ClassifierTags()
            tags.regressor_tags = RegressorTags() if numeric else None
        return tags

    def __getstate__(self) -> dict[str, Any]:
        if hasattr(self, "module_"):
            self._engine().support.measure()  # rows stay here
        return {**super().__getstate__(), "_cached_engine": None}


# ---- rows


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
        frame = sample_batches(argument, batches_of(data), most, rng)
        return replace(frame, backend="file") if isinstance(data, str | os.PathLike) else frame
    frame = read_frame(argument, data)
    if most is None or frame.n_rows <= most:
        return frame
    return frame.take(smallest(rng.random(frame.n_rows), most))


def sample_batches(argument: str, batches: Iterable[Any], most: int | None, rng: Any) -> RawFrame:
    """A uniform sample of a stream of Arrow tables: the rows with the smallest of independent random numbers.

    Args:
        argument: names the stream in errors.
        most: the number of rows; None takes all rows.
        rng: draws the random numbers.
    """
    tables: list[Any] = []
    keys, numbers, n_rows = np.empty(0), np.empty(0, dtype=np.int64), 0
    for table in batches:
        checked_names(argument, table.column_names)
        new = rng.random(table.num_rows)
        # A row with a larger key than all rows of a full sample cannot enter it.
        index = np.flatnonzero(new < (np.inf if most is None or len(keys) < most else keys.max()))
        tables.append(table if len(index) == table.num_rows else table.take(index))
        keys, numbers = np.concatenate([keys, new[index]]), np.concatenate([numbers, n_rows + index])
        n_rows += table.num_rows
        if most is not None and len(keys) > _SLACK * most:
            tables, index = _smallest_rows(argument, tables, keys, most)
            keys, numbers = keys[index], numbers[index]
    if not n_rows:
        raise ValueError(bad_argument(argument, "at least one row", "none"))
    tables, index = _smallest_rows(argument, tables, keys, most)
    frame = read_frame(argument, tables[0])
    return frame if len(index) == n_rows else replace(frame, numbers=numbers[index], n_total=n_rows)


def _smallest_rows(
    argument: str, tables: list[Any], keys: np.ndarray, most: int | None
) -> tuple[list[Any], np.ndarray]:
    """The rows of tables with the smallest keys, as a list of one table, and their numbers."""
    arrow = need("pyarrow")
    try:
        table = arrow.concat_tables(tables or [arrow.table({})], promote_options="permissive")
    except (arrow.ArrowInvalid, arrow.ArrowTypeError) as error:
        raise ValueError(bad_argument(argument, "batches with the same types of columns", error)) from error
    index = smallest(keys, len(keys) if most is None else most)
    return [table if len(index) == len(keys) else table.take(index)], index


# ---- weights


def sampled_weights(
    sample_weight: Any, frame: RawFrame
) -> tuple[Float[Tensor, " m"] | None, Int[Tensor, " m"]]:
    """Weights of the rows of a sample, of mean 1, and the places in it of those whose weight is positive."""
    if sample_weight is not None and frame.numbers is not None:
        assert frame.n_total is not None
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
