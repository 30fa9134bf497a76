"""The model behind a table: a layer over the variables of its schema, and its fit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.distributions import TreeKDM
from kdmkit.estimators.common.rows import split_index
from kdmkit.estimators.table.schema import Encoded, Schema
from kdmkit.nn import JointLayer, KDMLayer, TreeLayer
from kdmkit.training import TREE_RECIPE, FitOptions, Table, fit_joint, fit_targets, fit_tree, tree_options

# Where the number of components is automatic, n rows have at most n/16, √n and 256. With √n components an
# edge has about as many parameters as there are rows.
_ROWS_PER_COMPONENT, _COMPONENTS_PER_ROOT, MOST_COMPONENTS = 16, 1, 256
# Regularisation of a tree: pseudo-rows for every state of a parent, at least one. They do not fade: the last
# steps would otherwise learn the training rows by heart.
_FEWEST_PSEUDO_ROWS, _FADING = 1.0, 0.0
# Horizon of the averaged weights, as a share of all steps.
_AVERAGING = 0.2
# Epochs of a tree, and the fewest and the most steps: a schedule that ends before the tree overfits.
_EPOCHS, _FEWEST_STEPS, _MOST_STEPS = 15, 400, 1500
# How much worse than the best epoch on validation rows a later one may be, in nats per row. Later weights
# have the smaller learning rate: their draws are more like real rows.
_TOLERANCE = 0.05
# Rows that the tree of columns and the first components are taken from, at most: a uniform sample of more.
_START_ROWS = 100_000
# Learning rate of a flat joint.
_FLAT_RATE = 2e-2
# Where columns will be predicted: epochs, the fewest and the most steps, and the weight of the conditional
# likelihoods.
_TARGET_EPOCHS, _FEWEST_TARGET_STEPS, _MOST_TARGET_STEPS = 10, 300, 750
_TARGET_WEIGHT = 20.0
# The schedule runs to its end. Validation losses of single epochs differ by chance: later weights count
# if they lose no more than this against the best; they also have to be better than those at the start.
_TARGET_LOOP: dict[str, Any] = {"learning_rate": 3e-2, "patience": None, "tolerance": 1.0}


@dataclass(frozen=True)
class ModelSettings:
    """What a fit needs to know.

    Args:
        model: how columns are tied.
        n_components: of every column; None: by the number of rows.
        validation_fraction: the share of rows that decide when to stop.
        seed: of the split, the start and the training.
        options: settings of the loop that the user has chosen; the others suit the model.
        identity: what a checkpoint depends on.
        targets: variables that will be predicted, in groups: those of one column.
    """

    model: Literal["tree", "flat"]
    n_components: int | None
    validation_fraction: float
    seed: int
    options: Mapping[str, Any]
    identity: dict[str, Any]
    targets: Sequence[tuple[str, ...]] = ()


def fit_model(
    schema: Schema, rows: Encoded, weights: Float[Tensor, " n"] | None, settings: ModelSettings
) -> tuple[KDMLayer, list[dict[str, float]]]:
    """A fitted layer over the variables of a schema, and the history of its fit."""
    n = rows.n_rows
    keep, held = split_index(n, settings.validation_fraction, settings.seed)
    train = part_of(rows, weights, keep)
    validation = None if held is None else part_of(rows, weights, held)
    k = settings.n_components or automatic_components(n)
    layer = start_layer(schema, train, k, settings)
    return layer, train_layer(layer, train, validation, settings)


def start_layer(schema: Schema, train: Table, k: int, settings: ModelSettings) -> KDMLayer:
    """A layer of k components whose structure and components are taken from the rows."""
    if not train.columns:
        kinds = ", ".join(f"{column.name} ({column.kind})" for column in schema.columns.values())
        raise ValueError(bad_argument("X", "columns that a model can learn", kinds))
    generator = torch.Generator().manual_seed(settings.seed)
    train = _some_rows(train, _START_ROWS, generator)
    variables = schema.variables(k)
    if settings.model == "tree" or len(variables) == 1:
        tree = TreeLayer(variables, k, generator=generator)
        tree.initialize(
            observed=train.observed, sample_weight=train.weights, generator=generator, **train.columns
        )
        return tree
    names = [variable.name for variable in variables]
    joint = JointLayer.from_variables(variables, k, inputs=names[:1], generator=generator)
    start: dict[str, Any] = _complete(train, generator)
    joint.initialize(generator=generator, **start)
    return joint


def train_layer(
    layer: KDMLayer, train: Table, validation: Table | None, settings: ModelSettings, share: float = 1.0
) -> list[dict[str, float]]:
    """Trains a layer; returns the history.

    Args:
        share: of the training rows, those that are new. Fewer new rows need fewer steps, in proportion, and a
            learning rate that is smaller by √share.
    """
    n = len(next(iter(train.columns.values())))
    if not isinstance(layer, TreeLayer):
        options = _shortened(tree_options(n, **{"learning_rate": _FLAT_RATE, **settings.options}), share)
        assert isinstance(layer, JointLayer)
        return fit_joint(layer, train, validation, options=options, identity=settings.identity)
    options = _shortened(table_options(n, settings.options), share)
    history = fit_tree(
        layer,
        train,
        validation,
        options=options,
        shrinkage=max(_FEWEST_PSEUDO_ROWS, TREE_RECIPE.pseudo_counts(n, layer.n_components)),
        fading=_FADING,
        identity=settings.identity,
    )
    if settings.targets:
        history += _fit_targets(layer, train, validation, settings, share)
    return history


def _shortened(options: FitOptions, share: float) -> FitOptions:
    if share == 1:
        return options
    patience = None if options.patience is None else max(1, math.ceil(share * options.patience))
    return replace(
        options,
        max_epochs=max(1, math.ceil(share * options.max_epochs)),
        learning_rate=math.sqrt(share) * options.learning_rate,
        patience=patience,
    )


def automatic_components(n_rows: int) -> int:
    """The number of components of every column for so many rows."""
    root = int(_COMPONENTS_PER_ROOT * math.sqrt(n_rows))
    return max(4, min(MOST_COMPONENTS, n_rows // _ROWS_PER_COMPONENT, root))


def table_options(n_rows: int, chosen: Mapping[str, Any]) -> FitOptions:
    """Settings of the loop for a tree of so many training rows."""
    batch = chosen.get("batch_size", TREE_RECIPE.batch_size)
    steps = min(_MOST_STEPS, max(_FEWEST_STEPS, math.ceil(_EPOCHS * n_rows / batch)))
    defaults = {"tolerance": _TOLERANCE, "averaging": _AVERAGING}
    return tree_options(n_rows, **{"steps": steps, **defaults, **chosen})


def _fit_targets(
    layer: TreeLayer, train: Table, validation: Table | None, settings: ModelSettings, share: float
) -> list[dict[str, float]]:
    """Trains a fitted tree further for its targets; checkpoints have a folder of their own."""
    chosen = dict(settings.options)
    if chosen.get("checkpoint_dir") is not None:
        chosen["checkpoint_dir"] = Path(chosen["checkpoint_dir"]) / "targets"
    n = len(next(iter(train.columns.values())))
    batch = chosen.get("batch_size", TREE_RECIPE.batch_size)
    steps = min(_MOST_TARGET_STEPS, max(_FEWEST_TARGET_STEPS, math.ceil(_TARGET_EPOCHS * n / batch)))
    options = tree_options(n, steps=steps, **{**_TARGET_LOOP, **chosen})
    return fit_targets(
        layer,
        settings.targets,
        train,
        validation,
        options=_shortened(options, share),
        weight=_TARGET_WEIGHT,
        identity=settings.identity,
    )


def distribution_of(layer: KDMLayer) -> Any:
    """The joint distribution that a fitted layer holds; of a flat model a tree of one node."""
    if isinstance(layer, TreeLayer):
        return layer.tree(validate_args=False)
    assert isinstance(layer, JointLayer)
    return TreeKDM.from_joint(layer.joint(validate_args=False))


def part_of(rows: Encoded, weights: Tensor | None, index: Int[Tensor, " m"]) -> Table:
    """Some rows as a table to learn from."""
    part = rows.take(index)
    return Table(part.values, part.observed, None if weights is None else weights[index].float())


def _some_rows(table: Table, most: int, generator: torch.Generator) -> Table:
    """A uniform sample of so many rows; the table itself where it has no more."""
    n = len(next(iter(table.columns.values())))
    if n <= most:
        return table
    index = torch.randperm(n, generator=generator)[:most]
    columns = {name: value[index] for name, value in table.columns.items()}
    observed = {name: mask[index] for name, mask in (table.observed or {}).items()}
    return Table(columns, observed, None if table.weights is None else table.weights[index])


def _complete(table: Table, generator: torch.Generator) -> dict[str, Tensor]:
    """Columns with values of other rows in place of missing cells, for a start."""
    found = {}
    for name, value in table.columns.items():
        mask = (table.observed or {})[name]
        known = mask.nonzero().squeeze(-1)
        drawn = (
            known[torch.randint(max(1, len(known)), (len(value),), generator=generator)] if len(known) else 0
        )
        found[name] = torch.where(mask.reshape(-1, *([1] * (value.ndim - 1))), value, value[drawn])
    return found
