"""Regression with whole predictive distributions."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np
import torch
from sklearn.base import MultiOutputMixin, RegressorMixin
from torch import Tensor

from kdmkit._core.checks import as_levels, bad_argument, check_choice, check_count, check_number, in_memory
from kdmkit.distributions import KDM
from kdmkit.estimators.common.arrays import (
    Array,
    CheckedRows,
    check_fraction,
    checked_rows,
    split_rows,
    to_tensor,
    weighted_rows,
)
from kdmkit.estimators.common.arrow import BatchAnswer, answer_rows
from kdmkit.estimators.common.base import TensorAnswer
from kdmkit.estimators.common.clusters import min_target_std, target_scaler
from kdmkit.estimators.common.cross_fit import check_trend, has_trend
from kdmkit.estimators.common.effort import EffortName
from kdmkit.estimators.common.joint_estimator import JointEstimator, start_phases
from kdmkit.estimators.regression.residuals import fit_about_trend
from kdmkit.kernels import RBF
from kdmkit.nn import JointLayer, Predictor, Scaler

# The first output bandwidths without a trend, in standard deviations of the targets.
_FIRST_OUTPUT_SIGMA = 0.5


@dataclass(eq=False, repr=False)
class KDMRegressor(MultiOutputMixin, RegressorMixin, JointEstimator):
    """Regression whose answer is a distribution: multimodal, heteroscedastic, with exact quantiles.

    p(y|x) = Σ_j w_j(x)·N(y; f(x) + c_j, s_j² + v(x)), with

    - the trend f: the mean of an ensemble of networks that hold out different rows, plus, if rows nearly
      repeat, a memory of the residuals of similar rows. Each network starts from a ridge regression and
      replaces it only if it is better on held-out rows;
    - a joint KDM of rows and residuals, with components (x_j, c_j) and weights w_j(x) ∝ p_j·k²(x, x_j). It
      learns from residuals of members that have not seen the row, and its bandwidths by leave-one-out. So no
      part of the model is judged by its own training data;
    - the excess variance v: the variance of the members' answers, as far as it exceeds what is typical of
      training rows. Intervals widen where members disagree, for example in gaps between the data.

    The s_j are at least half the smallest gap between distinct targets. Targets are standardised inside, and
    answers are in the units of y. Targets far from all others have little influence on the trend.

    Args:
        loss: `"nll"` maximises p(y|x); `"mse"` minimises the squared error of its mean.
        trend: `"mlp"`; None for the joint KDM of rows and targets themselves; `"auto"` is `"mlp"` without an
            encoder. Fewer than 8 rows, or constant targets, have no trend.
        effort: how much computation a fit about a trend may take; a given parameter goes before it.
            `"default"` has 8 members in at most 1,500 steps; `"fast"`, for loops and large tables, has 6
            narrower members in at most 600 steps; `"best"` has 16 members in up to 4,000 steps.
        n_members: of the ensemble; two of them hold out each row. `"auto"` is chosen by `effort`.
        memory: whether the trend may have a residual memory: the mean of the non-parametric KDM of rows and
            residuals. It is used only if it lowers the leave-one-out squared error significantly, as it does
            if rows nearly repeat; the model then contains up to 20,000 rows.
        n_components: `"auto"` is a sixteenth of the samples, from 4 to 256 (without a trend a fifth).
        encoder: None; `"mlp"`; or any `nn.Module` from rows to vectors, pre-trained with a dense head.
        generative_weight: α of the hybrid loss −log p(y|x) − α·log p(x).
        sigma: starting bandwidth of the inputs, in units of standardised features; `"auto"` is a typical
            distance between components.
        noise: standard deviation of noise on inputs in training without a trend, in units of standardised
            features.
        batch_size: rows per step; `"auto"` is a thirty-second of them (a sixty-fourth without a trend),
            between 64 and 512; for the trend of less than 256 rows a quarter, and 16 at least.
        max_epochs: `"auto"` is 300 and no more steps than `effort` allows; 100 without a trend.
        learning_rate: of the trend, or of all training without one.
        patience: epochs without improvement on held-out rows, after which training stops. `"auto"` is 40 with
            `effort="best"` and without a trend; otherwise 100 steps, or 40 with `effort="fast"`, but
            between 3 and 40 epochs.
        validation_fraction: share of the rows to validate on; used only without a trend.
        novelty_rows: rows that the model keeps for `novelty`, also in files; 0 keeps none.
        checkpoint_dir: the folder in which a fit saves every epoch, to resume from when killed.
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
    trend: Literal["auto", "mlp"] | None = "auto"
    effort: EffortName = "default"
    n_members: int | Literal["auto"] = "auto"
    memory: bool = True
    encoder: Any = None
    generative_weight: float = 0.0
    sigma: Any = "auto"
    noise: float = 0.03
    max_epochs: int | Literal["auto"] = "auto"
    patience: int | Literal["auto"] | None = "auto"
    novelty_rows: int = 4096

    # ---- fitting

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> KDMRegressor:
        """Fits the joint distribution of rows and targets; y has shape `(n,)` or `(n, n_outputs)`."""
        check_choice("loss", self.loss, ("nll", "mse"))
        check_trend(self)
        check_fraction(self.validation_fraction)
        for name in ("noise", "generative_weight"):
            check_number(name, getattr(self, name), "a number ≥ 0")
        X, y = checked_rows(self, X, y, multi_output=True, y_numeric=True, allow_nd=self._takes_anything)
        weights, X, y = weighted_rows(sample_weight, X, y)
        targets = to_tensor(_numbers(y)).reshape(len(y), -1)
        with self._seeded():
            module, histories = self._learned(to_tensor(X), targets, weights)
            self._keep(module)
            self._keep_usual(to_tensor(X), weights)
        self._keep_histories(histories)
        self._flat_target = np.ndim(y) == 1
        return self

    def _learned(
        self, x: Tensor, y: Tensor, weights: Tensor | None
    ) -> tuple[Predictor, dict[str, list[dict[str, float]]]]:
        about_trend = has_trend(self, y)
        if about_trend:
            device = self._fit_device()
            x, y = x.to(device), y.to(device)
            weights = None if weights is None else weights.to(device)
        scalers = {**self._input_scaler(x, weights), "y": target_scaler(y, weights)}
        bound = min_target_std(y) / scalers["y"].scale
        if about_trend:
            return fit_about_trend(self, scalers["x"](x).float(), y, weights, scalers, bound)
        return self._learned_directly(x, y, weights, scalers, float(bound.max()))

    def _learned_directly(
        self, x: Tensor, y: Tensor, weights: Tensor | None, scalers: dict[str, Scaler], bound: float
    ) -> tuple[Predictor, dict[str, list[dict[str, float]]]]:
        """Fits an encoder, if any, and the joint KDM of its latent vectors and targets.

        Args:
            bound: the least standard deviation of components, in units of standardised targets.
        """
        tensors = (self._training_inputs(x, scalers), scalers["y"](y).float())
        train, validation = split_rows(tensors, weights, self.validation_fraction, self._seed)
        inputs, targets = train.tensors
        m = self._count_components(len(inputs), max(2, min(256, len(inputs) // 5)))
        phases = start_phases(
            self,
            inputs,
            train,
            validation,
            n_components=m,
            n_outputs=y.shape[1],
            out_kernel=RBF(torch.ones(m, y.shape[1])),
            generative_weight=float(self.generative_weight),
            noise=float(self.noise),
            loss=self.loss,
        )
        phases.pretrain()
        self._place_components(phases.layer, phases.encode(inputs), targets, bound)
        phases.fit_jointly()
        encoder = None if phases.encoder is None else phases.encoder.cpu()
        return Predictor.from_standardized(phases.layer.cpu(), scalers, encoder=encoder), phases.histories

    def _place_components(self, layer: JointLayer, z: Tensor, y: Tensor, bound: float) -> None:
        """Puts components at the centres of clusters of inputs and targets together."""
        sigma, generator = self._first_sigma("nearest"), self._torch_generator()
        layer.initialize(z, y, method="kmeans", sigma=sigma, generator=generator)
        # Only p(y|x) is learned: distances in x alone say how far apart components are.
        layer.kernel("x").initialize_bandwidth(layer.components["x"], sigma)
        narrow = math.sqrt(2) * bound
        layer.kernel("y").learned_bandwidth.restart(max(_FIRST_OUTPUT_SIGMA, 1.1 * narrow), narrow)

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
        """The mean of p(y|x), with `return_std` also its standard deviation."""

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
        values = self.predict_quantiles(X, ends.flatten())
        return values.reshape(*values.shape[:-1], *(ends.shape if np.ndim(coverage) else (2,)))

    def _batch_answers(self) -> dict[str, BatchAnswer]:
        return {**super()._batch_answers(), "predict": self._predict_batch}

    def _predict_batch(
        self,
        rows: CheckedRows,
        *,
        target: str = "y",
        std: bool = False,
        interval: float | None = None,
        quantiles: Any = None,
    ) -> Any:
        """The mean of p(y|x), and other answers that are asked for, by the names of columns.

        Args:
            target: the name of the mean; means of several outputs are `<target> 0`, `<target> 1`, ….
            std: whether to add the standard deviation, `<target> std`.
            interval: the coverage of central intervals, `<target> low` and `<target> high`.
            quantiles: levels of quantiles, `<target> q0.1`, ….
        """

        def answer(X: CheckedRows) -> dict[str, Array]:
            mean, deviation = self.predict(X, return_std=True) if std else (self.predict(X), None)
            parts: dict[str, Array] = {"": mean}
            if deviation is not None:
                parts[" std"] = deviation
            if interval is not None:
                coverage = check_number("interval", interval, "0 < interval < 1", positive=True, below=1)
                ends = self.predict_interval(X, coverage=coverage)
                parts |= {" low": ends[..., 0], " high": ends[..., 1]}
            if quantiles is not None:
                levels = np.atleast_1d(as_levels("quantiles", quantiles).numpy())
                values = self.predict_quantiles(X, levels)
                parts |= {f" q{level:g}": values[..., i] for i, level in enumerate(levels)}
            return _columns(target, parts)

        return answer_rows(answer, rows)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = None) -> Array:
        """Draws of y for every row, `(n, n_samples)` or `(n, n_outputs, n_samples)`."""
        n_samples = check_count("n_samples", n_samples)
        rho, generator = self.predict_dist(X), self._generator(random_state)
        with in_memory("n_samples", n_samples):
            drawn = rho.sample((n_samples,), generator=generator).cpu().movedim(0, -1)
        return np.asarray(drawn.squeeze(1) if self._flat_target else drawn)


def _numbers(y: Array) -> Array:
    try:
        return np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(bad_argument("y", "numbers", f"{y.dtype} ({error})")) from error


def _columns(target: str, parts: dict[str, Array]) -> dict[str, Array]:
    """Columns of a batch, named by the target, its output if there are several, and the part."""
    if parts[""].ndim == 1:
        return {f"{target}{name}": values for name, values in parts.items()}
    outputs = range(parts[""].shape[1])
    return {f"{target} {i}{name}": values[:, i] for i in outputs for name, values in parts.items()}
