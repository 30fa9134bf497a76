"""The fit of a tree of joint KDMs, with settings that suit most tables."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import as_tensor, bad_argument, check_instance
from kdmkit._core.tensors import effective_rows
from kdmkit.nn import TreeLayer
from kdmkit.nn.pair_information import bin_codes
from kdmkit.training.fit_arguments import FitOptions, Rows, Schedule
from kdmkit.training.loop import fit
from kdmkit.training.packing import Table, packed_rows
from kdmkit.training.tree_objective import TREE_RECIPE, Targets, TreeObjective

# Concentrations that are compared: eight for every factor of ten.
_GRID = torch.logspace(-2, 4, 49, dtype=torch.float64)

# Rows of one pass of messages.
_BLOCK = 4096
# Logits are finite: no probability is less than this one.
_LEAST = 1e-9
# Pseudo-rows of the presence of cells that may be independent: its chance is the same in all rows then.
_INDEPENDENT_PRESENCE = 1e3
# Steps of expectation maximisation end when they raise the mean log-likelihood of rows by less, in nats.
_LEAST_GAIN, _MOST_STEPS = 0.002, 30


def fit_tree(
    layer: TreeLayer,
    train: Table,
    validation: Table | None = None,
    *,
    options: FitOptions | None = None,
    shrinkage: float | Mapping[str, float] | None = None,
    smoothing: float = TREE_RECIPE.smoothing,
    masking: float = TREE_RECIPE.masking,
    fading: float = TREE_RECIPE.fading,
    masking_fading: float = TREE_RECIPE.fading,
    targets: Targets | None = None,
    centre_step: float | None = None,
    exact_counts: bool | Collection[str] = False,
    identity: dict[str, Any] | None = None,
) -> list[dict[str, float]]:
    """Trains a tree that `initialize` has started; returns the history, one entry per epoch.

    Rows with missing cells count with their observed part. The layer ends with the averaged weights that are
    best on the validation rows; without validation rows with the last ones.

    Args:
        layer: changed in place.
        train: the rows to learn from.
        validation: the rows that decide when to stop and which weights are best. They also decide how much
            fading regularisation remains: a fit without them then ends with almost none.
        options: settings of the loop; None is `tree_options(len(rows))`.
        shrinkage, smoothing, masking, fading, masking_fading: regularisation, as in `TreeObjective`.
        targets: variables that will be predicted: their conditional likelihoods take part in the loss.
        centre_step: steps of centres of numbers are multiplied by this times the bandwidth, and by ½ at most:
            centres that move far for their width lie less exactly. None leaves them as they are.
        exact_counts: whether a step of expectation maximisation follows: what no row has together becomes as
            improbable as `shrinkage` allows. It is repeated for variables named here. Not with targets.
        identity: what else a checkpoint depends on.

    Returns:
        The history, one entry per epoch.

    >>> import kdmkit as kdm
    >>> variables = [kdm.nn.Variable(name, kdm.RBF(1.0), 1) for name in "ab"]
    >>> columns = {"a": torch.randn(60, 1), "b": torch.randn(60, 1)}
    >>> layer = kdm.nn.TreeLayer(variables, n_components=4).initialize(**columns)
    >>> options = kdm.training.tree_options(60, steps=6)
    >>> len(kdm.training.fit_tree(layer, kdm.training.Table(columns), options=options))
    6
    """
    check_instance("layer", layer, TreeLayer, "a kdmkit.nn.TreeLayer")
    if exact_counts and layer.shares_parts:
        raise ValueError(bad_argument("exact_counts", "False for a layer with shared parts", True))
    packing, rows, validation_rows = packed_rows(layer, train, validation)
    options = tree_options(len(rows)) if options is None else options
    check_instance("options", options, FitOptions, "kdmkit.training.FitOptions")
    settings: dict[str, Any] = {
        "shrinkage": shrinkage,
        "smoothing": smoothing,
        "masking": masking,
        "fading": fading,
        "masking_fading": masking_fading,
        "centre_step": centre_step,
    }
    n_steps = options.max_epochs * math.ceil(len(rows) / options.batch_size)
    has_missing = validation_rows is not None and not bool(validation_rows.tensors[2].all())
    objective = TreeObjective(
        layer, packing, rows, n_steps=n_steps, has_missing=has_missing, targets=targets, **settings
    )
    described = {"parents": layer.parents, **settings, **(identity or {})}
    if targets:
        described["targets"] = targets.config()
    history = fit(objective, rows, validation_rows, options=options, identity=described, description="tree")
    if exact_counts and not targets:
        maximise_expectation(objective, rows, () if exact_counts is True else exact_counts)
    return history


def tree_options(n_rows: int, *, steps: int = TREE_RECIPE.steps, **changes: Any) -> FitOptions:
    """Settings of the loop for `fit_tree`, with a number of steps instead of epochs.

    Args:
        n_rows: of the training rows.
        steps: updates of the parameters.
        changes: other settings of `FitOptions`.

    Returns:
        Settings for `fit_tree(..., options=...)`.

    >>> tree_options(1000, steps=40, learning_rate=0.05).max_epochs
    10
    """
    batch = changes.get("batch_size", TREE_RECIPE.batch_size)
    epochs = max(1, math.ceil(steps / math.ceil(n_rows / batch)))
    defaults: dict[str, Any] = {
        "max_epochs": epochs,
        "batch_size": batch,
        "learning_rate": TREE_RECIPE.learning_rate,
        "averaging": TREE_RECIPE.averaging,
        "patience": max(1, math.ceil(TREE_RECIPE.patience * epochs)),
        "clip_norm": None,
    }
    return FitOptions(**{**defaults, **changes})


def edge_concentrations(layer: TreeLayer, table: Table) -> dict[str, float]:
    """The concentration A of the distribution of every variable but the root given its parent.

    Values are put into at most 16 bins. Rows of the table p(bin of v | bin of the parent) are modelled as
    draws from a Dirichlet distribution with mean p(bin of v) and concentration A. The result maximises the
    likelihood of the counts of pairs of bins, between .01 and 10,000. It is small if v depends strongly on
    its parent, and large if both are almost independent. Only rows with both values count.
    """
    masks = {name: torch.as_tensor(mask).cpu() for name, mask in table.observed.items()}
    bins = {
        name: bin_codes(variable, as_tensor(name, table.columns[name]).detach().cpu(), masks.get(name))
        for name, variable in layer.variables.items()
    }
    weights = None if table.weights is None else as_tensor("weights", table.weights).detach().cpu().double()
    return {
        name: _concentration(_counts(bins[above], bins[name], weights))
        for name, above in layer.parents.items()
        if above is not None
    }


def _counts(parent: Tensor, child: Tensor, weights: Float[Tensor, " n"] | None) -> Float[Tensor, "p c"]:
    """The number of rows with a pair of bins; with weights their sum is the effective number, (Σw)²/Σw²."""
    both = (parent >= 0) & (child >= 0)
    parent, child = parent[both], child[both]
    if not len(child):
        return torch.zeros(1, 1, dtype=torch.float64)
    each = torch.ones(len(child), dtype=torch.float64) if weights is None else weights[both]
    if weights is not None:
        each = effective_rows(each) * each / each.sum().clamp_min(torch.finfo(each.dtype).tiny)
    width = int(child.max()) + 1
    counts = torch.bincount(parent * width + child, each, minlength=(int(parent.max()) + 1) * width)
    return counts.reshape(-1, width)


def _concentration(counts: Float[Tensor, "p c"]) -> float:
    """The A of `_GRID` with the largest Π_i Γ(A)/Γ(A + n_i) · Π_j Γ(A·q_j + n_ij)/Γ(A·q_j)."""
    counts = counts[:, counts.sum(0) > 0]
    if not counts.numel():
        return float(_GRID[-1])  # no row has both
    scale = _GRID.reshape(-1, 1, 1)
    prior = scale * counts.sum(0) / counts.sum()
    cells = (torch.lgamma(prior + counts) - torch.lgamma(prior)).sum((-1, -2))
    rows = (torch.lgamma(scale[..., 0]) - torch.lgamma(scale[..., 0] + counts.sum(1))).sum(-1)
    # Among equals the largest, as for columns with one value.
    likelihood = cells + rows
    return float(_GRID[likelihood >= likelihood.max() - 1e-9][-1])


# ---- expectation maximisation


def maximise_expectation(objective: TreeObjective, rows: Rows, repeated: Collection[str] = ()) -> None:
    """Sets edges and components of levels to their expected shares among the rows; other parameters stay.

    Levels that no row has together keep a small probability after a gradient descent of few steps; here it
    becomes that of the pseudo-counts of the objective and of the smoothing of kernels. A descent of few steps
    may also miss a rule: for some variables the step is repeated while it raises the likelihood.

    Args:
        objective: of the fit, without targets; its layer is changed in place.
        rows: the training rows.
        repeated: variables whose edges and components are changed again. Repeated for all variables, the
            steps overfit the rows.
    """
    rows = rows.to(objective.layer.weight_logits.device)
    names: Collection[str] = objective.layer.variables
    before = -math.inf
    for _ in range(_MOST_STEPS):
        log_prob, counts = _expected_counts(objective, rows)
        if log_prob < before + _LEAST_GAIN:
            return
        _set_shares(objective, counts, names)
        before, names = log_prob, repeated
        if not names:
            return


def _expected_counts(objective: TreeObjective, rows: Rows) -> tuple[float, list[Tensor]]:
    """The mean log-likelihood of the rows, and expected counts of edges and of tables of levels."""
    layer, losses = objective.layer, objective.losses
    with torch.no_grad():
        edges, tables = layer.edge_probs(), losses.cells.levels.tables(layer.components)
    inputs = [value.detach().requires_grad_() for value in (edges.log(), *tables)]
    counts = [torch.zeros_like(value) for value in inputs]
    log_prob = 0.0
    for index in torch.arange(len(rows), device=layer.weight_logits.device).split(_BLOCK):
        (codes, numbers, seen), weights = rows.take(index)
        # Derivatives by log-probabilities are expected counts.
        log_probs = -losses.log_losses(codes, numbers, seen, inputs[0].exp(), inputs[1:])
        total = log_probs.sum() if weights is None else (weights.to(log_probs) * log_probs).sum()
        log_prob += float(total.detach())
        for count, gradient in zip(counts, torch.autograd.grad(total, inputs), strict=True):
            count += gradient
    return log_prob / (len(rows) if rows.weights is None else float(rows.weights.sum())), counts


def _set_shares(objective: TreeObjective, counts: list[Tensor], names: Collection[str]) -> None:
    """Sets the edges at some variables, and their components."""
    layer, losses = objective.layer, objective.losses
    changed = [child in names or above in names for child, above in list(layer.parents.items())[1:]]
    with torch.no_grad():
        edges, tables = layer.edge_probs(), losses.cells.levels.tables(layer.components)
        pseudo = losses.shrinkage.unsqueeze(-1) * layer.state_probs(edges)[1:]
        shares = _shares(counts[0] + pseudo.unsqueeze(1), edges).log()
        layer.edge_logits[changed] = shares[changed]
        for group, table, count in zip(losses.cells.levels.groups, tables, counts[1:], strict=True):
            for i, name in enumerate(group.names):
                if name in names:
                    _set_levels(layer.components[name], layer.kernel(name), count[i].mT, table[i].mT.exp())


def _shares(
    counts: Float[Tensor, "*batch n"], before: Float[Tensor, "*batch n"]
) -> Float[Tensor, "*batch n"]:
    """Shares of counts; the ones before where there are no counts."""
    total = counts.sum(-1, keepdim=True)
    return torch.where(total > _LEAST, counts / total.clamp_min(_LEAST), before).clamp_min(_LEAST)


def _set_levels(
    components: Tensor, kernel: Any, counts: Float[Tensor, "k m"], before: Float[Tensor, "k m"]
) -> None:
    n, smoothing = components.shape[-1], kernel.smoothing.to(components)
    probs = _shares(counts[:, :n], before[:, :n])
    components.copy_(((probs - smoothing / n) / (1 - smoothing)).clamp_min(_LEAST).log())


# ---- settings for tables


@dataclass(frozen=True)
class TableRecipe:
    """Default settings of a table's fit. They were chosen on development tables: `results/tables-notes.md`.

    Args:
        rows_per_component, components_per_root, most_components: the number of components for n rows is the
            least of n / rows_per_component, components_per_root · √n and most_components. With √n components
            an edge has about as many parameters as there are rows.
        fine_share, fine_components_per_root: takes the place of components_per_root if at least this share of
            the columns has more than √n different numbers.
        shrinkage, fewest_shrinkage, most_shrinkage: pseudo-rows of every state of a parent: shrinkage times
            the concentration of the edge (`edge_concentrations`), clipped. A weak dependence is shrunk more.
        fewest_presence_shrinkage: the least of them for a variable that says whether a cell is there: rules
            such as "no income of a spouse without a spouse" have no exceptions.
        independent_shrinkage: pseudo-rows where a variable, no presence, may be independent of its parent.
        doubtful_shrinkage: in tables with missing cells it takes the place of shrinkage if leave-one-out
            prediction says that the parent tells something, but so little that chance may be the reason. The
            presence of cells counts as independent then.
        fading: penalties are multiplied by (1 − t/T)^fading. At 0 they stay: otherwise the last steps
            overfit.
        masking_fading: the same power for hidden cells. They fade: the last steps see whole rows.
        averaging: horizon of the averaged weights, as a share of all steps.
        batches, smallest_batch, largest_batch: a batch is about a share 1/batches of the rows, between these
            sizes, a power of two. Few large batches take less time than many small ones.
        rate, schedule, betas: of the optimizer, as in `FitOptions`.
        centre_step: as in `fit_tree`.
        epochs, fewest_steps, most_rows: the length of the training; at most so many rows are seen, with
            repetitions. The schedule ends before the tree overfits.
        tolerance: how much worse than the best epoch on validation rows a later one may be, in nats per row.
            Later weights come from a smaller learning rate: their draws are more like real rows.
        start_rows: at most this many rows, a uniform sample, give the tree and the first components.
        target_preference: the factor of information about a target when the tree is learned.
        target_weight: the factor of the conditional likelihoods of targets.
    """

    rows_per_component: int = 14
    components_per_root: float = 1.25
    most_components: int = 256
    fine_share: float = 0.4
    fine_components_per_root: float = 2.0
    shrinkage: float = 0.05
    fewest_shrinkage: float = 0.1
    most_shrinkage: float = 5.0
    fewest_presence_shrinkage: float = 0.01
    independent_shrinkage: float = 20.0
    doubtful_shrinkage: float = 0.1
    fading: float = 0.0
    masking_fading: float = 2.0
    averaging: float = 0.1
    batches: int = 8
    smallest_batch: int = 64
    largest_batch: int = 512
    rate: float = 0.2
    schedule: Schedule = "cosine"
    betas: tuple[float, float] = (0.9, 0.95)
    centre_step: float | None = 2.0
    epochs: int = 14
    fewest_steps: int = 200
    most_rows: int = 384_000
    tolerance: float = 0.05
    start_rows: int = 100_000
    target_preference: float = 1.0
    target_weight: float = 0.0

    def components(self, n_rows: int, fine_share: float) -> int:
        """The number of components of every column, by rows and by the share of columns with fine numbers."""
        is_fine = fine_share >= self.fine_share
        per_root = self.fine_components_per_root if is_fine else self.components_per_root
        root = int(per_root * math.sqrt(n_rows))
        return max(4, min(self.most_components, n_rows // self.rows_per_component, root))

    def pseudo_rows(
        self,
        concentrations: Mapping[str, float],
        independent: Collection[str] = (),
        presences: Collection[str] = (),
        doubtful: Collection[str] = (),
    ) -> dict[str, float]:
        """Pseudo-rows of every state of the parent, by variable.

        Args:
            concentrations: of the edges.
            independent: variables that may be independent of their parents.
            presences: variables that say whether cells are there.
            doubtful: those of the independent ones that seem to depend on their parents a little.
        """
        linked = {
            name: max(
                self.fewest_presence_shrinkage if name in presences else self.fewest_shrinkage,
                min(self.most_shrinkage, self.shrinkage * a),
            )
            for name, a in concentrations.items()
        }
        most = self.independent_shrinkage
        some = [name for name in doubtful if presences and name not in presences]
        weak = {n: max(linked[n], min(most, self.doubtful_shrinkage * concentrations[n])) for n in some}
        of_presence = most if self.target_weight else _INDEPENDENT_PRESENCE
        apart = {name: of_presence if name in presences else most for name in independent}
        return linked | apart | weak

    def batch_size(self, n_rows: int) -> int:
        """The number of rows of a batch."""
        size = 1 << round(math.log2(max(1, n_rows / self.batches)))
        return max(self.smallest_batch, min(self.largest_batch, size))

    def steps(self, n_rows: int, batch_size: int) -> int:
        """The number of training steps."""
        rows = min(self.most_rows, self.epochs * n_rows)
        return max(self.fewest_steps, math.ceil(rows / batch_size))


TABLE_RECIPE = TableRecipe()
#: Of a fit with targets. Weak dependences are not cut off: many of them together can predict. More
#: pseudo-rows keep edges from overfitting the targets.
TARGET_RECIPE = TableRecipe(
    rows_per_component=16,
    components_per_root=1.0,
    fewest_shrinkage=1.0,
    most_shrinkage=20.0,
    doubtful_shrinkage=math.inf,
    averaging=0.2,
    smallest_batch=256,
    largest_batch=256,
    rate=0.1,
    schedule="one-cycle",
    betas=(0.9, 0.999),
    centre_step=None,
    epochs=20,
    fewest_steps=400,
    target_preference=5.0,
    target_weight=10.0,
)
