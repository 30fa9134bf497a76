"""The numbers behind the defaults of a table's fit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


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
