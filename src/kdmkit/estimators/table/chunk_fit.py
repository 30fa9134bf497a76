"""Learning from chunks of rows, one after the other; a sample of earlier rows is learned again."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kdmkit.estimators.common.chunks import smallest
from kdmkit.estimators.table.model import (
    TABLE_RECIPE,
    ModelSettings,
    fine_share,
    part_of,
    start_layer,
    train_layer,
)
from kdmkit.estimators.table.schema import Encoded, Schema
from kdmkit.nn import KDMLayer
from kdmkit.training import Table
from kdmkit.training.seeds import derive_seed

# Earlier rows that are learned again beside a chunk: as many as the chunk has, or this many if that is more.
_REPLAYED = 1 << 15
# A model starts anew from the kept rows when `fit` would give them this many times its components.
_GROWTH = 2
# Fewer validation rows than this are too few to choose by.
_FEWEST_VALIDATION = 8


@dataclass(frozen=True)
class KeptRows:
    """A uniform sample of the rows of all chunks so far.

    Attributes:
        rows: as events.
        weights: of the rows.
        keys: random numbers; those with the smallest ones stay in the sample.
        held: True for validation rows, which no call trains on.
        n_chunks: how many chunks there were.
    """

    rows: Encoded
    weights: Tensor
    keys: np.ndarray
    held: np.ndarray
    n_chunks: int = 1

    def take(self, index: np.ndarray) -> KeptRows:
        """Some of the rows."""
        chosen = torch.from_numpy(index)
        rows, weights = self.rows.take(chosen), self.weights[chosen]
        return replace(self, rows=rows, weights=weights, keys=self.keys[index], held=self.held[index])

    def join(self, other: KeptRows) -> KeptRows:
        """The rows of both."""
        a, b = self.rows, other.rows
        rows = Encoded(
            {name: torch.cat([a.values[name], b.values[name]]) for name in a.values},
            {name: torch.cat([a.observed[name], b.observed[name]]) for name in a.observed},
            torch.cat([a.log_offset, b.log_offset]),
        )
        weights = torch.cat([self.weights, other.weights])
        keys, held = (np.concatenate(pair) for pair in ((self.keys, other.keys), (self.held, other.held)))
        return KeptRows(rows, weights, keys, held, self.n_chunks + other.n_chunks)

    def tables(self) -> tuple[Table, Table | None]:
        """The rows to train on, and those to validate on (None where they are fewer than 8)."""
        train, held = (torch.from_numpy(np.flatnonzero(mask)) for mask in (~self.held, self.held))
        validation = None if len(held) < _FEWEST_VALIDATION else part_of(self.rows, self.weights, held)
        return part_of(self.rows, self.weights, train), validation


def learn_chunk(
    schema: Schema,
    layer: KDMLayer | None,
    kept: KeptRows | None,
    chunk: tuple[Encoded, Tensor],
    settings: ModelSettings,
    *,
    share: float,
    most: int | None,
) -> tuple[KDMLayer, list[dict[str, float]], KeptRows]:
    """Trains a copy of a layer with a chunk of rows and a sample of earlier ones.

    A layer with too few components for the rows so far is replaced by a new one, which learns from all rows
    that are kept.

    Args:
        layer: None starts one.
        kept: a sample of the rows of earlier chunks; None where there is none.
        chunk: the new rows, and their weights.
        share: of the new rows among all so far.
        most: rows to keep; None keeps all.

    Returns:
        The layer, the history of its training, and the sample with the new rows among it.
    """
    n_chunks = 0 if kept is None else kept.n_chunks
    settings = _settings_of_chunk(settings, n_chunks)
    rng = np.random.default_rng(settings.seed)
    new = _drawn(chunk, settings.validation_fraction, rng)
    everything = together = new
    if kept is not None:
        everything = kept.join(new)
        again = rng.permutation(len(kept.keys))[: max(len(new.keys), _REPLAYED)]
        together = kept.take(np.sort(again)).join(new)
    if layer is None or (kept is not None and _is_outgrown(layer, everything, settings)):
        layer, together, share = _started(schema, everything, settings), everything, 1.0
    else:
        layer = copy.deepcopy(layer).requires_grad_()
    history = train_layer(layer, *together.tables(), settings, share)
    if most is not None:
        everything = everything.take(smallest(everything.keys, most))
    return layer, history, everything


def _is_outgrown(layer: KDMLayer, kept: KeptRows, settings: ModelSettings) -> bool:
    """Whether `fit` would give the rows many more components than the layer has."""
    wanted = _GROWTH * layer.n_components
    return wanted <= TABLE_RECIPE.most_components and _count(kept, settings) >= wanted


def _started(schema: Schema, kept: KeptRows, settings: ModelSettings) -> KDMLayer:
    """A layer with as many components as `fit` would give the rows."""
    return start_layer(schema, kept.tables()[0], _count(kept, settings), settings)


def _count(kept: KeptRows, settings: ModelSettings) -> int:
    if settings.n_components is not None:
        return settings.n_components
    return TABLE_RECIPE.components(len(kept.keys), fine_share(kept.tables()[0]))


def _settings_of_chunk(settings: ModelSettings, number: int) -> ModelSettings:
    """Every chunk has a seed and a folder for checkpoints of its own."""
    options: dict[str, Any] = dict(settings.options)
    options["seed"] = derive_seed(settings.seed, number) if number else settings.seed
    if options.get("checkpoint_dir") is not None:
        options["checkpoint_dir"] = Path(options["checkpoint_dir"]) / f"chunk-{number}"
    return replace(settings, seed=options["seed"], options=options)


def _drawn(chunk: tuple[Encoded, Tensor], fraction: float, rng: np.random.Generator) -> KeptRows:
    """The rows of a chunk; which of them are validation rows is decided once and for all."""
    rows, weights = chunk
    n = len(weights)
    held = rng.random(n) < (fraction if fraction * n >= _FEWEST_VALIDATION else 0)
    return KeptRows(rows, weights, rng.random(n), held)
