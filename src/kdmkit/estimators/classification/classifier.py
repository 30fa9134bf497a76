"""Classification, and generation from the same model."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, NoReturn

import numpy as np
import torch
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from kdmkit._core.checks import (
    bad_argument,
    check_choice,
    check_count,
    check_number,
    check_weights,
    in_memory,
)
from kdmkit.distributions import KDM, JointKDM
from kdmkit.estimators.classification.chunks import ChunkedClassifier
from kdmkit.estimators.classification.memory import fit_label_memory
from kdmkit.estimators.classification.offsets import Offsets, layer_of_clusters
from kdmkit.estimators.classification.phases import ClassifierFit
from kdmkit.estimators.classification.rejection import draw_given_label
from kdmkit.estimators.classification.trend import fit_logits
from kdmkit.estimators.common.arrays import (
    Array,
    checked_rows,
    merge_rows,
    plain,
    split_rows,
    to_tensor,
    weighted_rows,
)
from kdmkit.estimators.common.bandwidth import choose_sigma
from kdmkit.estimators.common.clusters import Clusters
from kdmkit.estimators.common.encoders import is_built_in
from kdmkit.estimators.common.targets import min_target_std
from kdmkit.estimators.common.trend import TrendEstimator
from kdmkit.kernels import RBF
from kdmkit.nn import JointLayer, LabelTrend, Predictor, Scaler
from kdmkit.nn.layer import LayerOptions
from kdmkit.nn.scaler import LARGEST_INPUT, soft_clip
from kdmkit.training import Rows

Method = Literal["nonparametric", "likelihood", "discriminative"]

# The learning rate of a trend.
_TREND_RATE = 3e-3
# Of the weights of the built-in encoder.
_AVERAGING = 0.1
# Where the bandwidths start with a trend, in units of √d, the typical distance between standardised rows.
_FIRST_SIGMA = 0.7
# The least standard deviation of a component with a trend, in standard deviations of a column.
_LEAST_STD = 0.01


@dataclass(eq=False, repr=False)
class KDMClassifier(TrendEstimator, ChunkedClassifier):
    """Classification by a joint distribution, which also scores novelty and generates samples of a class.

    p(x, y) = Σ_j p_j·f_j(x)·π_j(y|x) with a Gaussian f_j about each component x_j and its label distribution
    π_j; p(y|x) = Σ_j w_j(x)·π_j(y|x) with w_j(x) ∝ p_j·k²(x, x_j).

    By default the label distributions follow a trend: π_j(y|x) = softmax_y(t(x) + c_j), with

    - the logits t: the mean of an ensemble of networks that hold out different rows, at a temperature that is
      fitted to held-out rows;
    - offsets c_j, which correct the logits about each component; they and the bandwidths learn from logits of
      members that have not seen the row;
    - where rows nearly repeat, one more component for each of them, with its own label (`memory`).

    Without a trend (`trend=None`, other methods, behind an encoder) the π_j do not depend on x.

    Args:
        method: the paper's three ways of learning. `"nonparametric"` makes every sample a component;
            `"likelihood"` maximises p(x, y); `"discriminative"` maximises p(y|x).
        trend: `"mlp"`; None for the joint KDM alone; `"auto"` is `"mlp"` for `"discriminative"` without an
            encoder. Fewer than 8 rows have no trend.
        n_members: of the ensemble; two of them hold out each row.
        memory: whether rows may be remembered. They are only if that lowers the leave-one-out log-loss
            significantly; the model then contains up to 20,000 rows.
        n_components: of the learned methods; `"auto"` is a fifth of the samples, at most 256, but two per
            class at least.
        encoder: None; `"mlp"`; or any `nn.Module` from rows (or whatever `X` holds) to vectors. It is first
            trained with a dense head, then components are put into its latent space. A user's module is then
            trained together with them. `"mlp"` also learns to reconstruct rows, so that `score_samples` tells
            novel rows, and stays as it is while the KDM learns.
        decoder: None; `"mlp"`; or an `nn.Module` back from latent vectors, trained with the encoder fixed.
            `sample` needs it behind an encoder.
        generative_weight: α of the hybrid loss −log p(y|x) − α·log p(x); `"auto"` is 1 with a trend, behind
            the encoder `"mlp"` and for `"likelihood"`, otherwise 0. Behind an encoder p(x) is that of its
            latent vectors.
        sigma: bandwidth, a length among standardised features. `"auto"` starts from typical distances
            (learned methods) or maximises the leave-one-out likelihood of the labels
            (nonparametric, where `"loo"` means the same and `"scott"` and `"silverman"` are rules of thumb);
            a number is used as it is, by learned methods as the start.
        noise: standard deviation of noise on inputs in training without a trend, in units of standardised
            features.
        head_epochs: behind an encoder, epochs in which the KDM is trained alone, with the encoder fixed,
            before and after they are trained together.
        averaging: horizon of an exponential moving average of the weights, as a share of all steps of
            a phase without a trend; None keeps the weights of a single step. `"auto"` is .1 behind the
            encoder `"mlp"`, otherwise None.
        batch_size: rows per step; `"auto"` is a thirty-second of them (a sixty-fourth without a trend),
            between 64 and 512; for the trend of less than 256 rows a quarter, and 16 at least.
        max_epochs: `"auto"` is 300 and no more than 4,000 steps; 100 without a trend.
        learning_rate: `"auto"` is .003 for the trend, .01 without one.
        patience: epochs without improvement on held-out rows, after which training stops. The best weights
            are kept.
        validation_fraction: share of the rows to validate on; used only without a trend.
        max_rows: rows of earlier chunks that `partial_fit` keeps, at least one of every class; None keeps
            all.
        checkpoint_dir: where a fit saves every epoch and resumes when killed.
        device: `"auto"`, `"cpu"` or `"cuda"`.
        random_state: seed of everything random; an integer makes fits repeatable.
        verbose: whether to show progress.

    Attributes:
        classes_: the labels.
        joint_: the fitted `kdmkit.JointKDM` over `x` and `y` (behind an encoder: `x` is its latent space).
            With a trend, each component has the label distribution that the model gives at the component:
            p(x) is exact, p(y|x) and p(x|y) are close to those of the model where components are narrow.
        history_: one entry per epoch. `pretraining_history_` (also of the trend), `head_history_` and
            `decoder_history_` are those of the other phases.
        module_: the fitted `kdmkit.nn.Predictor`.
        n_samples_seen_: the number of rows of positive weight in the fit, or in all chunks.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = KDMClassifier(max_epochs=10, random_state=0).fit(X, y)
    >>> model.predict_proba(X[:2]).shape, model.sample(5, y=1).shape
    ((2, 3), (5, 4))
    """

    method: Method = "discriminative"
    _: KW_ONLY
    encoder: Any = None
    decoder: Any = None
    generative_weight: float | Literal["auto"] = "auto"
    sigma: Any = "auto"
    noise: float = 0.3
    head_epochs: int = 0
    averaging: float | Literal["auto"] | None = "auto"

    # ---- fitting

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> KDMClassifier:
        """Fits the joint distribution of rows and labels; rows of weight zero count as absent."""
        self._check_parameters()
        X, y = checked_rows(self, X, y, allow_nd=self._takes_anything)
        check_classification_targets(y)
        self._kept, self.n_samples_seen_ = None, self._learn(X, y, sample_weight, None)
        return self

    def _learn(self, X: Array, y: Array, sample_weight: Any, classes: Array | None) -> int:
        weights, X, y = weighted_rows(sample_weight, X, y)
        classes = np.unique(y) if classes is None else classes
        if len(classes) < 2:
            raise ValueError(bad_argument("y", "at least two classes", f"one class, {classes.tolist()[0]!r}"))
        x, labels = to_tensor(X), torch.from_numpy(np.searchsorted(classes, y)).long()
        with self._seeded():
            if self.method == "nonparametric":
                module = self._nonparametric(x, labels, weights, len(classes))
            else:
                module = self._learned(x, labels, weights, len(classes))
            self._keep(module)
        self.classes_ = classes
        return len(x)

    def _check_parameters(self) -> None:
        check_choice("method", self.method, ("nonparametric", "likelihood", "discriminative"))
        check_number("noise", self.noise, "a number ≥ 0")
        check_count("head_epochs", self.head_epochs, least=0)
        self._alpha(has_trend=False)
        self._check_trend()
        if self.method != "nonparametric":
            self._first_sigma(1.0)
        if self.trend == "mlp" and self.method != "discriminative":
            wanted = f"'auto' or None for method={self.method!r}"
            raise ValueError(bad_argument("trend", wanted, "'mlp'"))
        if self.method == "nonparametric" and self.encoder is not None:
            raise ValueError(bad_argument("encoder", "None for method='nonparametric'", repr(self.encoder)))
        if self.encoder is None and self.decoder is not None:
            raise ValueError(bad_argument("decoder", "None without an encoder", repr(self.decoder)))
        if self.encoder is None and self.head_epochs:
            raise ValueError(bad_argument("head_epochs", "0 without an encoder", self.head_epochs))

    def _settings(self, seed: int, rows: int) -> dict[str, Any]:
        averaging = plain(self.averaging)
        if isinstance(averaging, str) and averaging == "auto":
            averaging = _AVERAGING if is_built_in(self.encoder) else None
        return {**super()._settings(seed, rows), "averaging": averaging}

    def _nonparametric(self, x: Tensor, labels: Tensor, weights: Tensor | None, n_classes: int) -> Predictor:
        scaler = Scaler.from_data(x, weights)
        rows, w = merge_rows(x, weights, labels)
        z, labels = scaler(x[rows]), labels[rows]
        rule = "loo" if isinstance(self.sigma, str) and self.sigma == "auto" else self.sigma
        # A first chunk may have one label, which says nothing about the bandwidth.
        sigma = choose_sigma(rule, z, w, labels if bool((labels != labels[0]).any()) else None)
        options: LayerOptions = {"dtype": torch.float64, "generator": torch.Generator()}
        layer = JointLayer(x.shape[1], n_classes, len(z), in_kernel=RBF(sigma), **options)
        layer.assign({"x": z, "y": nn.functional.one_hot(labels, n_classes)}, w.log())
        self._keep_histories({"joint": []})
        return Predictor.from_standardized(layer, {"x": scaler})

    def _learned(self, x: Tensor, labels: Tensor, weights: Tensor | None, n_classes: int) -> Predictor:
        if self.method == "discriminative" and self._has_trend(labels):
            return self._learned_about_trend(x, labels, weights, n_classes)
        scalers = self._input_scaler(x, weights)
        tensors = (self._training_inputs(x, scalers), labels)
        rows, validation = split_rows(tensors, weights, self.validation_fraction, self._seed, labels)
        phases = ClassifierFit(
            self,
            rows.tensors[0],
            rows,
            validation,
            n_outputs=n_classes,
            generative_weight=self._alpha(has_trend=False),
            noise=float(self.noise),
            head_epochs=int(self.head_epochs),
        )
        phases.run()
        self._keep_histories(phases.histories)
        return Predictor.from_standardized(
            phases.layer, scalers, encoder=phases.encoder, decoder=phases.decoder
        )

    # ---- about a trend

    def _learned_about_trend(
        self, x: Tensor, labels: Tensor, weights: Tensor | None, n_classes: int
    ) -> Predictor:
        """Fits an ensemble, a memory of rows, then the joint KDM of rows and offsets of the logits."""
        device = self._fit_device()
        x, labels = x.to(device), labels.to(device)
        weights = None if weights is None else weights.to(device)
        scaler = Scaler.from_data(x, weights)
        z = soft_clip(scaler(x)).float()
        fitted = fit_logits(
            z,
            labels,
            weights,
            n_classes,
            n_members=int(self.n_members),
            generator=self._torch_generator(),
            run=self._run_trend,
        )
        memory = None
        if self.memory:
            probs = fitted.logits.softmax(-1)
            memory = fit_label_memory(z, labels, probs, weights, self._torch_generator())
        # Rows are learned in units of their least standard deviation: then all columns have one bound.
        unit = Scaler(scaler.shift, min_target_std(x).maximum(_LEAST_STD * scaler.scale))
        rows = Scaler(scaler.shift, scaler.scale, LARGEST_INPUT)(x).float()
        layer, offsets = self._offset_layer(rows, unit.scale / scaler.scale, labels, fitted.logits, weights)
        self._keep_histories({"joint": self.history_, "pretraining": fitted.history})
        trend = LabelTrend(fitted.ensemble, memory, scaler, offsets, fitted.inverse_temperature)
        module = Predictor.from_standardized(layer, {"x": unit.cpu()}, trend=trend.cpu()).to(device)
        with torch.no_grad():
            components = module.layer.components
            components["y"].copy_(trend.probs_at_components(components["x"]).sqrt())
        return module

    def _run_trend(self, objective: nn.Module, rows: Rows, validation: Rows, **changes: Any) -> Any:
        if self.learning_rate == "auto":
            changes["learning_rate"] = _TREND_RATE
        return super()._run_trend(objective, rows, validation, averaging=None, **changes)

    def _offset_layer(
        self, z: Tensor, unit: Tensor, labels: Tensor, logits: Tensor, weights: Tensor | None
    ) -> tuple[JointLayer, Tensor]:
        """The joint KDM, in the given units, and the offsets of its components."""
        n, d = z.shape
        m = self._count_components(n, max(2 * logits.shape[1], min(256, n // 5)))
        one_hot = nn.functional.one_hot(labels, logits.shape[1]).float()
        clusters = Clusters.of(z, one_hot, weights, m, self._seed).scaled(1 / unit.float())
        sigma = float(self._first_sigma(_FIRST_SIGMA * math.sqrt(d))) / unit.float().cpu()
        layer = layer_of_clusters(clusters, sigma, min_sigma=math.sqrt(2))
        objective = Offsets(layer, n_rows=n, generative_weight=self._alpha(has_trend=True))
        rows = Rows(
            (z / unit.float(), logits, labels, *clusters.left_out()),
            None if weights is None else weights.float(),
        )
        self._run_bandwidths(objective, rows, "classifier", averaging=None)
        return layer, objective.offsets.detach()

    def _keep_histories(self, histories: dict[str, list[dict[str, float]]]) -> None:
        super()._keep_histories(histories)
        self.head_history_ = histories.get("head-before", []) + histories.get("head-after", [])
        self.decoder_history_ = histories.get("decoder", [])

    def _first_layer(self, z: Tensor, labels: Tensor, weights: Tensor | None, n_classes: int) -> JointLayer:
        """Centres of each class's clusters, with one bandwidth per dimension."""
        m = self._count_components(len(z), max(2 * n_classes, min(256, len(z) // 5)))
        d, sigma = z.shape[1], self._first_sigma("nearest")
        options: LayerOptions = {"dtype": torch.float32, "generator": torch.Generator()}
        layer = JointLayer(d, n_classes, m, in_kernel=RBF(torch.ones(d)), **options)
        layer.initialize(z, labels, method="kmeans", sigma=sigma, generator=self._torch_generator())
        if weights is not None:
            # A cluster counts its rows; their class says what each of them weighs.
            mean = torch.bincount(labels, weights) / torch.bincount(labels)
            with torch.no_grad():
                layer.logits.add_(mean.log()[layer.components["y"].argmax(1)])
        return layer

    def _alpha(self, *, has_trend: bool) -> float:
        if isinstance(self.generative_weight, str) and self.generative_weight == "auto":
            likelihood = has_trend or self.method == "likelihood" or is_built_in(self.encoder)
            return 1.0 if likelihood else 0.0
        return check_number("generative_weight", self.generative_weight, "'auto' or a number ≥ 0")

    def _density_weight(self) -> float:
        return self._alpha(has_trend=False)

    # ---- answers

    def predict_log_proba(self, X: Any) -> Array:
        """log p(y|x), exact where the probability underflows."""
        return self._rowwise(lambda rows: self.module_(rows).logits, self._inputs(X))

    @property
    def predict_proba_uncertain(self) -> NoReturn:
        """Removed: the answer to weighted points is the weighted mean of the answers to the points."""
        advice = (
            "np.average(model.predict_proba(points), axis=0, weights=weights) is the answer for one input"
        )
        raise AttributeError(f"predict_proba_uncertain was removed: {advice}")

    def sample(self, n_samples: int = 1, *, y: Any, spread: float = 1.0, random_state: Any = None) -> Array:
        """Draws of inputs given a label or a distribution over labels: from p(x|y) of the model.

        Args:
            n_samples: how many.
            y: one of `classes_`, or probabilities in the order of `classes_`.
            spread: the kernel's width in these draws relative to the fitted one. 1 draws from the model;
                less stays closer to the components, for clearer and less varied examples.
            random_state: fixes this call; by default successive calls differ.
        """
        check_is_fitted(self)
        n_samples = check_count("n_samples", n_samples)
        spread = check_number("spread", spread, "> 0", positive=True)
        model = self.module_
        if model.encoder is not None and model.decoder is None:
            raise ValueError(
                bad_argument("decoder", "one that was fitted, to sample behind an encoder", None)
            )
        probs, generator = self._label_probs(y).to(self._device), self._generator(random_state)
        with torch.no_grad(), in_memory("n_samples", n_samples):
            if model.trend is not None:
                return np.asarray(draw_given_label(model, probs, n_samples, spread, generator).cpu())
            rho = model.layer.reverse(KDM.from_probs(probs), target="x")
            z = rho.with_kernel(rho.kernel.scaled(spread)).sample((n_samples,), generator=generator)
            return np.asarray(model.decode(z).cpu())

    def _label_probs(self, y: Any) -> Tensor:
        """A label, or a distribution over labels, as probabilities in float64."""
        n = len(self.classes_)
        if np.ndim(y):
            array = np.asarray(y)
            # How exactly probabilities sum to 1 depends on their dtype.
            probs = to_tensor(array if array.dtype == np.float32 else array.astype(np.float64))
            if probs.shape != (n,):
                raise ValueError(bad_argument("y", f"shape {(n,)}", tuple(probs.shape)))
            check_weights("y", probs)
            return probs.double() / probs.double().sum()
        matches = [position for position, label in enumerate(self.classes_.tolist()) if label == y]
        if not matches:
            raise ValueError(bad_argument("y", f"one of {self.classes_.tolist()}", repr(y)))
        return nn.functional.one_hot(torch.tensor(matches[0]), n).double()

    @property
    def joint_(self) -> JointKDM:
        """The joint distribution, in the units of X (of the latent space behind an encoder)."""
        check_is_fitted(self)
        return self.module_.joint()
