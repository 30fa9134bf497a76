"""Density estimation."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from sklearn.base import DensityMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from kdmkit._core.checks import (
    bad_argument,
    check_choice,
    check_count,
    check_instance,
    check_number,
    in_memory,
)
from kdmkit.distributions import KDM, PreparedKDM
from kdmkit.estimators.common.arrays import (
    Array,
    CheckedRows,
    checked_rows,
    merge_rows,
    to_tensor,
    weighted_rows,
)
from kdmkit.estimators.common.arrow import answer_rows
from kdmkit.estimators.common.base import KDMEstimator, TensorAnswer
from kdmkit.estimators.common.chunks import KeptRows, add_chunk
from kdmkit.estimators.common.effort import EffortName, effort_of
from kdmkit.estimators.common.leave_one_out import choose_sigma, is_rule
from kdmkit.estimators.density.adaptive import automatic_density, layer_of_rows, leave_one_out_scores
from kdmkit.estimators.density.groups import (
    GroupedRows,
    automatic_density_of_groups,
    density_of_groups,
    group_rows,
    merged_density,
)
from kdmkit.estimators.density.maximum_likelihood import Covariance, fit_likelihood
from kdmkit.estimators.density.novelty import p_values
from kdmkit.estimators.density.stacking import NONPARAMETRIC, stacked_density
from kdmkit.kernels import check_continuous
from kdmkit.nn import DensityLayer
from kdmkit.nn.layer import LayerOptions


@dataclass(eq=False, repr=False)
class KDMDensity(DensityMixin, KDMEstimator):
    """Density estimation: p(x) = Σ_j p_j·N(x; c_j, Σ_j).

    Args:
        method: `"nonparametric"` makes every distinct sample a component (kernel density estimation), or up
            to four of different bandwidths if `sigma` is `"auto"`;
            `"likelihood"` fits `n_components` components, their weights and the bandwidth by
            maximum likelihood (the paper's Eq. 8);
            `"auto"` mixes `"nonparametric"` and mixtures of few Gaussians with covariances of their own
            (1 to 32, by EM, shrunken towards common ones) with the shares that maximise the likelihood of
            held-out rows (three folds; of a sample if rows are many): much better where columns are tied.
            Components may be narrow where values repeat, which a likelihood rewards: for rounded columns and
            to rank novelties take `"nonparametric"`, which is also what fewer than 30 distinct rows or a
            given `sigma` mean.
        effort: `"fast"` merges near samples into at most 8,192 groups, which become the components of the
            method `"nonparametric"`: scores of many samples then take a fraction of the time. `"default"` and
            `"best"` are the same.
        n_components: for `"likelihood"`; `"auto"` is one per 24 samples, at most 16.
        covariance: the shape of the likelihood's kernel: one bandwidth (`"spherical"`), one per dimension
            (`"diag"`), or a full metric (`"full"`), the same for all components.
        sigma: bandwidth. `"auto"` is one per component and dimension: in proportion to the standard deviation
            of every column, wider where samples are far from their neighbours (heavy tails), and chosen by
            leave-one-out likelihood (of a part of the samples if there are many). The components' standard
            deviations σ/√2 are at least half the step between the values of a rounded column. Samples that
            differ by less than a millionth of a standard deviation are left out together. Otherwise it is one
            length for all dimensions: a number (σ = √2 standard deviations), or by a rule, `"scott"`,
            `"silverman"` or leave-one-out likelihood `"loo"`. The likelihood method learns σ, and starts from
            the number if given.
        max_epochs, batch_size, learning_rate, validation_fraction, patience: of the likelihood's training.
            By default all samples are trained on for all epochs; noise on the samples is the regulariser.
        max_rows: rows, or groups of them, that `partial_fit` keeps; None keeps all rows.
        checkpoint_dir: the folder in which a likelihood fit saves every epoch, to resume from.
        device: `"auto"`, `"cpu"` or `"cuda"`.
        random_state: seed of the fit and of `sample`.
        verbose: whether to show progress.

    Attributes:
        kdm_: the fitted `kdmkit.KDM`.
        method_: by method, its share of the density.
        method_scores_: by method that `"auto"` compared, the mean log-density of held-out rows.
        history_: one entry per epoch (likelihood).
        n_samples_seen_: the number of rows of positive weight in the fit, or in all chunks.

    >>> from sklearn.datasets import make_moons
    >>> X, _ = make_moons(300, noise=0.1, random_state=0)
    >>> density = KDMDensity(method="nonparametric").fit(X)
    >>> density.score_samples([[0.0, 1.0]]).round(1)
    array([-0.6])
    >>> density.sample(3).shape
    (3, 2)
    """

    method: Literal["nonparametric", "likelihood", "auto"] = "nonparametric"
    _: KW_ONLY
    effort: EffortName = "default"
    covariance: Covariance = "full"
    sigma: Any = "auto"
    max_epochs: int = 200
    batch_size: int = 256
    learning_rate: float = 2e-2
    validation_fraction: float = 0.0
    max_rows: int | None = 500_000

    history_: list[dict[str, float]] = field(init=False)
    method_: dict[str, float] = field(init=False)
    method_scores_: dict[str, float] = field(init=False)
    _calibration: Array | None = field(init=False)
    _kept: KeptRows | GroupedRows | None = field(init=False, default=None)
    _prepared: tuple[DensityLayer, PreparedKDM] | None = field(init=False, default=None)

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> KDMDensity:
        """Fits the density to the rows of X; a row of weight 2 counts as two equal rows of weight 1."""
        self._check_choices()
        X = checked_rows(self, X)
        self._kept, self.n_samples_seen_ = None, self._learn(X, sample_weight)
        return self

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> KDMDensity:
        """Learns from one more chunk of rows.

        Up to `max_rows` rows of all chunks the density is that of `fit` on all of them. Beyond, `"auto"` is
        `"nonparametric"`, which merges near rows into groups, `max_rows` at most: a group is one component
        with the weight and the mean of its rows, and with their variance in addition to the kernel's.
        Bandwidths are chosen by the leave-one-out likelihood of a uniform sample of up to 4,096 rows.
        `"likelihood"` is fitted to the chunk and to a uniform sample of `max_rows` earlier rows, which stand
        for all. Every call takes about as long as a fit to `max_rows` rows. The kept rows stay in memory;
        `fit` and `kdmkit.save` leave them out, and draws from the density stand for them then.

        Args:
            sample_weight: a number ≥ 0 for every row, in the same unit in all chunks.
        """
        self._check_choices()
        X = checked_rows(self, X, reset=not hasattr(self, "module_"))
        rows: KeptRows | GroupedRows = add_chunk(
            self, X, None, sample_weight, kept=self._kept, most=self.max_rows
        )
        in_groups = self.method != "likelihood" or isinstance(rows, GroupedRows)
        kept = group_rows(rows, self.max_rows) if in_groups else rows.at_most(self.max_rows)
        if self.method != "likelihood" and isinstance(kept, GroupedRows):
            with self._seeded():
                layer, sample = self._of_groups(kept), kept.sample
                x, w = torch.from_numpy(sample.X).double(), torch.from_numpy(sample.weights)
                self._calibration = leave_one_out_scores(layer, x, w).numpy()
                self._keep(layer)
        else:
            sample = rows.sample if isinstance(rows, GroupedRows) else rows
            self._learn(sample.X, sample.sample_weight)
        self._kept, self.n_samples_seen_ = kept, kept.n_seen
        return self

    def _draw_rows(self, n: int) -> tuple[Array, None]:
        """Rows that stand for those of a fit."""
        return self.sample(n, random_state=self._seed), None

    def _check_choices(self) -> None:
        check_choice("method", self.method, ("nonparametric", "likelihood", "auto"))
        check_choice("covariance", self.covariance, ("spherical", "diag", "full"))
        effort_of(self)

    def _learn(self, X: Array, sample_weight: Any) -> int:
        """Fits the density to checked rows; returns the number of rows of positive weight."""
        weights, X = weighted_rows(sample_weight, X)
        x = to_tensor(X).double()
        with self._seeded():
            self.history_, self.method_scores_ = [], {}
            if self.method == "likelihood":
                layer, self.history_ = fit_likelihood(self, x, weights)
                self.method_ = {self.method: 1.0}
            elif self.method == "auto" and self._sigma_is_automatic:
                rows, w = merge_rows(x, weights)
                stacked = stacked_density(x[rows], w, verbose=bool(self.verbose))
                layer, self.method_scores_, self.method_ = stacked
            else:
                layer, self.method_ = self._nonparametric(x, weights), {NONPARAMETRIC: 1.0}
            rows, w = merge_rows(x, weights)
            self._calibration = leave_one_out_scores(layer, x[rows], w).numpy()
            self._keep(layer)
        return len(x)

    def _nonparametric(self, x: Tensor, weights: Tensor | None) -> DensityLayer:
        rows, w = merge_rows(x, weights)
        x = x[rows]
        if self._sigma_is_automatic:
            layer = automatic_density(x, w, verbose=bool(self.verbose))
        else:
            layer = layer_of_rows(x, w, torch.tensor(choose_sigma(self.sigma, x, w), dtype=torch.float64))
        most = effort_of(self).most_components
        return layer if most is None or len(x) <= most else merged_density(layer, x, w, most)

    def _of_groups(self, rows: GroupedRows) -> DensityLayer:
        self.history_, self.method_, self.method_scores_ = [], {NONPARAMETRIC: 1.0}, {}
        if self._sigma_is_automatic:
            return automatic_density_of_groups(rows, verbose=bool(self.verbose))
        x, weight = torch.from_numpy(rows.sample.X).double(), torch.from_numpy(rows.sample.weights)
        sigma = choose_sigma(self.sigma, x, weight)
        return density_of_groups(rows.groups, sigma * (rows.narrowing if is_rule(self.sigma) else 1))

    @property
    def _sigma_is_automatic(self) -> bool:
        return isinstance(self.sigma, str) and self.sigma == "auto"

    @property
    def kdm_(self) -> KDM:
        """The fitted density."""
        check_is_fitted(self)
        layer: DensityLayer = self.module_
        kernel = copy.deepcopy(layer.kernel("x"))
        log_weights = torch.log_softmax(layer.logits.detach(), -1)
        return KDM(layer.components["x"].detach(), None, kernel, log_weights=log_weights)

    def score_samples(self, X: Any, *, rtol: float | None = None) -> Array:
        """log p(x) of every row.

        Args:
            rtol: None is exact. Otherwise p(x) is too small by at most this share of it (apart from
                rounding), and components that contribute nearly nothing are left out: faster if they are many
                and their bandwidths small. The first such call sorts them (`kdmkit.PreparedKDM`).
        """
        x = self._rows(X)
        if rtol is None:
            return self._rowwise(self._answers()["score_samples"], x)
        if self._prepared is None or self._prepared[0] is not self.module_:
            self._prepared = self.module_, PreparedKDM(self.kdm_)
        prepared = self._prepared[1]
        return np.asarray(prepared.log_prob(x.double().to(self._device), rtol=rtol).cpu())

    def _score_batch(self, rows: CheckedRows, *, rtol: float | None = None) -> Any:
        return answer_rows(lambda X: {"log_prob": self.score_samples(X, rtol=rtol)}, rows)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_prepared": None}

    def _answers(self) -> dict[str, TensorAnswer]:
        return {"score_samples": lambda rows: self.module_().log_prob(rows.double())}

    def novelty(self, X: Any) -> Array:
        """How unusual every row is: the p-value of its log-density, near 0 for novelties.

        It is the share of training rows whose density, computed without their own components, is as low:
        `novelty(X) < .05` flags one usual row in twenty. At most 512 rows are compared; p-values below
        1/513 are extrapolated, and rank rows.

        Raises:
            ValueError: for a density of `merge`, and for one that was saved by kdmkit 0.2.

        >>> rows = np.random.default_rng(0).normal(size=(500, 2))
        >>> KDMDensity().fit(rows).novelty([[0.0, 0.0], [4.0, 4.0]]).round(2)
        array([0.9, 0. ])
        """
        scores = self.score_samples(X)
        calibration = getattr(self, "_calibration", None)
        if calibration is None:
            raise ValueError(bad_argument("density", "one that was fitted to rows", "one that was merged"))
        return p_values(calibration, scores)

    def score(self, X: Any, y: Any = None) -> float:
        """The mean of log p(x)."""
        return float(self.score_samples(X).mean())

    def sample(self, n_samples: int = 1, *, random_state: Any = None) -> Array:
        """Draws from the density, `(n_samples, n_features)`.

        Successive calls differ; a fitted estimator with an integer `random_state` gives the same sequence
        of calls again. `random_state` here fixes one call.
        """
        check_is_fitted(self)
        n_samples = check_count("n_samples", n_samples)
        with in_memory("n_samples", n_samples):
            return np.asarray(self.kdm_.sample((n_samples,), generator=self._generator(random_state)).cpu())


def merge(a: KDMDensity, b: KDMDensity, *, weights: Sequence[float] | None = None) -> KDMDensity:
    """The density (w_a·p_a(x) + w_b·p_b(x))/(w_a + w_b), exactly: it has the components of both.

    The result has the parameters of `a`. Use it to join densities that were fitted on several machines.

    Args:
        a, b: fitted densities of rows with the same columns. Their bandwidths may differ; of the method
            `"likelihood"` use `covariance="diag"` or `"spherical"`, since components share one full metric.
        weights: w_a and w_b; None takes the numbers of rows that they were fitted to (`n_samples_seen_`).

    Returns:
        A fitted density; `a` and `b` do not change.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(300, 2))
    >>> a, b, both = (KDMDensity(sigma=0.5).fit(rows) for rows in (X[:100], X[100:], X))
    >>> bool(np.allclose(merge(a, b).score_samples(X), both.score_samples(X)))
    True
    """
    for name, density in {"a": a, "b": b}.items():
        check_instance(name, density, KDMDensity, "a fitted KDMDensity")
        check_is_fitted(density)
    if a.n_features_in_ != b.n_features_in_:
        raise ValueError(bad_argument("b", f"a density of {a.n_features_in_} columns", b.n_features_in_))
    weights = (a.n_samples_seen_, b.n_samples_seen_) if weights is None else weights
    if len(weights) != 2:
        raise ValueError(bad_argument("weights", "two numbers > 0", weights))
    checked = [check_number("weights", weight, "two numbers > 0", positive=True) for weight in weights]
    share = torch.tensor(checked, dtype=torch.float64).log()
    parts = a.kdm_.to("cpu"), b.kdm_.to("cpu")
    sizes = parts[0].n_components, parts[1].n_components
    kernel = check_continuous("a", parts[0].kernel).joined(parts[1].kernel, sizes)
    components = torch.cat([part.components.double() for part in parts])
    logits = torch.cat([part.log_weights.double() + w for part, w in zip(parts, share, strict=True)])
    options: LayerOptions = {"dtype": torch.float64, "generator": torch.Generator()}
    layer = DensityLayer(components.shape[1], len(components), kernel=kernel, **options)
    merged = copy.copy(a)
    merged.history_, merged.method_, merged.method_scores_ = [], {}, {}
    merged._kept = merged._prepared = merged._calibration = None
    merged.n_samples_seen_ = a.n_samples_seen_ + b.n_samples_seen_
    merged._keep(layer.assign({"x": components}, logits))
    return merged
