"""Learning from chunks of rows, one after the other; a sample of earlier rows is learned again."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kdmkit.estimators.common.chunks import smallest
from kdmkit.estimators.table.model import TABLE_RECIPE, TableSettings, start_layer, train_layer
from kdmkit.estimators.table.schema import Schema
from kdmkit.nn import TreeLayer
from kdmkit.training import Table
from kdmkit.training.seeds import derive_seed

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
) -> tuple[TreeLayer, list[dict[str, float]], ReplayRows]:
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
        The layer, the history of its training, and the sample with the new rows among it.
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
        layer = start_layer(schema, everything.train, everything.count_components(settings), settings)
        replayed, share = everything, 1.0
    else:
        layer = copy.deepcopy(layer).requires_grad_()
    history = train_layer(layer, replayed.train, replayed.validation, settings, share)
    if most is not None:
        everything = everything.take(smallest(everything.keys, most))
    return layer, history, everything


def _is_outgrown(layer: TreeLayer, rows: ReplayRows, settings: TableSettings) -> bool:
    """Whether `fit` would give the rows many more components than the layer has."""
    wanted = _GROWTH * layer.n_components
    return wanted <= TABLE_RECIPE.most_components and rows.count_components(settings) >= wanted


def _settings_of_chunk(settings: TableSettings, number: int) -> TableSettings:
    """Every chunk has a seed and a folder for checkpoints of its own."""
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
