"""The model behind a table: a layer over the variables of its schema, and its fit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.distributions import TreeKDM
from kdmkit.estimators.common.arrays import split_index
from kdmkit.estimators.table.schema import Encoded, Schema
from kdmkit.nn import JointLayer, KDMLayer, TreeLayer, Variable
from kdmkit.nn.tree_start import learn_tree
from kdmkit.training import (
    TREE_RECIPE,
    FitOptions,
    Table,
    Targets,
    fit_tree,
    tree_options,
)
from kdmkit.training.flat import fit_joint
from kdmkit.training.tree_fit import edge_concentrations


@dataclass(frozen=True)
class TableRecipe:
    """How a table is fitted where the user has chosen nothing.

    The numbers were chosen on development tables: `results/tables-notes.md`.

    Args:
        rows_per_component, components_per_root, most_components: n rows have at most n divided by the first,
            √n times the second, and the third number of components. With √n components an edge has about as
            many parameters as there are rows.
        fine_share, fine_components_per_root: the number of components for √n in tables of numbers. Those are
            tables with at least such a share of columns that have more than √n different numbers.
        shrinkage, fewest_shrinkage, most_shrinkage: pseudo-rows of every state of a parent, and their bounds.
            The first is multiplied by the concentration of the edge (`edge_concentrations`): a weak
            dependence is shrunk more.
        fading: the power of 1 − t/T that penalties follow. They stay: the last steps would otherwise learn
            the training rows by heart.
        masking_fading: the same power for hidden cells. They fade: the last steps see whole rows.
        averaging: horizon of the averaged weights, as a share of all steps.
        epochs, fewest_steps, most_steps: of a tree. The schedule ends before the tree overfits.
        tolerance: how much worse than the best epoch on validation rows a later one may be, in nats per row.
            Later weights have the smaller learning rate: their draws are more like real rows.
        start_rows: rows that the tree of columns and the first components are taken from, at most; of more
            rows a uniform sample.
        flat_rate: the learning rate of a flat joint.
        target_preference: how often information about a target counts when the tree of columns is learned.
        target_weight: of the conditional likelihoods of targets.
        target_rate: the learning rate of a tree with targets.
        fewest_target_shrinkage, most_target_shrinkage: bounds of pseudo-rows where there are targets. Weak
            edges would tell of a target what is true of the training rows alone.
    """

    rows_per_component: int = 16
    components_per_root: float = 1.0
    most_components: int = 256
    fine_share: float = 0.4
    fine_components_per_root: float = 2.0
    shrinkage: float = 0.05
    fewest_shrinkage: float = 0.1
    most_shrinkage: float = 5.0
    fading: float = 0.0
    masking_fading: float = 2.0
    averaging: float = 0.2
    epochs: int = 15
    fewest_steps: int = 400
    most_steps: int = 1500
    tolerance: float = 0.05
    start_rows: int = 100_000
    flat_rate: float = 2e-2
    target_preference: float = 3.0
    target_weight: float = 5.0
    target_rate: float = 5e-2
    fewest_target_shrinkage: float = 1.0
    most_target_shrinkage: float = 20.0

    def components(self, n_rows: int, fine_share: float) -> int:
        """The number of components of every column for so many rows and such a share of fine numbers."""
        is_fine = fine_share >= self.fine_share
        per_root = self.fine_components_per_root if is_fine else self.components_per_root
        root = int(per_root * math.sqrt(n_rows))
        return max(4, min(self.most_components, n_rows // self.rows_per_component, root))

    def pseudo_rows(
        self, concentrations: Mapping[str, float], *, has_targets: bool = False
    ) -> dict[str, float]:
        """Pseudo-rows of every state of a parent, by variable, of the edge to its parent."""
        least, most = self.fewest_shrinkage, self.most_shrinkage
        if has_targets:
            least, most = self.fewest_target_shrinkage, self.most_target_shrinkage
        return {name: max(least, min(most, self.shrinkage * found)) for name, found in concentrations.items()}

    def steps(self, n_rows: int, batch_size: int) -> int:
        """Steps of a tree."""
        return min(self.most_steps, max(self.fewest_steps, math.ceil(self.epochs * n_rows / batch_size)))


TABLE_RECIPE = TableRecipe()


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
    k = settings.n_components or TABLE_RECIPE.components(n, fine_share(train))
    layer = start_layer(schema, train, k, settings)
    return layer, train_layer(layer, train, validation, settings)


def start_layer(schema: Schema, train: Table, k: int, settings: ModelSettings) -> KDMLayer:
    """A layer of k components whose structure and components are taken from the rows."""
    if not train.columns:
        kinds = ", ".join(f"{column.name} ({column.kind})" for column in schema.columns.values())
        raise ValueError(bad_argument("X", "columns that a model can learn", kinds))
    generator = torch.Generator().manual_seed(settings.seed)
    train = _some_rows(train, TABLE_RECIPE.start_rows, generator)
    variables = schema.variables(k)
    if settings.model == "tree" or len(variables) == 1:
        parents = _tree_for_targets(variables, train, settings.targets) if settings.targets else None
        tree = TreeLayer(variables, k, parents=parents, generator=generator)
        tree.initialize(
            observed=train.observed, sample_weight=train.weights, generator=generator, **train.columns
        )
        return tree
    names = [variable.name for variable in variables]
    joint = JointLayer.from_variables(variables, k, inputs=names[:1], generator=generator)
    start: dict[str, Any] = _complete(train, generator)
    joint.initialize(generator=generator, **start)
    return joint


def _tree_for_targets(
    variables: Sequence[Variable], train: Table, targets: Sequence[tuple[str, ...]]
) -> dict[str, str | None]:
    """The parents of a tree whose targets have more neighbours than information alone would give them."""
    names = {name for group in targets for name in group}
    preference = TABLE_RECIPE.target_preference
    return learn_tree(
        variables, train.columns, train.observed or {}, train.weights, targets=names, preference=preference
    )


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
        options = _shortened(
            tree_options(n, **{"learning_rate": TABLE_RECIPE.flat_rate, **settings.options}), share
        )
        assert isinstance(layer, JointLayer)
        return fit_joint(layer, train, validation, options=options, identity=settings.identity)
    chosen = {"learning_rate": TABLE_RECIPE.target_rate} if settings.targets else {}
    options = _shortened(table_options(n, {**chosen, **settings.options}), share)
    some = _some_rows(train, TABLE_RECIPE.start_rows, torch.Generator().manual_seed(settings.seed))
    targets = Targets(settings.targets, TABLE_RECIPE.target_weight) if settings.targets else None
    return fit_tree(
        layer,
        train,
        validation,
        options=options,
        shrinkage=TABLE_RECIPE.pseudo_rows(edge_concentrations(layer, some), has_targets=bool(targets)),
        fading=TABLE_RECIPE.fading,
        masking_fading=TABLE_RECIPE.masking_fading,
        targets=targets,
        identity=settings.identity,
    )


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


def fine_share(table: Table) -> float:
    """The share of fine numbers among the variables: those with more different values than √(rows).

    Of more than 100,000 rows the first ones are looked at.
    """
    most = TABLE_RECIPE.start_rows
    masks = table.observed or {}
    found = [_is_fine(value[:most], masks.get(name)) for name, value in table.columns.items()]
    return sum(found) / max(1, len(found))


def _is_fine(value: Tensor, observed: Tensor | None) -> bool:
    if not value.is_floating_point() or value[0].numel() > 1:
        return False
    seen = value if observed is None else value[observed[: len(value)]]
    return len(seen[seen.isfinite()].unique()) > math.sqrt(len(value))


def table_options(n_rows: int, chosen: Mapping[str, Any]) -> FitOptions:
    """Settings of the loop for a tree of so many training rows."""
    batch = chosen.get("batch_size", TREE_RECIPE.batch_size)
    steps = TABLE_RECIPE.steps(n_rows, batch)
    defaults = {"tolerance": TABLE_RECIPE.tolerance, "averaging": TABLE_RECIPE.averaging}
    return tree_options(n_rows, **{"steps": steps, **defaults, **chosen})


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
