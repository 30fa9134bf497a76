"""Classification, and generation from the same model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, NoReturn

import numpy as np
import torch
from sklearn.utils.multiclass import _check_partial_fit_first_call, check_classification_targets
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
from kdmkit.estimators.classification.joint_labels import component_per_row, fit_joint_labels
from kdmkit.estimators.classification.logits import draw_given_label, fit_about_trend
from kdmkit.estimators.common.arrays import (
    Array,
    check_fraction,
    checked_rows,
    class_weighted,
    plain,
    to_tensor,
    weighted_rows,
    weights_of_classes,
)
from kdmkit.estimators.common.chunks import KeptRows, add_chunk, chunk_generator, thinned
from kdmkit.estimators.common.cross_fit import check_trend, has_trend
from kdmkit.estimators.common.effort import EffortName
from kdmkit.estimators.common.joint_estimator import JointClassifier, is_built_in

Method = Literal["nonparametric", "likelihood", "discriminative"]

# The default of `averaging` behind the built-in encoder.
_AVERAGING = 0.1


@dataclass(eq=False, repr=False)
class KDMClassifier(JointClassifier):
    """Classification by a joint distribution, which also scores novelty and generates samples of a class.

    p(x, y) = Σ_j p_j·f_j(x)·π_j(y|x) with a Gaussian f_j about each component x_j and its label distribution
    π_j; p(y|x) = Σ_j w_j(x)·π_j(y|x) with w_j(x) ∝ p_j·k²(x, x_j).

    By default the label distributions follow a trend: π_j(y|x) = softmax_y(t(x) + c_j), with

    - the logits t: the mean of an ensemble of networks that hold out different rows, at a temperature that is
      fitted to held-out rows. Each network starts from a logistic regression and replaces it only if it is
      better on held-out rows;
    - offsets c_j, which correct the logits about each component. They are 0 unless `effort="best"` or
      `generative_weight` is given: they then learn, with the bandwidths, from logits of members that have not
      seen the row;
    - if rows nearly repeat, one more component for each of them, with the label of the row (`memory`).

    Without a trend (`trend=None`, other methods, behind an encoder) the π_j do not depend on x.

    Args:
        method: the paper's three ways of learning. `"nonparametric"` makes every sample a component;
            `"likelihood"` maximises p(x, y); `"discriminative"` maximises p(y|x).
        trend: `"mlp"`; None for the joint KDM alone; `"auto"` is `"mlp"` for `"discriminative"` without an
            encoder. Fewer than 8 rows have no trend.
        effort: how much computation a fit about a trend may take; a given parameter goes before it.
            `"default"` has 8 members and at most 1,500 steps; `"fast"`, for loops and large tables, has 6
            narrow members and at most 600 steps; `"best"` has 16 members, up to 4,000 steps, and offsets.
        n_members: of the ensemble; two of them hold out each row. `"auto"` is chosen by `effort`.
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
        class_weight: weights of classes, which multiply those of rows: a mapping from label to weight (1 for
            labels that it leaves out), or `"balanced"`, which gives every class the same total weight. The
            model, p(y) and p(x) included, is then that of the weighted rows: its probabilities are calibrated
            for data with such shares of the classes. `novelty` compares with the rows as they are.
        sigma: bandwidth, a length among standardised features. `"auto"` starts from typical distances
            (learned methods) or maximises the leave-one-out likelihood of the labels
            (nonparametric; `"loo"` means the same there, and `"scott"` and `"silverman"` are rules of thumb);
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
        max_epochs: `"auto"` is 300 and no more steps than `effort` allows; 100 without a trend.
        learning_rate: `"auto"` is .003 for the trend, .006 with `effort="fast"`, and .01 without a trend.
        patience: epochs without improvement on held-out rows, after which training stops. The best weights
            are kept. `"auto"` is 40 with `effort="best"` and without a trend; otherwise 100 steps, or 40 with
            `effort="fast"`, but between 3 and 40 epochs.
        validation_fraction: share of the rows to validate on; used only without a trend.
        max_rows: rows of earlier chunks that `partial_fit` keeps, at least one of every class; None keeps
            all.
        novelty_rows: rows that the model keeps for `novelty`, also in files; 0 keeps none.
        checkpoint_dir: the folder in which a fit saves every epoch, to resume from when killed.
        device: `"auto"`, `"cpu"` or `"cuda"`.
        random_state: seed of everything random; an integer makes fits repeatable.
        verbose: whether to show progress.

    Attributes:
        classes_: the labels.
        joint_: the fitted `kdmkit.JointKDM` over `x` and `y` (behind an encoder: `x` is its latent space).
            With a trend, each component has the label distribution that the model gives at the component:
            p(x) is exact, p(y|x) and p(x|y) are close to those of the model if components are narrow.
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
    trend: Literal["auto", "mlp"] | None = "auto"
    effort: EffortName = "default"
    n_members: int | Literal["auto"] = "auto"
    memory: bool = True
    encoder: Any = None
    decoder: Any = None
    generative_weight: float | Literal["auto"] = "auto"
    class_weight: Mapping[Any, float] | Literal["balanced"] | None = None
    sigma: Any = "auto"
    noise: float = 0.3
    head_epochs: int = 0
    averaging: float | Literal["auto"] | None = "auto"
    max_epochs: int | Literal["auto"] = "auto"
    patience: int | Literal["auto"] | None = "auto"
    max_rows: int | None = 500_000
    novelty_rows: int = 4096

    _kept: KeptRows | None = field(init=False, default=None)

    # ---- fitting

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> KDMClassifier:
        """Fits the joint distribution of rows and labels; rows of weight zero count as absent."""
        self._check_parameters()
        X, y = checked_rows(self, X, y, allow_nd=self._takes_anything)
        check_classification_targets(y)
        self._kept, self.n_samples_seen_ = None, self._learn(X, y, sample_weight, None)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> KDMClassifier:
        """Learns from one more chunk of rows.

        Up to `max_rows` rows of all chunks the model is that of `fit` on all of them. Beyond, near rows of a
        class are replaced by one of them, which takes their weight, first where the label is certain. The
        model is that of `fit` on the `max_rows` rows that are kept and on the chunk, and every call takes
        about as long as that fit. The rows stay in memory; `fit` and `kdmkit.save` leave them out, and draws
        from the model stand for them then.

        Args:
            X, y: rows and labels.
            classes: all labels, in the first call; later ones may leave it out.
            sample_weight: a number ≥ 0 for every row, in the same unit in all chunks.
        """
        self._check_parameters()
        X, y = checked_rows(self, X, y, allow_nd=self._takes_anything, reset=not hasattr(self, "module_"))
        check_classification_targets(y)
        _check_partial_fit_first_call(self, classes)
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ValueError(bad_argument("y", f"labels of {self.classes_.tolist()}", unknown.tolist()))
        rows: KeptRows = add_chunk(self, X, y, sample_weight, kept=self._kept, most=self.max_rows)
        assert rows.y is not None
        self._learn(rows.X, rows.y, rows.sample_weight, self.classes_)
        # All rows first: an encoder may fail on them.
        self._kept, self.n_samples_seen_ = rows, rows.n_seen
        if self.max_rows is not None and len(rows) > self.max_rows:
            self._kept = self._thinned(rows, self.max_rows)
        return self

    def _thinned(self, rows: KeptRows, most: int) -> KeptRows:
        """At most `most` of the rows, chosen with the fitted model."""

        def answer(part: Tensor) -> Tensor:
            probs: Tensor = self.module_(part).probs.double()
            return torch.cat([self.module_.encode(part), 1 - probs.square().sum(1, keepdim=True)], 1)

        answers = torch.from_numpy(self._rowwise(answer, to_tensor(rows.X)))
        return thinned(rows, most, answers[:, :-1], answers[:, -1], chunk_generator(self, rows.n_seen, 1))

    def _draw_rows(self, n: int) -> tuple[Array, Array]:
        """Rows and labels that stand for those of a fit."""
        probs = self.module_.joint().marginal("y").probs.double().cpu().numpy()
        if isinstance(self.class_weight, Mapping):
            probs = probs / weights_of_classes(self.class_weight, self.classes_)
        counts = np.random.default_rng(self._seed).multinomial(n, probs / probs.sum())
        drawn = [(label, count) for label, count in zip(self.classes_, counts, strict=True) if count]
        X = np.concatenate([self.sample(int(k), y=label, random_state=self._seed) for label, k in drawn])
        return X, np.repeat(self.classes_, counts)

    def _learn(self, X: Array, y: Array, sample_weight: Any, classes: Array | None) -> int:
        """Fits the model to checked rows; returns the number of rows of positive weight.

        Args:
            classes: None takes those of the rows.
        """
        weights, X, y = weighted_rows(sample_weight, X, y)
        classes = np.unique(y) if classes is None else classes
        if len(classes) < 2:
            raise ValueError(bad_argument("y", "at least two classes", f"one class, {classes.tolist()[0]!r}"))
        x, labels = to_tensor(X), torch.from_numpy(np.searchsorted(classes, y)).long()
        rows = (x, labels, class_weighted(self.class_weight, weights, labels, classes), len(classes))
        histories: dict[str, list[dict[str, float]]] = {"joint": []}
        with self._seeded():
            if self.method == "nonparametric":
                module = component_per_row(self.sigma, *rows)
            elif self.method == "discriminative" and has_trend(self, labels):
                module, histories = fit_about_trend(self, *rows)
            else:
                module, histories = fit_joint_labels(self, *rows)
            self._keep(module)
            self._keep_usual(x, weights, labels)
        self._keep_histories(histories)
        self.classes_ = classes
        return len(x)

    def _check_parameters(self) -> None:
        check_choice("method", self.method, ("nonparametric", "likelihood", "discriminative"))
        check_number("noise", self.noise, "a number ≥ 0")
        check_count("head_epochs", self.head_epochs, least=0)
        check_fraction(self.validation_fraction)
        self._alpha(has_trend=False)
        check_trend(self)
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

    def _keep_histories(self, histories: dict[str, list[dict[str, float]]]) -> None:
        super()._keep_histories(histories)
        self.head_history_ = histories.get("head-before", []) + histories.get("head-after", [])
        self.decoder_history_ = histories.get("decoder", [])

    def _alpha(self, *, has_trend: bool) -> float:
        """The weight of log p(x) in the loss."""
        if isinstance(self.generative_weight, str) and self.generative_weight == "auto":
            likelihood = has_trend or self.method == "likelihood" or is_built_in(self.encoder)
            return 1.0 if likelihood else 0.0
        return check_number("generative_weight", self.generative_weight, "'auto' or a number ≥ 0")

    def _density_weight(self) -> float:
        return self._alpha(has_trend=False)

    # ---- answers

    def predict_log_proba(self, X: Any) -> Array:
        """log p(y|x), exact even if the probability underflows."""
        return self._rowwise(lambda rows: self.module_(rows).logits, self._inputs(X))

    @property
    def predict_proba_uncertain(self) -> NoReturn:
        """Removed: the answer to weighted points is the weighted mean of the answers to the points."""
        advice = "average over the points, np.average(model.predict_proba(points), 0, weights)"
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
