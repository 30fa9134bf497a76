"""Default settings of the fit of a table."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kdmkit.training.fit_arguments import Schedule


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
    components_per_root: float = 1.5
    most_components: int = 256
    fine_share: float = 0.4
    fine_components_per_root: float = 2.0
    shrinkage: float = 0.05
    fewest_shrinkage: float = 0.1
    most_shrinkage: float = 5.0
    fewest_presence_shrinkage: float = 0.01
    independent_shrinkage: float = 1e3
    doubtful_shrinkage: float = 0.1
    fading: float = 0.0
    masking_fading: float = 2.0
    averaging: float = 0.1
    batches: int = 8
    smallest_batch: int = 64
    largest_batch: int = 1024
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
        weak = {
            name: max(linked[name], min(most, self.doubtful_shrinkage * concentrations[name]))
            for name in doubtful
            if presences and name not in presences
        }
        return linked | dict.fromkeys(independent, most) | weak

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
    independent_shrinkage=20.0,
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
