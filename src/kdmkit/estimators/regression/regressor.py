"""Regression with whole predictive distributions."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from sklearn.base import MultiOutputMixin, RegressorMixin
from torch import Tensor

from kdmkit._core.checks import as_levels, bad_argument, check_choice, check_count, check_number, in_memory
from kdmkit.distributions import KDM
from kdmkit.estimators.common.arrays import (
    Array,
    check_fraction,
    checked_rows,
    split_rows,
    to_tensor,
    weighted_rows,
)
from kdmkit.estimators.common.arrow import BatchAnswer
from kdmkit.estimators.common.base import TensorAnswer
from kdmkit.estimators.common.clusters import Clusters
from kdmkit.estimators.common.phases import EstimatorFit
from kdmkit.estimators.common.targets import min_target_std, target_scaler
from kdmkit.estimators.common.trend import TrendEstimator
from kdmkit.estimators.regression.batches import predict_batch
from kdmkit.estimators.regression.cross_fit import cross_fit, without_excess
from kdmkit.estimators.regression.memory import fit_memory
from kdmkit.estimators.regression.residuals import LeaveOneOut, layer_of
from kdmkit.kernels import RBF
from kdmkit.nn import JointLayer, Predictor, Scaler, Trend
from kdmkit.nn.layer import LayerOptions
from kdmkit.training import Rows

# Where the output bandwidths start without a trend, in standard deviations of the targets.
_FIRST_OUTPUT_SIGMA = 0.5
# Where the input bandwidths start with one, in units of √d, the typical distance between standardised rows.
_FIRST_SIGMA = 0.7


@dataclass(eq=False, repr=False)
class KDMRegressor(MultiOutputMixin, RegressorMixin, TrendEstimator):
    """Regression whose answer is a distribution: multimodal, heteroscedastic, with exact quantiles.

    p(y|x) = Σ_j w_j(x)·N(y; f(x) + c_j, s_j² + v(x)), with

    - the trend f: the mean of an ensemble of networks that hold out different rows, plus, where rows nearly
      repeat, a memory of the residuals of similar rows;
    - a joint KDM of rows and residuals, with components (x_j, c_j) and weights w_j(x) ∝ p_j·k²(x, x_j). It
      learns from residuals of members that have not seen the row, and its bandwidths by leave-one-out. So no
      part of the model is judged by its own training data;
    - the excess variance v: the variance of the members' answers, as far as it exceeds what is typical of
      training rows. Intervals widen where members disagree, for example in gaps between the data.

    The s_j are at least half the smallest gap between distinct targets. Targets are standardised inside, and
    every answer is in their own units. Targets far from all others have little influence on
    the trend.

    Args:
        loss: `"nll"` maximises p(y|x); `"mse"` minimises the squared error of its mean.
        trend: `"mlp"`; None for the joint KDM of rows and targets themselves; `"auto"` is `"mlp"` where there
            is no encoder. Fewer than 8 rows, or constant targets, have no trend.
        n_members: of the ensemble; two of them hold out each row.
        memory: whether the trend may have a residual memory: the mean of the non-parametric KDM of rows and
            residuals. It is used only if it lowers the leave-one-out squared error significantly, as it does
            where rows nearly repeat; the model then contains up to 20,000 rows.
        n_components: `"auto"` is a sixteenth of the samples, from 4 to 256 (without a trend a fifth).
        encoder: None; `"mlp"`; or any `nn.Module` from rows to vectors, pre-trained with a dense head.
        generative_weight: α of the hybrid loss −log p(y|x) − α·log p(x).
        sigma: starting bandwidth of the inputs, in units of standardised features; `"auto"` is a typical
            distance between components.
        noise: standard deviation of noise on inputs in training without a trend, in units of standardised
            features.
        batch_size: rows per step; `"auto"` is a thirty-second of them (a sixty-fourth without a trend),
            between 64 and 512; for the trend of less than 256 rows a quarter, and 16 at least.
        max_epochs: `"auto"` is 300 and no more than 4,000 steps; 100 without a trend.
        learning_rate, patience: of the trend, or of all training without one.
        validation_fraction: share of the rows to validate on; used only without a trend.
        checkpoint_dir: where a fit saves every epoch and resumes when killed.
        device: `"auto"`, `"cpu"` or `"cuda"`.
        random_state: seed; an integer makes fits repeatable.
        verbose: whether to show progress.

    Attributes:
        history_: one entry per epoch; `pretraining_history_` is that of the trend or of an encoder's first
            phase.
        module_: the fitted `kdmkit.nn.Predictor`.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-2, 2, (200, 1))
    >>> y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=200)
    >>> model = KDMRegressor(max_epochs=10, random_state=0).fit(X, y)
    >>> mean, std = model.predict(X[:4], return_std=True)
    >>> mean.shape, std.shape, model.predict_interval(X[:4], coverage=0.9).shape
    ((4,), (4,), (4, 2))
    """

    loss: Literal["nll", "mse"] = "nll"
    _: KW_ONLY
    encoder: Any = None
    generative_weight: float = 0.0
    sigma: Any = "auto"
    noise: float = 0.03

    # ---- fitting

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> KDMRegressor:
        """Fits the joint distribution of rows and targets; y has shape `(n,)` or `(n, n_outputs)`."""
        check_choice("loss", self.loss, ("nll", "mse"))
        self._check_trend()
        check_fraction(self.validation_fraction)
        for name in ("noise", "generative_weight"):
            check_number(name, getattr(self, name), "a number ≥ 0")
        X, y = checked_rows(self, X, y, multi_output=True, y_numeric=True, allow_nd=self._takes_anything)
        weights, X, y = weighted_rows(sample_weight, X, y)
        targets = to_tensor(_numbers(y)).reshape(len(y), -1)
        with self._seeded():
            self._keep(self._learned(to_tensor(X), targets, weights))
        self._flat_target = np.ndim(y) == 1
        return self

    def _learned(self, x: Tensor, y: Tensor, weights: Tensor | None) -> Predictor:
        has_trend = self._has_trend(y)
        if has_trend:
            device = self._fit_device()
            x, y = x.to(device), y.to(device)
            weights = None if weights is None else weights.to(device)
        scalers = {**self._input_scaler(x, weights), "y": target_scaler(y, weights)}
        bound = min_target_std(y) / scalers["y"].scale
        if has_trend:
            return self._learned_about_trend(scalers["x"](x).float(), y, weights, scalers, bound)
        return self._learned_directly(x, y, weights, scalers, bound)

    # ---- about a trend

    def _learned_about_trend(
        self,
        x: Tensor,
        y: Tensor,
        weights: Tensor | None,
        scalers: dict[str, Scaler],
        bound: Float[Tensor, " outputs"],
    ) -> Predictor:
        """Fits an ensemble, a memory of its residuals, then the joint KDM of rows and remaining residuals."""
        targets = scalers["y"](y).float()
        fitted = cross_fit(
            x,
            targets,
            weights,
            n_members=int(self.n_members),
            generator=self._torch_generator(),
            run=self._run_trend,
        )
        self.pretraining_history_ = fitted.history
        # Residuals are learned in units of their least standard deviation: then all outputs have one bound.
        unit = Scaler(torch.zeros_like(bound), bound * scalers["y"].scale)
        memory, residuals, excess = None, fitted.residuals, fitted.excess_variance
        if self.memory:
            memory, residuals, coverage = fit_memory(x, residuals, weights, self._torch_generator())
            excess = excess * (1 - coverage).square()
        residuals = without_excess(residuals, excess, fitted.share)
        layer = self._residual_layer(x, residuals / bound.float(), weights)
        trend = Trend(fitted.ensemble, memory, scalers["x"], scalers["y"], fitted.typical_variance)
        scalers = {"x": scalers["x"].cpu(), "y": unit.cpu()}
        return Predictor.from_standardized(layer, scalers, trend=trend.cpu())

    def _residual_layer(self, x: Tensor, r: Tensor, weights: Tensor | None) -> JointLayer:
        n, d = x.shape
        clusters = Clusters.of(x, r, weights, self._count_components(n, automatic_count(n)), self._seed)
        sigma = self._first_sigma(_FIRST_SIGMA * math.sqrt(d))
        spread = Scaler.from_data(r, weights).scale.float().cpu()
        layer = layer_of(clusters, spread, sigma=float(sigma), min_sigma=math.sqrt(2))
        objective = LeaveOneOut(
            layer, n_rows=n, generative_weight=float(self.generative_weight), loss=self.loss
        )
        without = (clusters.x_without, clusters.r_without, clusters.log_weight_without)
        rows = Rows((x, r, clusters.own, *without), None if weights is None else weights.float())
        self._run_bandwidths(objective, rows, "regressor")
        return objective.finish()

    # ---- directly

    def _learned_directly(
        self,
        x: Tensor,
        y: Tensor,
        weights: Tensor | None,
        scalers: dict[str, Scaler],
        bound: Float[Tensor, " outputs"],
    ) -> Predictor:
        tensors = (self._training_inputs(x, scalers), scalers["y"](y).float())
        rows, validation = split_rows(tensors, weights, self.validation_fraction, self._seed)
        phases = _DirectFit(
            self,
            rows.tensors[0],
            rows,
            validation,
            n_outputs=y.shape[1],
            generative_weight=float(self.generative_weight),
            noise=float(self.noise),
            loss=self.loss,
            min_std=float(bound.max()),
        )
        self._keep_histories(phases.run())
        return Predictor.from_standardized(phases.layer, scalers, encoder=phases.encoder)

    def _first_layer(self, z: Tensor, y: Tensor, bound: float) -> JointLayer:
        """Centres of clusters of inputs and targets together; every component has an output bandwidth."""
        m = self._count_components(len(z), max(2, min(256, len(z) // 5)))
        d, outputs, sigma = z.shape[1], y.shape[1], self._first_sigma("nearest")
        of_x, of_y = RBF(torch.ones(d)), RBF(torch.ones(m, outputs))
        options: LayerOptions = {"dtype": torch.float32, "generator": torch.Generator()}
        layer = JointLayer(d, outputs, m, in_kernel=of_x, out_kernel=of_y, **options)
        layer.initialize(z, y, method="kmeans", sigma=sigma, generator=self._torch_generator())
        # Only p(y|x) is learned: distances in x alone say how far apart components are.
        layer.kernel("x").initialize_bandwidth(layer.components["x"], sigma)
        narrow = math.sqrt(2) * bound
        layer.kernel("y").learned_bandwidth.restart(max(_FIRST_OUTPUT_SIGMA, 1.1 * narrow), narrow)
        return layer

    def _density_weight(self) -> float:
        return float(self.generative_weight)

    # ---- answers

    def predict_dist(self, X: Any) -> KDM:
        """p(y|x) of every row as one KDM with a batch, in the units of y.

        It lies on the device of the fit. Values that it is asked about are moved there; `.to("cpu")` brings
        it back.
        """
        x = self._inputs(X)
        return self.module_.distribution(x)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean of p(y|x), and its standard deviation where asked."""

        def answer(rows: Tensor) -> Tensor:
            return torch.stack(self.module_.moments(rows, spread=return_std), -1)

        answers = self._rowwise(answer, self._inputs(X))
        if self._flat_target:
            answers = answers.squeeze(1)
        return (answers[..., 0], answers[..., 1]) if return_std else answers[..., 0]

    def _answers(self) -> dict[str, TensorAnswer]:
        def mean_and_std(rows: Tensor) -> tuple[Tensor, Tensor]:
            rho = self.module_(rows)
            pair = rho.mean, rho.stddev
            return (pair[0].squeeze(1), pair[1].squeeze(1)) if self._flat_target else pair

        return {**super()._answers(), "predict": mean_and_std}

    def predict_quantiles(self, X: Any, quantiles: Any) -> Array:
        """Quantiles of p(y|x), `(n, n_quantiles)`, or of every output `(n, n_outputs, n_quantiles)`."""
        q = as_levels("quantiles", quantiles)

        def answer(rows: Tensor) -> Tensor:
            rho, levels = self.module_(rows), q.to(rows.device).unsqueeze(-1)
            outputs = [rho.coordinates(i).icdf(levels) for i in range(rho.event_shape[0])]
            return torch.cat(outputs, -1).permute(1, 2, 0)

        answers = self._rowwise(answer, self._inputs(X))
        return answers.squeeze(1) if self._flat_target else answers

    def predict_interval(self, X: Any, coverage: Any = 0.9) -> Array:
        """Central intervals that hold y with probability `coverage`.

        Args:
            X: rows.
            coverage: a number, or several.

        Returns:
            Lower and upper ends: `(n, 2)` for one number, `(n, k, 2)` for k of them; with several outputs
            `(n, n_outputs, 2)` or `(n, n_outputs, k, 2)`.
        """
        levels = as_levels("coverage", coverage)
        ends = torch.stack([(1 - levels) / 2, (1 + levels) / 2], -1)
        found = self.predict_quantiles(X, ends.flatten())
        return found.reshape(*found.shape[:-1], *(ends.shape if np.ndim(coverage) else (2,)))

    def _batch_answers(self) -> dict[str, BatchAnswer]:
        return {**super()._batch_answers(), "predict": partial(predict_batch, self)}

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = None) -> Array:
        """Draws of y for every row, `(n, n_samples)` or `(n, n_outputs, n_samples)`."""
        n_samples = check_count("n_samples", n_samples)
        rho, generator = self.predict_dist(X), self._generator(random_state)
        with in_memory("n_samples", n_samples):
            drawn = rho.sample((n_samples,), generator=generator).cpu().movedim(0, -1)
        return np.asarray(drawn.squeeze(1) if self._flat_target else drawn)


def automatic_count(n: int) -> int:
    """A sixteenth of the rows, between 4 and 256; an eighth of fewer than 32.

    >>> [automatic_count(n) for n in (8, 20, 60, 500, 10_000)]
    [1, 2, 4, 31, 256]
    """
    return max(1, min(4, n // 8), min(256, n // 16))


def _numbers(y: Array) -> Array:
    try:
        return np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(bad_argument("y", "numbers", f"{y.dtype} ({error})")) from error


class _DirectFit(EstimatorFit):
    """The phases of a fit without a trend.

    Args:
        min_std: the smallest standard deviation of a component's y, in standardised units.
    """

    estimator: KDMRegressor

    def __init__(self, *arguments: Any, min_std: float, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.min_std = min_std

    def place_components(self) -> None:
        z = self.encode(self.x)
        self.layer = self.estimator._first_layer(z, self.train.tensors[1], self.min_std)
