"""Default settings of the fit of a table."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass


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
        independent_shrinkage: pseudo-rows where a variable may be independent of its parent.
        fading: penalties are multiplied by (1 − t/T)^fading. At 0 they stay: otherwise the last steps
            overfit.
        masking_fading: the same power for hidden cells. They fade: the last steps see whole rows.
        averaging: horizon of the averaged weights, as a share of all steps.
        batches, smallest_batch, largest_batch: a batch is about a share 1/batches of the rows, between these
            sizes, a power of two. Few large batches take less time than many small ones.
        rate, centre_rate: the learning rate, and that of components of numbers relative to it: centres that
            move fast lie less exactly where values are close to each other.
        epochs, fewest_steps, most_rows: the length of the training; at most so many rows are seen, with
            repetitions. The schedule ends before the tree overfits.
        tolerance: how much worse than the best epoch on validation rows a later one may be, in nats per row.
            Later weights come from a smaller learning rate: their draws are more like real rows.
        start_rows: at most this many rows, a uniform sample, give the tree and the first components.
        target_preference: the factor of information about a target when the tree is learned.
        target_weight: the factor of the conditional likelihoods of targets.
        target_rate, target_batch, fewest_target_steps: the learning rate of a tree with targets, for all
            parameters, rows of a batch, and the least number of steps.
        fewest_target_shrinkage, most_target_shrinkage: bounds of pseudo-rows if there are targets: weak edges
            would otherwise overfit the target.
    """

    rows_per_component: int = 16
    components_per_root: float = 1.0
    most_components: int = 256
    fine_share: float = 0.4
    fine_components_per_root: float = 2.0
    shrinkage: float = 0.05
    fewest_shrinkage: float = 0.1
    most_shrinkage: float = 5.0
    fewest_presence_shrinkage: float = 0.01
    independent_shrinkage: float = 1e3
    fading: float = 0.0
    masking_fading: float = 2.0
    averaging: float = 0.2
    batches: int = 8
    smallest_batch: int = 64
    largest_batch: int = 1024
    rate: float = 0.2
    centre_rate: float = 0.25
    epochs: int = 20
    fewest_steps: int = 120
    most_rows: int = 384_000
    tolerance: float = 0.05
    start_rows: int = 100_000
    target_preference: float = 3.0
    target_weight: float = 5.0
    target_rate: float = 5e-2
    target_batch: int = 256
    fewest_target_steps: int = 400
    fewest_target_shrinkage: float = 1.0
    most_target_shrinkage: float = 20.0

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
        *,
        has_targets: bool = False,
    ) -> dict[str, float]:
        """Pseudo-rows of every state of the parent, by variable.

        Args:
            concentrations: of the edges.
            independent: variables that may be independent of their parents.
            presences: variables that say whether cells are there.
            has_targets: whether there are variables that will be predicted.
        """
        least, most = self.fewest_shrinkage, self.most_shrinkage
        if has_targets:
            least, most = self.fewest_target_shrinkage, self.most_target_shrinkage
        linked = {
            name: max(
                self.fewest_presence_shrinkage if name in presences else least, min(most, self.shrinkage * a)
            )
            for name, a in concentrations.items()
        }
        return linked | dict.fromkeys(independent, self.independent_shrinkage)

    def batch_size(self, n_rows: int, *, has_targets: bool = False) -> int:
        """The number of rows of a batch."""
        if has_targets:
            return self.target_batch
        size = 1 << round(math.log2(max(1, n_rows / self.batches)))
        return max(self.smallest_batch, min(self.largest_batch, size))

    def steps(self, n_rows: int, batch_size: int, *, has_targets: bool = False) -> int:
        """The number of training steps."""
        fewest = self.fewest_target_steps if has_targets else self.fewest_steps
        rows = min(self.most_rows, self.epochs * n_rows)
        return max(fewest, math.ceil(rows / batch_size))


TABLE_RECIPE = TableRecipe()
