"""The bases of estimators of a joint distribution, and their fits behind an encoder."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils import Tags
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument, check_count, check_number, warn_user
from kdmkit.estimators.common.arrays import Array, CheckedRows
from kdmkit.estimators.common.arrow import BatchAnswer, answer_rows
from kdmkit.estimators.common.base import KDMEstimator, TensorAnswer
from kdmkit.estimators.density.novelty import UsualRows
from kdmkit.kernels import RBF, Kernel
from kdmkit.nn import MLP, JointLayer, Predictor, Scaler, make_linear
from kdmkit.nn.initialize import Sigma
from kdmkit.nn.layer import LayerOptions
from kdmkit.nn.predictor import dtype_of
from kdmkit.training import FitOptions, PhasedFit, Rows, encode_rows

# Standardised inputs beyond this are compressed: ordinary columns hardly reach it.
_INPUT_LIMIT = 5.0
# Weight decay of encoders and dense heads.
_WEIGHT_DECAY = 1e-2
# The widths of the built-in networks.
_HIDDEN, _LATENT = 128, 16


class JointEstimator(KDMEstimator):
    """Base of the estimators whose module is a `Predictor`: a joint KDM over rows and targets."""

    module_: Predictor
    history_: list[dict[str, float]]
    pretraining_history_: list[dict[str, float]]

    encoder: Any
    sigma: Any
    #: For `novelty`; None in models of kdmkit 0.2.
    _usual: UsualRows | None = None

    # ---- fitting

    def _keep_usual(self, x: Tensor, weights: Tensor | None, labels: Tensor | None = None) -> None:
        """Keeps rows for `novelty`; behind a user's encoder their latent vectors."""
        most = check_count("novelty_rows", vars(self)["novelty_rows"], least=0)
        labels = torch.zeros(len(x), dtype=torch.long) if labels is None else labels
        self._usual = UsualRows.of(x, weights, labels, most, self._places) if most else None

    def _places(self, x: Tensor) -> Tensor:
        """Rows as `novelty` compares them."""
        return torch.from_numpy(self._rowwise(self.module_.encode, x)) if self._takes_anything else x

    @property
    def _takes_anything(self) -> bool:
        """Whether inputs may have any shape: a user's encoder gets them as they are, images for example."""
        return isinstance(self.encoder, nn.Module)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = self._takes_anything
        return tags

    def _input_scaler(self, x: Tensor, weights: Tensor | None) -> dict[str, Scaler]:
        return {} if self._takes_anything else {"x": Scaler.from_data(x, weights, limit=_INPUT_LIMIT)}

    def _training_inputs(self, x: Tensor, scalers: dict[str, Scaler]) -> Tensor:
        return scalers["x"](x).float() if "x" in scalers else x.to(dtype_of(self.encoder))

    def _keep_histories(self, histories: dict[str, list[dict[str, float]]]) -> None:
        self.history_ = histories["joint"]
        self.pretraining_history_ = histories.get("pretraining", [])

    def _first_sigma(self, automatic: Sigma) -> Sigma:
        """The start of a learned bandwidth."""
        if isinstance(self.sigma, str) and self.sigma == "auto":
            return automatic
        return check_number("sigma", self.sigma, "'auto' or a number > 0", positive=True)

    # ---- answers

    def _inputs(self, X: Any) -> Tensor:
        return self._rows(X, allow_nd=self._takes_anything)

    def score_samples(self, X: Any) -> Array:
        """log p(x) of every row: low for rows unlike the training data.

        Behind an encoder it is log p(z) of the latent vector, which tells novel rows only if the fit learned
        it: with `generative_weight` > 0.
        """
        x = self._inputs(X)
        if self._takes_anything and self._density_weight() == 0:
            message = (
                "score_samples: log p(z) was no part of the fit and tells little about novelty; fit with "
                "generative_weight=1, and normalise the output of an encoder of your own, or ask `novelty`"
            )
            warn_user(message)
        return self._rowwise(self._answers()["score_samples"], x)

    def novelty(self, X: Any) -> Array:
        """How unusual every row is: a p-value, near 0 for novelties.

        It is the share of training rows whose density, computed without their own components, is as low:
        `novelty(X) < .05` flags one usual row in twenty. The density has a component at each of up to
        `novelty_rows` rows of the fit, as `KDMDensity`. It does not use what the model learned: features that
        tell classes apart may lose what is unusual. Behind an encoder of your own the rows are latent
        vectors. Labels choose the units of columns (standard deviations, ranges, or one unit for all
        columns): those with which the density of the other classes tells the rows of each class best. The
        first call computes the density. p-values below 1/513 are extrapolated, and rank rows.

        Raises:
            ValueError: for a model of `novelty_rows=0`, and for one that was saved by kdmkit 0.2.
        """
        x = self._inputs(X)
        if self._usual is None:
            wanted = "a number > 0 in the fit, by this version of kdmkit, for novelty"
            raise ValueError(bad_argument("novelty_rows", wanted, "no rows"))
        return self._usual.novelty(self._places(x))

    def _density_weight(self) -> float:
        """The weight of log p(z) in the loss behind an encoder, if it can be chosen."""
        return 1.0

    def _answers(self) -> dict[str, TensorAnswer]:
        return {"score_samples": self.module_.log_density}


