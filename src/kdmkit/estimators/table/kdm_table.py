"""Tables: one model of all columns that answers any question about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from kdmkit._core.checks import bad_argument, check_choice, check_count, check_number
from kdmkit.distributions.events import Event
from kdmkit.distributions.operands import Operands
from kdmkit.estimators.common.arrays import Array
from kdmkit.estimators.common.arrow import BatchAnswer
from kdmkit.estimators.table.answering.answer import Answer, EventAnswer
from kdmkit.estimators.table.answering.explanations import Explanation, explain_rows
from kdmkit.estimators.table.answering.imputation import Imputer
from kdmkit.estimators.table.answering.insights import (
    Dependence,
    Information,
    measure_dependence,
    measure_information,
    measure_links,
)
from kdmkit.estimators.table.language import QueryError, parse_query
from kdmkit.estimators.table.outcomes import check_target, read_event, syntax_of
from kdmkit.estimators.table.synthetic import SyntheticRows
from kdmkit.estimators.table.table_stream import answers_of, batches_for, known_columns, sampled


@dataclass(eq=False, repr=False, kw_only=True)
class KDMTable(SyntheticRows):
    """A model of a whole table: numbers, categories, dates and missing cells, asked in any direction.

    Args:
        types: kinds of columns that you decide, by name, for example `{"zip": "category"}`; the others are
            recognised. `columns_` shows the kind of every column.
        schema: kinds, and texts for missing cells, as `kdmkit schema` writes them: a path, or its content.
        targets: columns that will be predicted; `fit` takes them as `y`, too. They have more neighbours in
            the tree, and the loss contains their conditional likelihood given random subsets of the others.
            All answers stay exact and agree with each other.
        texts: texts of single rows, such as names, are `"left out"`; or they are levels, `"pooled"` in draws
            if they are rare, or all `"drawn"`.
        min_level_rows: texts with fewer rows are rare; `"auto"`: 2 + n/500 of n rows, at most 5.
        identifiers: of draws: `"new"` keys in the form of those of the data, or `"left out"`.
        missing: what an empty cell is: `"outcome"`, missing as in the rows of the fit; `"unknown"`, a value
            that is not known. Cells of absent columns, and of columns that had all cells, are unknown.
        rules: rules between columns. True: those that the rows of the fit keep without exception; False:
            none; or a list of texts such as `["auto", "zip -> city"]`, where `"auto"` are those of the rows.
        broken_rules: what a row is that breaks a rule: `"impossible"`, log p = −∞; or `"rare"`.
        n_components: components of every column; `"auto"` by the number of rows.
        max_rows: the number of rows to learn from, a uniform sample of a larger table; None takes all.
        max_epochs, batch_size, learning_rate, validation_fraction, patience: of the training.
        checkpoint_dir: the folder in which every epoch is saved and from which a killed fit resumes.
        device: `"auto"`, `"cpu"` or `"cuda"`.
        random_state, verbose: seed of the fit and of draws; whether to show progress.

    Attributes:
        columns_: the kind of every column, and why.
        schema_: the codecs of the columns.
        targets_: the columns that will be predicted, by `targets` or by `y` of `fit`.
        history_, n_samples_seen_: one entry per epoch; the number of rows of all fits.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> size = rng.choice(["small", "large"], 300)
    >>> weight = np.where(size == "large", 5.0, 1.0) + rng.normal(0, 0.3, 300)
    >>> table = KDMTable(n_components=8, max_epochs=10, random_state=0).fit({"size": size, "weight": weight})
    >>> table.query("P(size | weight > 4)").mode
    'large'
    """

    # ---- one question

    @property
    def columns(self) -> Operands:
        """The columns for conditions: `c = table.columns; (c.price > 1000) & ~(c.cut == "Fair")`."""
        return Operands(self._engine().columns)

    @torch.no_grad()
    def query(self, target: str | Event, given: Any = None) -> Answer | EventAnswer:
        """The distribution of a column given evidence, or the probability of an event.

        Args:
            target: a column; or a whole query as text, `P(price | 0.5 <= carat <= 1, cut in {Ideal, Good})`,
                or with an event in place of the column, `P(price > 1000, carat < 1 | cut = Ideal)`.
                Conditions on the target itself are allowed: `P(price | price > 1000)`.
            given: evidence by column: a value; a pair `(low, high)`, which is a closed range with None for an
                open end; a list, one of its values; None, a missing cell. Or text: `carat > 1, cut = A`.

        Raises:
            QueryError: of a text that cannot be read, or whose question has no answer; a ValueError.
        """
        engine = self._engine()
        if given is not None or not isinstance(target, str) or target in engine.schema.columns:
            return self._answer(target, read_event(engine.schema, given))
        query = parse_query(target, syntax_of(engine.schema))
        try:
            return self._answer(query.event if query.target is None else query.target, query.given)
        except ValueError as error:  # evidence of probability 0, a date that cannot be, …
            raise QueryError(str(error)) from error

    def _answer(self, target: str | Event, condition: Event) -> Answer | EventAnswer:
        engine = self._engine()
        if isinstance(target, Event):
            probability, log_evidence = engine.event(target, condition)
            engine.support.warn(condition, log_evidence)
            return EventAnswer(probability, target, log_evidence, self._generator, engine, condition)
        column = check_target(engine.schema, target)
        posterior, log_evidence = engine.query(column, condition)
        engine.support.warn(condition, log_evidence)
        return Answer(posterior, log_evidence, self._generator, engine, condition)

    @torch.no_grad()
    def marginals(self, given: Any = None, columns: Sequence[str] | None = None) -> dict[str, Answer]:
        """The distributions of many columns given evidence, by column.

        One pass of messages through the tree serves all columns.

        Args:
            given: evidence, as in `query`.
            columns: the columns wanted; None is all of the model.

        With `table` as in the example of `KDMTable`:

        >>> marginals = table.marginals(given={"weight": (None, 2)})
        >>> marginals["size"].mode
        'small'
        """
        engine = self._engine()
        condition = read_event(engine.schema, given)
        names = dict.fromkeys(engine.columns if columns is None else columns)
        wanted = [engine.column("columns", name) for name in names]
        marginals = engine.marginals(wanted, condition)
        log_evidence = marginals.log_evidence
        engine.support.warn(condition, log_evidence)
        return {
            name: Answer(
                posterior, log_evidence, self._generator, engine, condition, marginals.p_missing.get(name)
            )
            for name, posterior in marginals.posteriors.items()
        }

    @torch.no_grad()
    def probability(self, event: Any, given: Any = None) -> float:
        """P(event | given): the probability that several conditions hold together.

        Args:
            event: conditions by column, as `given` in `query`, or as text: `price > 1000, cut = Ideal`.
            given: evidence, in the same form.

        With `table` as in the example of `KDMTable`:

        >>> table.probability({"weight": (4, None), "size": "large"}, given="weight > 3") > 0.5
        True
        """
        engine = self._engine()
        condition = read_event(engine.schema, given)
        probability, log_evidence = engine.event(read_event(engine.schema, event), condition)
        engine.support.warn(condition, log_evidence)
        return probability

    # ---- rows

    @torch.no_grad()
    def score_samples(self, X: Any) -> Array:
        """log p of the observed part of each row: densities of continuous columns, in their units."""
        engine = self._engine()
        return np.concatenate([engine.rows.log_prob(block).numpy() for block in self._blocks(X, scored=True)])

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """The mean of log p over the rows, and their target if y was fitted; `sample_weight` weighs them."""
        check_is_fitted(self)
        X = self._with_target(X, y, self.targets_)[1]
        return float(np.average(self.score_samples(X), weights=sample_weight))

    def predict(self, X: Any, target: str | None = None) -> Array:
        """The mean of a numeric column given the rest of each row; the most probable level of others.

        A column of dates is predicted by its median.

        Args:
            target: the column; None is the only one of `targets`, or `y` of the fit.
        """
        return self._rows_of(X, target, lambda rho: rho.expected())

    def predict_proba(self, X: Any, target: str | None = None) -> Array:
        """The probability of every level given the rest of each row: as in `levels(target)`."""
        return self._rows_of(X, target, lambda rho: rho.probs())

    def predict_interval(self, X: Any, target: str | None = None, coverage: float = 0.9) -> Array:
        """Intervals of an ordered column given the rest of each row, `(rows, 2)`: see `Answer.interval`.

        `interval_probability` gives their probabilities.
        """
        coverage = check_number("coverage", coverage, "0 < coverage < 1", positive=True, below=1)
        return self._rows_of(X, target, lambda rho: np.moveaxis(rho.interval(coverage), 0, -1))

    def interval_probability(self, X: Any, target: str | None = None, coverage: float = 0.9) -> Array:
        """The probability of each interval of `predict_interval` under the model, `(rows,)`.

        For a density it is the coverage. A value with a probability is inside or outside as a whole, so the
        probability of an interval may be larger. Compare its mean with the share of true values inside.

        With `table` as in the example of `KDMTable`:

        >>> table.interval_probability({"size": ["small", "large"]}, "weight", coverage=0.8).round(3)
        array([0.8, 0.8])
        """
        coverage = check_number("coverage", coverage, "0 < coverage < 1", positive=True, below=1)
        return self._rows_of(X, target, lambda rho: rho.interval_mass(coverage))

    @torch.no_grad()
    def _rows_of(self, X: Any, target: str | None, answer: Any) -> Array:
        engine = self._engine()
        column = self.checked_target(target)
        return np.concatenate([engine.rows.by_groups(column, block, answer) for block in self._blocks(X)])

    @torch.no_grad()
    def impute(
        self,
        X: Any,
        *,
        how: Literal["cells", "rows"] = "cells",
        n: int | None = None,
        random_state: Any = None,
    ) -> Any:
        """The frame with its missing cells filled in; other cells are as they were.

        Args:
            how: `"cells"`: the conditional mean of numbers, the most probable level of categories, cell by
                cell. `"rows"`: the most probable values of all missing cells of a row together.
            n: that many frames in a list, with independent draws of the missing cells of each row together.
            random_state: of draws.
        """
        check_choice("how", how, ("cells", "rows"))
        imputer = Imputer(self._engine(), X, self.missing)
        if n is None:
            return imputer.expected() if how == "cells" else imputer.most_probable()
        generator = self._generator(random_state)
        return [imputer.drawn(generator) for _ in range(check_count("n", n))]

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
        """Passes batches of rows through the table; only one batch is in memory.

        `kdmkit.BatchFunction` is the same for one batch, as a function that other processes can be sent.

        Args:
            what: `"score"`; `"predict"` with `target=`, and if wanted `interval=0.9`, `quantiles=`,
                `proba=True`; `"probability"` with `event=`, given cells of other columns; `"impute"`, if
                wanted with `draw=True`; or `"sample"` with `n=`, `given=`, `hold=` as in `sample`.
            data: a path to CSV or Parquet, or an iterable of Arrow batches or other frames; None for
                `"sample"`.
            batch_size: rows of a batch, for files and for new rows; iterables have their batches.
            columns: the columns that the table sees; None: all of them.
            keep: columns that are copied to the front of the answers.
            options: those of `what`, and `random_state=` of draws.

        Returns:
            Arrow tables, one for each batch, in order.

        With `table` as in the example of `KDMTable`:

        >>> [batch.num_rows for batch in table.stream("sample", n=25, batch_size=10)]
        [10, 10, 5]
        >>> frame = {"size": ["small", "large"], "weight": [1.0, 5.0]}
        >>> scores = table.stream("score", iter([frame, frame]))
        >>> [batch.column_names for batch in scores]
        [['log_prob'], ['log_prob']]
        """
        check_is_fitted(self)
        check_choice("what", what, [*self._batch_answers(), "sample"])
        batch_size = check_count("batch_size", batch_size)
        if options.get("random_state") is not None:
            # One stream of random numbers for all batches: with a seed each would draw the same numbers.
            options["random_state"] = check_random_state(options["random_state"])
        if what == "sample":
            if data is not None:
                raise ValueError(bad_argument("data", "None for new rows", type(data).__name__))
            return sampled(self, batch_size=batch_size, **options)
        batches = None if data is None else batches_for(self, data, batch_size)
        return super().stream(what, batches, columns=columns, keep=keep, **options)

    def _batch_answers(self) -> dict[str, BatchAnswer]:
        return answers_of(self)

    def _batch_rows(self, columns: Sequence[str] | None, keep: Sequence[str]) -> Any:
        return partial(known_columns, self, columns, keep)

    @torch.no_grad()
    def explain(self, X: Any) -> Explanation:
        """The cells that are surprising given the other cells of their row, and the expected values there.

        Args:
            X: a frame, or one row as a mapping from column to value.
        """
        return explain_rows(self._engine(), X, self.missing)

    @torch.no_grad()
    def dependence(self, n_samples: int = 2000, random_state: Any = 0) -> Dependence:
        """Mutual information between columns, with intervals and with the tree.

        It is estimated by the training rows: values of one column are predicted by those of another, each row
        by the other rows. So it is 0 for columns that may be independent, however many levels they have.

        Args:
            n_samples, random_state: of draws, for models of version 0.2, which hold no estimates.
        """
        n, generator = check_count("n_samples", n_samples, least=2), self._generator(random_state)
        return measure_dependence(self._engine(), self.pair_information_, n, generator)

    @torch.no_grad()
    def links(self, n_samples: int = 2000, random_state: Any = 0) -> list[tuple[str, str, float]]:
        """Neighbours in the tree with their mutual information in nats: `dependence` of these pairs alone."""
        n, generator = check_count("n_samples", n_samples, least=2), self._generator(random_state)
        return measure_links(self._engine(), self.pair_information_, n, generator)

    @torch.no_grad()
    def information(
        self, target: str, given: Any = None, *, n_samples: int = 2000, random_state: Any = 0
    ) -> Information:
        """The information of every other column about a column, given evidence; the largest first.

        This is the mutual information I(target; column | given) in nats: by how much the entropy of the
        target falls on average when the column is observed. Without evidence it is that of `dependence`. With
        evidence it is that of the model: exact between levels, else an estimate with an interval of draws.

        Args:
            given: evidence on other columns than the target, as in `query`.
            n_samples, random_state: draws for each column, if draws are needed.

        With `table` as in the example of `KDMTable`:

        >>> table.information("size")["weight"] > 0.1
        True
        """
        engine, generator = self._engine(), self._generator(random_state)
        n = check_count("n_samples", n_samples, least=2)
        column, event = check_target(engine.schema, target), read_event(engine.schema, given)
        return measure_information(engine, self.pair_information_, column, event, n, generator)

    def explore(
        self, *, port: int = 0, host: str = "127.0.0.1", open_browser: bool = True, block: bool = False
    ) -> Any:
        """Opens a page in the browser on which the table can be asked by moving sliders (extra `explore`).

        Args:
            port, host: of the local server; port 0 is any free one.
            open_browser: whether to open the page, whose address is `.url`.
            block: whether to wait until the server is stopped; else it runs until `.stop()`.
        """
        from kdmkit.explore import show

        return show({"table": self}, host=host, port=port, open_browser=open_browser, block=block)
