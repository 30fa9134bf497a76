"""The model behind a table: a tree over the variables of its schema; its fit from all rows or by chunks."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.estimators.common.arrays import split_index
from kdmkit.estimators.common.chunks import smallest
from kdmkit.estimators.table.derived import code_variables, without_codes
from kdmkit.estimators.table.schema import Schema
from kdmkit.nn import TreeLayer
from kdmkit.nn.pair_information import PairInformation, pair_information
from kdmkit.nn.tree_start import LearnedTree, learn_tree
from kdmkit.training import (
    FitOptions,
    Table,
    Targets,
    fit_tree,
    tree_options,
)
from kdmkit.training.seeds import derive_seed
from kdmkit.training.tree_fit import TABLE_RECIPE, TARGET_RECIPE, TableRecipe, edge_concentrations


@dataclass(frozen=True)
class TableSettings:
    """The settings of one fit.

    Args:
        n_components: of every column; None: by the number of rows.
        validation_fraction: the share of rows that decide when to stop.
        seed: of the split, the start and the training.
        options: settings of the loop that the user has chosen; the others suit the model.
        identity: what a checkpoint depends on.
        targets: variables that will be predicted, in groups: those of one column.
        presences: variables that say whether cells are there, and codes of derived columns.
    """

    n_components: int | None
    validation_fraction: float
    seed: int
    options: Mapping[str, Any]
    identity: dict[str, Any]
    targets: Sequence[tuple[str, ...]] = ()
    presences: frozenset[str] = frozenset()

    def count_components(self, n_rows: int, train: Table) -> int:
        """The number of components for a table of `n_rows`, of which `train` has the training rows."""
        return self.n_components or self.recipe.components(n_rows, fine_share(train, self.presences))

    @property
    def recipe(self) -> TableRecipe:
        """The defaults of a fit with these targets."""
        return TARGET_RECIPE if self.targets else TABLE_RECIPE


def fit_model(
    schema: Schema, rows: Table, settings: TableSettings
) -> tuple[TreeLayer, list[dict[str, float]], PairInformation]:
    """A fitted layer over the variables of a schema, the history of its fit, and what variables tell.

    The last is the information of all pairs of variables, by the training rows.
    """
    n = len(rows)
    train_index, validation_index = split_index(n, settings.validation_fraction, settings.seed)
    train = rows.take(train_index)
    validation = None if validation_index is None else rows.take(validation_index)
    layer, learned = start_layer(schema, train, settings.count_components(n, train), settings)
    train = without_codes(schema, train)
    validation = None if validation is None else without_codes(schema, validation)
    history = train_layer(layer, train, validation, settings, learned)
    return layer, history, learned.information


def start_layer(
    schema: Schema, train: Table, k: int, settings: TableSettings
) -> tuple[TreeLayer, LearnedTree]:
    """A layer of k components, and its tree: both are taken from the rows."""
    if not train.columns:
        kinds = ", ".join(f"{column.name} ({column.kind})" for column in schema.columns.values())
        raise ValueError(bad_argument("X", "columns that a model can learn", kinds))
    generator = torch.Generator().manual_seed(settings.seed)
    train = _some_rows(train, generator)
    variables = schema.variables(k)
    learned = learn_tree(
        variables,
        train.columns,
        train.observed,
        train.weights,
        targets={name for group in settings.targets for name in group},
        preference=settings.recipe.target_preference,
        others=code_variables(schema),
        attached=settings.presences,
    )
    layer = TreeLayer(variables, k, generator=generator)
    train = without_codes(schema, train)
    layer.initialize(
        observed=train.observed,
        sample_weight=train.weights,
        learned=learned,
        generator=generator,
        **train.columns,
    )
    return layer, learned


def train_layer(
    layer: TreeLayer,
    train: Table,
    validation: Table | None,
    settings: TableSettings,
    learned: LearnedTree,
    share: float = 1.0,
) -> list[dict[str, float]]:
    """Trains a layer; returns the history.

    Args:
        learned: the tree of the layer, and what its variables tell about each other.
        share: the share of new rows among the training rows, as in `table_options`.
    """
    some = _some_rows(train, torch.Generator().manual_seed(settings.seed))
    recipe = settings.recipe
    targets = Targets(settings.targets, recipe.target_weight) if settings.targets else None
    concentrations = edge_concentrations(layer, some)
    return fit_tree(
        layer,
        train,
        validation,
        options=table_options(len(train), settings.options, share, recipe),
        shrinkage=recipe.pseudo_rows(
            concentrations, learned.independent, settings.presences, learned.doubtful
        ),
        fading=recipe.fading,
        masking_fading=recipe.masking_fading,
        targets=targets,
        centre_step=recipe.centre_step,
        exact_counts=settings.presences & set(layer.variables) if share == 1 else False,
        identity=settings.identity,
    )


def table_options(
    n_rows: int, chosen: Mapping[str, Any], share: float = 1.0, recipe: TableRecipe = TABLE_RECIPE
) -> FitOptions:
    """Settings of the loop.

    Args:
        n_rows: the number of training rows.
        chosen: settings that the user has chosen.
        share: the share of new rows among the training rows. Fewer new rows need fewer steps, in proportion,
            and a learning rate that is smaller by √share.
        recipe: the defaults.
    """
    batch = chosen.get("batch_size", recipe.batch_size(n_rows))
    steps = recipe.steps(n_rows, batch)
    defaults = {
        "batch_size": batch,
        "learning_rate": recipe.rate,
        "schedule": recipe.schedule,
        "betas": recipe.betas,
        "tolerance": recipe.tolerance,
        "averaging": recipe.averaging,
    }
    options = tree_options(n_rows, **{"steps": steps, **defaults, **chosen})
    if share == 1:
        return options
    patience = None if options.patience is None else max(1, math.ceil(share * options.patience))
    return replace(
        options,
        max_epochs=max(1, math.ceil(share * options.max_epochs)),
        learning_rate=math.sqrt(share) * options.learning_rate,
        patience=patience,
    )


def fine_share(table: Table, skipped: Collection[str] = ()) -> float:
    """The share of fine columns: numbers with more than √(rows) different values.

    Only the first 100,000 rows are looked at.

    Args:
        skipped: variables that are no columns.
    """
    masks = table.observed
    most = TABLE_RECIPE.start_rows
    fine = [
        _is_fine(value[:most], masks.get(name))
        for name, value in table.columns.items()
        if name not in skipped
    ]
    return sum(fine) / max(1, len(fine))


def _is_fine(value: Tensor, observed: Tensor | None) -> bool:
    if not value.is_floating_point() or value[0].numel() > 1:
        return False
    seen = value if observed is None else value[observed[: len(value)]]
    return len(seen[seen.isfinite()].unique()) > math.sqrt(len(value))


def _some_rows(table: Table, generator: torch.Generator) -> Table:
    """A uniform sample of the rows that start a model; the table itself if it has no more."""
    n, most = len(table), TABLE_RECIPE.start_rows
    return table if n <= most else table.take(torch.randperm(n, generator=generator)[:most])


# ---- chunks: a sample of earlier rows is learned again

# Earlier rows that are learned again beside a chunk: as many as the chunk has, or this many if that is more.
_REPLAYED = 1 << 15
# A model starts anew from the kept rows when `fit` would give them this many times its components.
_GROWTH = 2
# Fewer validation rows than this are too few to choose by.
_FEWEST_VALIDATION = 8


@dataclass(frozen=True)
class ReplayRows:
    """A uniform sample of the rows of all chunks so far.

    Attributes:
        table: the rows, with weights.
        keys: random numbers; the rows with the smallest ones stay in the sample.
        is_validation: True for rows that no call trains on.
        n_chunks: the number of chunks.
    """

    table: Table
    keys: np.ndarray
    is_validation: np.ndarray
    n_chunks: int = 1

    def take(self, index: np.ndarray) -> ReplayRows:
        """The rows at an index."""
        table = self.table.take(torch.from_numpy(index))
        return replace(self, table=table, keys=self.keys[index], is_validation=self.is_validation[index])

    def join(self, other: ReplayRows) -> ReplayRows:
        """The rows of both."""
        a, b = self.table, other.table
        columns = {name: torch.cat([a.columns[name], b.columns[name]]) for name in a.columns}
        observed = {name: torch.cat([a.observed[name], b.observed[name]]) for name in a.observed}
        return ReplayRows(
            Table(columns, observed, torch.cat([a.weights, b.weights])),
            np.concatenate([self.keys, other.keys]),
            np.concatenate([self.is_validation, other.is_validation]),
            self.n_chunks + other.n_chunks,
        )

    @property
    def train(self) -> Table:
        """The training rows."""
        return self.table.take(torch.from_numpy(np.flatnonzero(~self.is_validation)))

    @property
    def validation(self) -> Table | None:
        """The validation rows; None if they are fewer than 8."""
        index = np.flatnonzero(self.is_validation)
        return None if len(index) < _FEWEST_VALIDATION else self.table.take(torch.from_numpy(index))

    def count_components(self, settings: TableSettings) -> int:
        """The number of components that `fit` would give the rows."""
        return settings.count_components(len(self.keys), self.train)


def learn_chunk(
    schema: Schema,
    layer: TreeLayer | None,
    kept: ReplayRows | None,
    chunk: Table,
    settings: TableSettings,
    *,
    share: float,
    most: int | None,
) -> tuple[TreeLayer, list[dict[str, float]], ReplayRows, PairInformation]:
    """Trains a copy of a layer with a chunk of rows and a sample of earlier ones.

    A layer with too few components for the rows so far is replaced by a new one, which learns from all rows
    that are kept.

    Args:
        layer: None starts one.
        kept: a sample of the rows of earlier chunks; None if there is none.
        chunk: the new rows, with weights.
        share: of the new rows among all so far.
        most: rows to keep; None keeps all.

    Returns:
        The layer, the history of its training, the sample with the new rows among it, and the information of
        all pairs of variables by the training rows of the sample.
    """
    settings = _settings_of_chunk(settings, 0 if kept is None else kept.n_chunks)
    rng = np.random.default_rng(settings.seed)
    new = _with_keys(chunk, settings.validation_fraction, rng)
    everything = replayed = new
    if kept is not None:
        everything = kept.join(new)
        again = rng.permutation(len(kept.keys))[: max(len(new.keys), _REPLAYED)]
        replayed = kept.take(np.sort(again)).join(new)
    if layer is None or (kept is not None and _is_outgrown(layer, everything, settings)):
        n_components = everything.count_components(settings)
        layer, learned = start_layer(schema, everything.train, n_components, settings)
        replayed, share = everything, 1.0
    else:
        layer = layer.with_levels(schema.variables(layer.n_components)).requires_grad_()
        rows, variables = everything.train, [*layer.variables.values(), *code_variables(schema)]
        information = pair_information(variables, rows.columns, rows.observed, rows.weights)
        parents = {name: layer.parents[name] for name in layer.variables}
        learned = LearnedTree(parents, information)
    train, validation = without_codes(schema, replayed.train), replayed.validation
    validation = None if validation is None else without_codes(schema, validation)
    history = train_layer(layer, train, validation, settings, learned, share)
    if most is not None:
        everything = everything.take(smallest(everything.keys, most))
    return layer, history, everything, learned.information


def _is_outgrown(layer: TreeLayer, rows: ReplayRows, settings: TableSettings) -> bool:
    """Whether `fit` would give the rows many more components than the layer has."""
    wanted = _GROWTH * layer.n_components
    return wanted <= TABLE_RECIPE.most_components and rows.count_components(settings) >= wanted


def _settings_of_chunk(settings: TableSettings, number: int) -> TableSettings:
    """The settings of one chunk, with a separate seed and folder for checkpoints."""
    options: dict[str, Any] = dict(settings.options)
    options["seed"] = derive_seed(settings.seed, number) if number else settings.seed
    if options.get("checkpoint_dir") is not None:
        options["checkpoint_dir"] = Path(options["checkpoint_dir"]) / f"chunk-{number}"
    return replace(settings, seed=options["seed"], options=options)


def _with_keys(chunk: Table, fraction: float, rng: np.random.Generator) -> ReplayRows:
    """The rows of a chunk; which of them are validation rows is decided once and for all."""
    n = len(chunk.weights)
    is_validation = rng.random(n) < (fraction if fraction * n >= _FEWEST_VALIDATION else 0)
    return ReplayRows(chunk, rng.random(n), is_validation)
