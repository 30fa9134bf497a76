"""The fit of a hidden Markov model with KDM emissions, with settings that suit most sequences."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument, check_instance, check_number
from kdmkit.nn import ChainLayer
from kdmkit.training.fit_arguments import FitOptions, Rows
from kdmkit.training.loop import fit
from kdmkit.training.packing import Packing, Table
from kdmkit.training.tree_objective import LevelPenalty

# Longer sequences are learned in pieces; steps of one batch; steps of a block of validation.
_PIECE, _BATCH_STEPS, _BLOCK = 1024, 1 << 14, 8
# Fewer rows have no validation.
_FEWEST_ROWS = 50


@dataclass(frozen=True)
class SequenceLayout:
    """Which sequence, and which step of it, every row is. Steps without a row are missing.

    Args:
        sequence: the number of the sequence of every row, from 0.
        step: the number of the step of every row, from 0; no two rows of a sequence have the same.

    >>> layout = SequenceLayout(torch.tensor([0, 0, 1]), torch.tensor([0, 2, 0]))
    >>> layout.lengths.tolist(), layout.pad(torch.tensor([1, 2, 3])).tolist()
    ([3, 1], [[1, 0, 2], [3, 0, 0]])
    """

    sequence: Int[Tensor, " n"]
    step: Int[Tensor, " n"]

    def __post_init__(self) -> None:
        if self.sequence.shape != self.step.shape or self.sequence.ndim != 1 or not len(self.sequence):
            got = f"{tuple(self.sequence.shape)} and {tuple(self.step.shape)}"
            raise ValueError(bad_argument("sequence, step", "one of each for every row", got))

    def __len__(self) -> int:
        return len(self.sequence)

    @cached_property
    def n_sequences(self) -> int:
        """The number of sequences."""
        return int(self.sequence.amax()) + 1

    @cached_property
    def lengths(self) -> Int[Tensor, " b"]:
        """The number of steps of every sequence, missing ones included."""
        zeros = torch.zeros(self.n_sequences, dtype=torch.int64)
        return zeros.scatter_reduce_(0, self.sequence, self.step + 1, "amax")

    @cached_property
    def counts(self) -> Int[Tensor, " b"]:
        """The number of rows of every sequence."""
        return torch.bincount(self.sequence, minlength=self.n_sequences)

    def pad(self, rows: Tensor) -> Tensor:
        """Values of rows `(n, …)` as `(sequences, steps, …)`; zeros, or False, where there is no row."""
        padded = rows.new_zeros(self.n_sequences, int(self.lengths.amax()), *rows.shape[1:])
        padded[self.sequence, self.step] = rows
        return padded

    def take(self, padded: Tensor) -> Tensor:
        """The rows `(n, …)` of values `(sequences, steps, …)`."""
        return padded[self.sequence.to(padded.device), self.step.to(padded.device)]

    def pieces(self, most: int) -> SequenceLayout:
        """Sequences in pieces of at most `most` steps; pieces without a row are left out."""
        n_pieces = int(self.step.amax()) // most + 1
        piece = self.sequence * n_pieces + self.step // most
        _, number = torch.unique(piece, return_inverse=True)
        return SequenceLayout(number, self.step % most)

    def blocks(self, share: float, length: int, generator: torch.Generator) -> Bool[Tensor, " n"]:
        """True for rows in random blocks of consecutive steps, about a share of all rows."""
        n_blocks = int(self.step.amax()) // length + 1
        _, block = torch.unique(self.sequence * n_blocks + self.step // length, return_inverse=True)
        chosen = torch.randperm(int(block.amax()) + 1, generator=generator)
        return torch.isin(block, chosen[: round(share * len(chosen))])


def fit_chain(
    layer: ChainLayer,
    table: Table,
    layout: SequenceLayout,
    *,
    options: FitOptions | None = None,
    validation_fraction: float = 0.1,
    shrinkage: float = 1.0,
    smoothing: float = 0.5,
    identity: dict[str, Any] | None = None,
) -> list[dict[str, float]]:
    """Trains a chain that `initialize` has started; returns the history, one entry per epoch.

    Blocks of consecutive steps are hidden, and their log p given the other steps decides how long to train.
    Then the layer learns from all rows, for as many epochs, from the same start.

    Args:
        layer: changed in place.
        table: a row for every step that is there.
        layout: the sequence and the step of every row.
        options: settings of the loop; None is `chain_options(layout)`. Batches are of pieces of sequences.
        validation_fraction: the share of rows in hidden blocks; 0, or fewer than 50 rows: none.
        shrinkage: pseudo-counts of every row of p(z_t | z_{t−1}), spread evenly.
        smoothing: pseudo-counts of every component of a discrete kernel, spread as the column.
        identity: what else a checkpoint depends on.

    Returns:
        The history: entries with a validation loss, then those of the fit to all rows.

    >>> import kdmkit as kdm
    >>> layer = kdm.nn.ChainLayer([kdm.nn.Variable("x", kdm.RBF(1.0), 1)], n_components=2)
    >>> x = torch.randn(60, 1)
    >>> layout = SequenceLayout(torch.zeros(60, dtype=torch.long), torch.arange(60))
    >>> options, layer = chain_options(layout, max_epochs=3), layer.initialize(x=x)
    >>> len(fit_chain(layer, Table({"x": x}), layout, options=options, validation_fraction=0))
    3
    """
    check_instance("layer", layer, ChainLayer, "a kdmkit.nn.ChainLayer")
    check_instance("layout", layout, SequenceLayout, "a kdmkit.training.SequenceLayout")
    check_number("validation_fraction", validation_fraction, "0 ≤ validation_fraction < 1", below=1)
    options = chain_options(layout) if options is None else options
    pieces = layout.pieces(_PIECE)
    packing = Packing(layer, table)
    rows = packing.rows(table)
    objective = ChainObjective(layer, packing, rows, shrinkage=shrinkage, smoothing=smoothing)
    settings: dict[str, Any] = {
        "options": options,
        "identity": {"shrinkage": shrinkage, "smoothing": smoothing, **(identity or {})},
        "description": "chain",
    }
    hidden = torch.zeros(len(layout), dtype=torch.bool)
    if validation_fraction and len(layout) >= _FEWEST_ROWS:
        generator = torch.Generator().manual_seed(options.seed)
        hidden = pieces.blocks(validation_fraction, _BLOCK, generator)
    everything = _rows(rows, pieces, torch.zeros_like(hidden))
    if not bool(hidden.any()):
        return fit(objective, everything, None, **settings)
    start = copy.deepcopy(objective.state_dict())
    history = fit(objective, _rows(rows, pieces, hidden), _rows(rows, pieces, hidden, ~hidden), **settings)
    losses = [entry["validation_loss"] for entry in history]
    n_epochs = losses.index(min(losses)) + 1
    objective.load_state_dict(start)
    folder = options.checkpoint_dir
    again = {**vars(options), "max_epochs": n_epochs, "patience": None}
    again["checkpoint_dir"] = None if folder is None else f"{folder}/all-rows"
    return [*history, *fit(objective, everything, None, **{**settings, "options": FitOptions(**again)})]


def chain_options(layout: SequenceLayout, **changes: Any) -> FitOptions:
    """Settings of the loop for `fit_chain`.

    Args:
        layout: of the rows.
        changes: other settings of `FitOptions`.

    Returns:
        Settings for `fit_chain(..., options=...)`.

    >>> layout = SequenceLayout(torch.zeros(60, dtype=torch.long), torch.arange(60))
    >>> chain_options(layout, max_epochs=40).max_epochs
    40
    """
    pieces = layout.pieces(_PIECE)
    batch = max(1, _BATCH_STEPS // int(pieces.lengths.amax()))
    n_batches = math.ceil(pieces.n_sequences / changes.get("batch_size", batch))
    epochs = min(300, max(20, 600 // n_batches))
    defaults: dict[str, Any] = {
        "max_epochs": epochs,
        "batch_size": batch,
        "learning_rate": 0.1,
        "patience": max(1, epochs // 3),
        "clip_norm": None,
    }
    return FitOptions(**{**defaults, **changes})


def _rows(
    rows: Rows,
    layout: SequenceLayout,
    hidden: Bool[Tensor, " n"],
    given_rows: Bool[Tensor, " n"] | None = None,
) -> Rows:
    """Sequences as samples: codes, numbers, the cells that count, and those that are given.

    Args:
        hidden: rows that do not count; with `given_rows`, they count given the others.
        given_rows: rows that are given.
    """
    codes, numbers, seen = rows.tensors
    counted = ~hidden if given_rows is None else torch.ones_like(hidden)
    given = torch.zeros_like(hidden) if given_rows is None else given_rows
    masks = (layout.pad(seen & mask.unsqueeze(-1)) for mask in (counted, given))
    weights = torch.zeros(layout.n_sequences).index_add_(0, layout.sequence, (counted & ~given).float())
    return Rows((layout.pad(codes), layout.pad(numbers), *masks), weights)


class ChainObjective(nn.Module):
    """−log p of a sequence per step, with pseudo-counts of transitions and of levels.

    Args:
        layer: the chain.
        packing: how the columns are encoded in the tensors of a batch.
        rows: all rows.
        shrinkage, smoothing: as in `fit_chain`.
    """

    def __init__(
        self, layer: ChainLayer, packing: Packing, rows: Rows, *, shrinkage: float, smoothing: float
    ) -> None:
        super().__init__()
        self.layer, self.cells, self.n_rows = layer, packing.cells, len(rows)
        self.levels = LevelPenalty(layer, packing.cells, rows)
        self.shrinkage = check_number("shrinkage", shrinkage, "a finite number ≥ 0")
        self.smoothing = check_number("smoothing", smoothing, "a finite number ≥ 0")

    def forward(
        self,
        codes: Int[Tensor, "b t c"],
        numbers: Float[Tensor, "b t f"],
        counted: Bool[Tensor, "b t v"],
        given: Bool[Tensor, "b t v"],
    ) -> Float[Tensor, " b"]:
        tables = self.cells.levels.tables(self.layer.components)
        log_prob = self._log_prob(codes, numbers, counted, tables)
        n_steps = counted.any(-1).sum(-1)
        if not self.training:
            has_given = given.any(-1)
            log_prob = log_prob - self._log_prob(codes, numbers, given, tables)
            n_steps = n_steps - has_given.sum(-1)
        losses = -log_prob / n_steps.clamp_min(1)
        return losses + self._penalty(tables) / self.n_rows if self.training else losses

    def _log_prob(self, codes: Tensor, numbers: Tensor, seen: Tensor, tables: Any) -> Float[Tensor, " b"]:
        batch = seen.shape[:2]
        cells = self.cells(self.layer, codes.flatten(0, 1), numbers.flatten(0, 1), seen.flatten(0, 1), tables)
        parts = cells.expanded()
        scores: Any = sum(parts.by_name.values())
        top = scores.amax(-1, keepdim=True).detach()
        tops = (top.squeeze(-1) + parts.total_top()).expand(batch.numel()).reshape(batch)
        scores = (scores - top).expand(batch.numel(), -1).reshape(*batch, -1)
        return self.layer.log_prob_of_scores(scores.transpose(0, 1), tops.mT)

    def _penalty(self, tables: Any) -> Float[Tensor, ""]:
        total = self.smoothing * self.levels(self.layer, tables)
        if self.layer.n_states > 1:
            total = total - self.shrinkage * self.layer.transition_probs().log().mean(-1).sum()
        return total
