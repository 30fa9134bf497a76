"""Sequences of rows: a hidden Markov model whose emissions are KDMs of all columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import DensityMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from kdmkit._core.checks import bad_argument, check_count
from kdmkit.estimators.common.arrays import Array, plain
from kdmkit.estimators.common.base import KDMEstimator
from kdmkit.estimators.sequence.forecast import Forecast, StepDistributions
from kdmkit.estimators.sequence.timeline import Timeline
from kdmkit.estimators.table.column import Columns
from kdmkit.estimators.table.frames.read import RawFrame, read_frame
from kdmkit.estimators.table.frames.restore import build_frame, fill_frame
from kdmkit.estimators.table.frames.storage import RawColumn, Storage
from kdmkit.estimators.table.schema import Schema
from kdmkit.nn import ChainLayer
from kdmkit.training import SequenceLayout, Table, chain_options, fit_chain

# Automatic numbers of components of a state.
_ROWS_PER_COMPONENT, _MOST_COMPONENTS = 100, 4


@dataclass(eq=False, repr=False, kw_only=True)
class KDMSequence(DensityMixin, KDMEstimator):
    """A model of sequences of rows: numbers, categories, dates and missing cells, which change with time.

    A hidden Markov model: a state that changes from step to step, and in every state a KDM of all columns.
    Rows are the steps of sequences. Times at equal distances, also months, may have gaps: these are missing
    steps. Other times give the order of the rows alone.

    Args:
        key: the column that says which sequence a row belongs to; None: there is one sequence.
        time: the column of times, numbers or dates, by which steps are ordered; None: the order of the rows.
        types: kinds of columns that you decide, as in `KDMTable`.
        n_states: the number of states; `"auto"` by the number of rows.
        n_components: of the KDM in every state; `"auto"`: one for every 100 rows of a state, from 1 to 4.
        max_epochs, batch_size, learning_rate, validation_fraction, patience: of the training, as in
            `kdmkit.training.fit_chain`.
        checkpoint_dir: the folder in which every epoch is saved and from which a killed fit resumes.
        device: `"auto"`, `"cpu"` or `"cuda"`.
        random_state, verbose: seed of the fit and of draws; whether to show progress.

    Attributes:
        columns_: the kind of every column, and why.
        schema_: the codecs of the columns.
        timeline_: keys, times and the length of a step.
        history_: one entry per epoch.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> day = np.arange(200)
    >>> level = np.where(day // 25 % 2, 5.0, 1.0) + rng.normal(0, 0.3, 200)
    >>> model = KDMSequence(time="day", n_states=2, max_epochs=20, random_state=0)
    >>> model.fit({"day": day, "level": level}).forecast({"day": day, "level": level}, 2).mean("level").shape
    (1, 2)
    """

    key: Any = None
    time: Any = None
    types: Any = None
    n_states: int | Literal["auto"] = "auto"
    max_epochs: Any = "auto"
    patience: Any = "auto"

    schema_: Schema = field(init=False, repr=False)
    timeline_: Timeline = field(init=False, repr=False)
    typical_length_: int = field(init=False, repr=False)

    # ---- fitting

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learns how rows follow each other.

        Args:
            X: a frame of pandas, polars or Arrow, a mapping of arrays, an array, or a path to CSV or Parquet.
            y: ignored.
        """
        with self._seeded():
            raw = read_frame("X", X)
            timeline = Timeline.fit(raw, self.key, self.time)
            layout, body = timeline.layout(raw), timeline.without(raw)
            schema = Schema.from_frame(body, self.types, missing="unknown")
            rows = schema.encode(body, missing="unknown")
            if not rows.columns:
                kinds = ", ".join(f"{column.name} ({column.kind})" for column in schema.columns.values())
                raise ValueError(bad_argument("X", "columns that a model can learn", kinds))
            layer = self._start(schema, rows, layout)
            self.history_ = fit_chain(
                layer,
                rows,
                layout,
                options=chain_options(layout, **self._settings(self._seed, len(layout))),
                validation_fraction=self.validation_fraction,
                identity=self._identity(*rows.columns.values()),
            )
        self.schema_, self.timeline_ = schema, timeline
        self.typical_length_ = int(layout.lengths.median())
        self.n_features_in_ = len(raw.columns)
        self.feature_names_in_ = np.array(list(raw.columns), dtype=object)
        self._keep(layer)
        return self

    def _settings(self, seed: int, rows: int) -> dict[str, Any]:
        """Settings of the loop that are not automatic."""
        names = ("max_epochs", "batch_size", "learning_rate", "patience", "checkpoint_dir", "device")
        given = {name: plain(getattr(self, name)) for name in names}
        chosen = {name: value for name, value in given.items() if value != "auto" or name == "device"}
        return {**chosen, "verbose": bool(self.verbose), "seed": seed}

    def _start(self, schema: Schema, rows: Table, layout: SequenceLayout) -> ChainLayer:
        """A layer whose states are clusters of steps."""
        n = len(layout)
        k = (
            max(1, round(n ** (1 / 3) / 2))
            if self.n_states == "auto"
            else check_count("n_states", self.n_states)
        )
        c = 3 if self.n_components == "auto" else check_count("n_components", self.n_components)
        k = min(k, n)
        c = max(1, min(c, n // k))
        generator = torch.Generator().manual_seed(self._seed)
        variables = schema.variables(k * c)
        layer = ChainLayer(variables, k * c, n_states=k, generator=generator)
        columns = rows.columns.items()
        filled: dict[str, Any] = {n: _carried(value, rows.observed.get(n)) for n, value in columns}
        method: Any = "kmeans" if any(v.kernel.is_continuous for v in variables) else "random"
        return layer.initialize(method=method, generator=generator, **filled)

    @property
    def columns_(self) -> Columns:
        """The columns and their kinds, by name; prints as a table."""
        check_is_fitted(self)
        return Columns(self.schema_.columns, self.schema_.origin)

    # ---- answers

    @torch.no_grad()
    def score_samples(self, X: Any) -> Array:
        """log p of the observed part of every row given the rows before it in its sequence.

        Their sum over a sequence is log p of the sequence. Densities are in the units of the columns.
        """
        steps = _Steps(self, X)
        log_prob = steps.layout.take(self.module_.step_log_prob(**steps.evidence)).double().cpu()
        return np.asarray(log_prob + steps.rows.log_offset)

    def score(self, X: Any, y: Any = None) -> float:
        """The mean of `score_samples`: log p per row."""
        return float(self.score_samples(X).mean())

    @torch.no_grad()
    def forecast(self, X: Any, n_steps: int = 1) -> Forecast:
        """The distributions of all columns at the next steps of every sequence, in the order of the rows.

        Args:
            X: sequences, as in `fit`; other ones than those of the fit are allowed.
            n_steps: steps after the last row of each sequence.
        """
        steps = _Steps(self, X)
        n_steps, lengths = check_count("n_steps", n_steps), steps.layout.lengths
        joint = self.module_.forecast(n_steps, lengths=lengths, **steps.evidence)
        places = self.timeline_.further(steps.raw, self.timeline_.last_rows(steps.layout), n_steps)
        number = torch.arange(joint.batch_shape.numel(), device=self._device)
        flat = StepDistributions(self.schema_, joint[number // n_steps, number % n_steps])
        return Forecast(flat, n_steps, places, self.schema_.backend)

    @torch.no_grad()
    def impute(self, X: Any, *, n: int | None = None, random_state: Any = None) -> Any:
        """The frame with its missing cells filled in, given all other cells of the sequence.

        Args:
            X: sequences, as in `fit`.
            n: None: the mean of numbers, the most probable level of categories. A number: that many frames in
                a list, each with draws of all missing cells together.
            random_state: of draws.
        """
        steps = _Steps(self, X)
        if n is not None:
            generator, n = self._generator(random_state), check_count("n", n)
            return [steps.filled(steps.drawn(generator)) for _ in range(n)]
        joint = self.module_.smooth(**steps.evidence)
        cells = {}
        for name in self.schema_.modelled:
            index = torch.from_numpy(steps.missing(name)).to(self._device)
            if len(index):
                place = (
                    steps.layout.sequence.to(self._device)[index],
                    steps.layout.step.to(self._device)[index],
                )
                cells[name] = StepDistributions(self.schema_, joint[place]).column(name).typical()
        return steps.filled(cells)

    @torch.no_grad()
    def sample(
        self, n_samples: int = 1, n_steps: int | None = None, after: Any = None, random_state: Any = None
    ) -> Any:
        """New sequences as a frame, a row for each step.

        Args:
            n_samples: the number of sequences; with `after`, of draws for each sequence in it.
            n_steps: of every sequence; None: the median length of those of the fit.
            after: sequences that the draws continue; their number is in the column `draw`.
            random_state: None: other sequences in every call.
        """
        check_is_fitted(self)
        n = check_count("n_samples", n_samples)
        n_steps = self.typical_length_ if n_steps is None else check_count("n_steps", n_steps)
        generator = self._generator(random_state)
        if after is None:
            drawn, places = (
                self.module_.sample(n_steps, (n,), generator=generator),
                self.timeline_.new(n, n_steps),
            )
        else:
            steps = _Steps(self, after)
            lengths = steps.layout.lengths
            drawn = self.module_.sample(n_steps, (n,), lengths=lengths, generator=generator, **steps.evidence)
            last = self.timeline_.last_rows(steps.layout)
            places = self.timeline_.further(steps.raw, np.tile(last, n), n_steps)
            number = np.arange(n).repeat(len(last) * n_steps)
            places.insert(0, RawColumn("draw", number, np.zeros(len(number), dtype=bool), Storage("integer")))
        shapes = {name: variable.shape for name, variable in self.module_.variables.items()}
        values = {name: value.cpu().reshape(-1, *shapes[name]) for name, value in drawn.items()}
        n_rows = len(next(iter(values.values())))
        schema = self.schema_
        cells = [schema.decode_column(name, values, n_rows) for name in schema.modelled]
        columns = [*places, *cells]
        return build_frame(columns, schema.backend, [column.name for column in columns])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.categorical = tags.input_tags.string = True
        tags.non_deterministic = self.random_state is None
        return tags


class _Steps:
    """Rows as steps of sequences, for a fitted model.

    Args:
        model: the model.
        X: the frame.
    """

    def __init__(self, model: KDMSequence, X: Any) -> None:
        check_is_fitted(model)
        self.schema: Schema = model.schema_
        self.raw: RawFrame = self.schema.marked(X)
        self.layout = model.timeline_.layout(self.raw)
        self.rows = self.schema.encode(model.timeline_.without(self.raw), missing="unknown")
        device = model._device
        self.module: ChainLayer = model.module_
        masks = {name: self.layout.pad(mask).to(device) for name, mask in self.rows.observed.items()}
        values = {name: self.layout.pad(value).to(device) for name, value in self.rows.columns.items()}
        #: Arguments of the layer's methods.
        self.evidence: dict[str, Any] = {"observed": masks, **values}

    def missing(self, name: str) -> Array:
        """Numbers of the rows that lack a cell of a column; none if the frame lacks the column."""
        raw = self.raw.columns.get(self.schema.source_of(name))
        return np.array([], dtype=np.int64) if raw is None else np.flatnonzero(raw.missing)

    def drawn(self, generator: torch.Generator) -> dict[str, Array]:
        """All missing cells, drawn together."""
        values = self.module.complete(generator=generator, **self.evidence)
        rows = {name: self.layout.take(value).cpu() for name, value in values.items()}
        names = [name for name in self.schema.modelled if len(self.missing(name))]
        cells = {name: self.schema.decode_column(name, rows, len(self.layout)).values for name in names}
        return {name: values[self.missing(name)] for name, values in cells.items()}

    def filled(self, cells: Mapping[str, Array]) -> Any:
        """The frame with missing cells filled in."""
        storages = {name: self.schema.columns[name].storage for name in cells}
        return fill_frame(self.raw, cells, storages)


def _count(argument: str, value: Any, automatic: int) -> int:
    """A given number, or the automatic one, at least 1."""
    return max(1, automatic) if isinstance(value, str) and value == "auto" else check_count(argument, value)


def _carried(values: Tensor, observed: Tensor | None) -> Tensor:
    """The rows with the last observed value in place of missing ones: starting values."""
    if observed is None or bool(observed.all()) or not bool(observed.any()):
        return values
    places = torch.where(observed, torch.arange(len(values)), -1).cummax(0).values
    first = int(observed.int().argmax())
    return values[torch.where(places < 0, first, places)]