class JointClassifier(ClassifierMixin, JointEstimator):
    """Base of the estimators whose y is a label."""

    classes_: Array

    def predict_proba(self, X: Any) -> Array:
        """p(y|x), one row per row of X, one column per class."""
        x = self._inputs(X)
        return normalized(self._rowwise(self._answers()["predict_proba"], x))

    def _answers(self) -> dict[str, TensorAnswer]:
        return {**super()._answers(), "predict_proba": lambda rows: self.module_(rows).probs}

    def predict(self, X: Any) -> Array:
        """The likeliest label of every row."""
        return self._likeliest(self.predict_proba(X))

    def _likeliest(self, probs: Array) -> Array:
        return np.asarray(self.classes_[probs.argmax(1)])

    def _batch_answers(self) -> dict[str, BatchAnswer]:
        return {**super()._batch_answers(), "predict": self._predict_batch}

    def _predict_batch(
        self, rows: CheckedRows, *, target: str = "y", proba: bool = False
    ) -> dict[str, Array]:
        """The likeliest class in the column `target`; with `proba` every probability in `P(<class>)`."""

        def answer(X: CheckedRows) -> dict[str, Array]:
            probs = self.predict_proba(X)
            each = {f"P({label})": probs[:, i] for i, label in enumerate(self.classes_)} if proba else {}
            return {target: self._likeliest(probs), **each}

        return answer_rows(answer, rows)


def normalized(probs: Array) -> Array:
    """Probabilities divided by their sum, which rounding may leave off 1: scikit-learn's losses check it."""
    return np.asarray(probs / probs.sum(-1, keepdims=True))


# ---- fits behind an encoder


def start_phases(
    estimator: JointEstimator,
    x: Tensor,
    train: Rows,
    validation: Rows | None,
    *,
    n_components: int,
    n_outputs: int,
    out_kernel: Kernel | None = None,
    wide: bool = False,
    batch_size: int | None = None,
    **settings: Any,
) -> PhasedFit:
    """The phases of an estimator's fit, with its settings, checkpoints and first weights.

    Args:
        estimator: its parameters are the settings.
        x: the inputs among which components are placed.
        train, validation: rows of the objectives.
        n_components: of the layer; the caller places them.
        n_outputs: of the dense head and of the layer.
        out_kernel: of the layer's y; None is that of labels.
        wide: whether the encoder `"mlp"` is the wide one.
        batch_size: None is the estimator's.
        settings: `generative_weight`, `noise`, `loss` and `head_epochs`, as in `PhasedFit`.
    """
    options = {**estimator._settings(estimator._seed, len(train)), "weight_decay": _WEIGHT_DECAY}
    if batch_size is not None:
        options["batch_size"] = batch_size
    generator = estimator._torch_generator()
    encoder = build_module(estimator.encoder, "encoder", lambda: _mlp_encoder(x.shape[1], wide, generator))
    d, dense = x.shape[1], None
    if encoder is not None:
        d = encode_rows(encoder, x[:2], estimator._fit_device()).shape[1]
        dense = make_linear(d, n_outputs, generator)
    first: LayerOptions = {"dtype": torch.float32, "generator": torch.Generator()}
    kernels = {"in_kernel": RBF(torch.ones(d)), "out_kernel": out_kernel}
    layer = JointLayer(d, n_outputs, n_components, **kernels, **first)
    phases = PhasedFit(
        encoder,
        layer,
        train,
        validation,
        options=FitOptions(**options),
        dense=dense,
        identity=estimator._identity(x),
        **settings,
    )
    phases.generator = generator
    return phases


def build_module(parameter: Any, name: str, build: Callable[[], nn.Module]) -> nn.Module | None:
    """The encoder or decoder that a constructor parameter means: none, `"mlp"`, or a copy of a module."""
    if parameter is None:
        return None
    if isinstance(parameter, nn.Module):
        return copy.deepcopy(parameter)
    if is_built_in(parameter):
        return build()
    raise ValueError(bad_argument(name, "None, 'mlp' or an nn.Module", repr(parameter)))


def is_built_in(parameter: Any) -> bool:
    """Whether a constructor parameter means the built-in network."""
    return isinstance(parameter, str) and parameter == "mlp"


def _mlp_encoder(features: int, wide: bool, generator: torch.Generator) -> MLP:
    """An encoder from rows to latent vectors; the wide one is for latent vectors that keep whole rows."""
    if wide:
        sizes = [features, 2 * _HIDDEN, 2 * _HIDDEN, 2 * _LATENT]
        return MLP(sizes, dropout=0.2, clip=True, generator=generator)
    return MLP([features, _HIDDEN, _HIDDEN, _LATENT], generator=generator)


def mlp_decoder(latent: int, shape: tuple[int, ...], generator: torch.Generator) -> MLP:
    """A decoder from latent vectors to inputs of any shape."""
    sizes = [latent, _HIDDEN, _HIDDEN, math.prod(shape)]
    event = None if len(shape) == 1 else list(shape)
    return MLP(sizes, dropout=0.0, normalize=False, shape=event, generator=generator)
