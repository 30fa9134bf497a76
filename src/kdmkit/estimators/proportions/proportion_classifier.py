"""Classification from label proportions: bags of rows are labelled only by their proportions of labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument, check_choice, check_flag, check_number
from kdmkit._core.logspace import log_normalize, safe_log
from kdmkit.estimators.common.arrays import Array, checked_rows, split_index, to_tensor
from kdmkit.estimators.common.joint_estimator import JointClassifier, normalized, start_phases
from kdmkit.estimators.proportions.bag_likelihood import (
    BagLikelihood,
    BagLoss,
    CountLikelihood,
    LabelRatio,
    RowLikelihood,
    counts_of,
)
from kdmkit.estimators.proportions.bag_networks import FittedNetwork, MeanLogits, SoftLabels, fit_network
from kdmkit.estimators.proportions.label_proportions import (
    LabelProportions,
    check_bags,
    check_label_proportions,
)
from kdmkit.kernels import typical_distance
from kdmkit.nn import JointLayer, Predictor, Scaler
from kdmkit.nn.scaler import LARGEST_INPUT, soft_clip
from kdmkit.nn.trend import LabelTrend
from kdmkit.training import Bags, PhasedFit, Rows, encode_rows

Loss = Literal["auto", "likelihood", "counts", "proportions"]
# Steps of expectation-maximisation of the proportions of new bags.
_EM_STEPS = 200
# Bags per step, if a step needs whole bags.
_BAGS = 16


@dataclass(eq=False, repr=False)
class KDMProportionClassifier(JointClassifier):
    """A classifier of rows learned from bags of rows with label proportions.

    By default (`loss="auto"`) networks learn from the bags, by `"proportions"` and by `"likelihood"`. The
    better one for held-out bags is kept: that with the larger likelihood of their counts. If there are too
    few bags to hold some out, it is the first one for bags of at most 64 rows. Without an encoder the network
    is the trend of the model, p(y|x) = softmax_y(t(x)), as in `KDMClassifier`, beside a KDM of the rows.
    Behind an encoder, the joint KDM of latent vectors and labels learns the probabilities of the network.
    Ranges of proportions and polls are learned by `"likelihood"`.

    The other losses learn a joint KDM from a bag with rows x_1 … x_n and label proportions γ:

    - `"likelihood"` maximises Σ_j log Σ_y γ_y p(y|x_j)/p(y): the bag's rows are draws from the mixture
      Σ_y γ_y p(x|y) of the classes. Every row counts by itself, so large bags lose no information to their
      mean. p(y) is the mean of γ over the rows of all bags, and also the prior behind `predict_proba`.
    - `"counts"`, for labels that were counted: the exact likelihood of the bag's rows given how many of
      them have each label, log Σ_y Π_j p(y_j|x_j)/p(y_j) over all labels y with these counts. More than two
      labels are compared with the others one by one, half the sum of their likelihoods. The first way
      takes labels of a bag for independent; the smaller a bag, the more its counts tell beyond that.
    - `"proportions"` is the paper's Algorithm 4: the bag is an input KDM with one component per row, and its
      inferred label distribution, the mean of p(y|x_j), is fitted to γ.

    Args:
        loss: `"auto"`, `"likelihood"`, `"counts"` or `"proportions"`.
        n_components: `"auto"` is a tenth of the rows, at most 128; where the KDM learns from a network behind
            an encoder, a third, at most 256.
        encoder: None; `"mlp"`; or any `nn.Module` from rows to vectors, pre-trained on the proportions.
        sigma: starting bandwidth of all dimensions, in units of the features (standardised or not);
            `"auto"` is the mean distance between rows.
        noise: standard deviation of noise on inputs in training, in the same units: the regulariser of
            `"auto"` and `"likelihood"` without an encoder.
        standardize: whether features are standardised first; False often suits one-hot columns. A user's own
            encoder always gets rows as they are.
        max_epochs, learning_rate, patience: of the training.
        batch_size: rows per step, bags per step for `"counts"`, `"proportions"` and proportions that are not
            exact; `"auto"` is a sixty-fourth of the rows, between 64 and 512, or 16 bags.
        validation_fraction: of the bags; they choose the best weights. None are held out if that would be
            fewer than eight.
        novelty_rows: rows that the model keeps for `novelty`, also in files; 0 keeps none.
        checkpoint_dir: the folder in which a fit saves every epoch, to resume from when killed.
        device: `"auto"`, `"cpu"` or `"cuda"`.
        random_state: seed; an integer makes fits repeatable.
        verbose: whether to show progress.

    Attributes:
        classes_: 0 … n_classes − 1, the columns of the proportions.
        class_prior_: p(y), the mean of the proportions over the rows that were learned from.
        history_: one entry per epoch; `pretraining_history_` is that of the first phase.
        loss_: the loss that `"auto"` has chosen, or `loss`.
        module_: the fitted `kdmkit.nn.Predictor`.

    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(2, size=400)
    >>> X = rng.normal(size=(400, 2)) + 2 * y[:, None]
    >>> bags = np.arange(400) // 10
    >>> share = np.bincount(bags, y) / 10
    >>> model = KDMProportionClassifier(max_epochs=10, random_state=0)
    >>> model.fit(X, bags, np.column_stack([1 - share, share])).predict_proba(X[:3]).shape
    (3, 2)
    """

    _: KW_ONLY
    loss: Loss = "auto"
    encoder: Any = None
    sigma: Any = "auto"
    noise: float = 0.2
    standardize: bool = True
    learning_rate: float = 5e-3
    novelty_rows: int = 4096

    loss_: str = field(init=False)

    # ---- fitting

    def fit(
        self, X: Any, bags: Any, proportions: Any, *, counted: Any = None, validation_bags: Any = None
    ) -> KDMProportionClassifier:
        """Fits to bags of rows.

        Args:
            X: of shape `(n, n_features)`, or whatever a user's encoder takes.
            bags: of shape `(n,)`, the bag of every row: an index into `proportions`.
            proportions: of shape `(n_bags, n_classes)`, rows summing to 1 (to three digits); or of shape
                `(n_bags, n_classes, 2)`, the range in which each proportion lies.
            counted: the number of labels that a bag's proportions were counted from, if they come from a poll
                of some of its rows: one number, or one per bag. The prior of a bag's proportions is then the
                Dirichlet distribution (for two classes a Beta) with parameters `counted · proportions`.
            validation_bags: ids of the bags to validate on, in place of a random `validation_fraction`.
        """
        check_choice("loss", self.loss, ("auto", "likelihood", "counts", "proportions"))
        check_number("noise", self.noise, "a number ≥ 0")
        check_flag("standardize", self.standardize)
        X = checked_rows(self, X, allow_nd=self._takes_anything)
        checked = check_label_proportions(proportions, counted)
        if not checked.exact and self.loss not in ("auto", "likelihood"):
            wanted = "'auto' or 'likelihood' for ranges of proportions or polls"
            raise ValueError(bad_argument("loss", wanted, repr(self.loss)))
        index = check_bags(bags, len(X), len(checked))
        validation = _check_validation(validation_bags, len(checked))
        with self._seeded():
            self._keep(self._learned(to_tensor(X), index, checked, validation))
            self._keep_usual(to_tensor(X), None)
        self.classes_ = np.arange(checked.n_classes)
        return self

    def _learned(
        self, x: Tensor, ids: Tensor, proportions: LabelProportions, validation: Tensor | None
    ) -> Predictor:
        """Fits an encoder with a dense head, if any, then with a joint KDM, both to proportions of bags."""
        scalers = self._input_scaler(x, None)
        bags = Bags(self._training_inputs(x, scalers), ids)
        train, validation = self._split(len(proportions), validation)
        rows = bags.inside(train)
        by_network = self.loss == "auto" and proportions.exact
        few = (256, 3) if by_network and self.encoder is not None else (128, 10)
        m = self._count_components(len(rows), max(2, min(few[0], len(rows) // few[1])))
        mean = proportions.mean.float()[train].repeat_interleave(bags.size[train], 0)
        prior = mean.mean(0)
        self.class_prior_ = prior.double().numpy()

        def start(loss: Loss) -> PhasedFit:
            by_row = loss == "likelihood" and proportions.exact
            automatic = isinstance(self.batch_size, str) and self.batch_size == "auto"
            return start_phases(
                self,
                rows,
                _objective_rows(loss, bags, proportions, train),
                None if validation is None else _objective_rows(loss, bags, proportions, validation),
                n_components=m,
                n_outputs=proportions.n_classes,
                batch_size=_BAGS if automatic and not by_row else None,
                noise=float(self.noise),
            )

        self.loss_ = "likelihood" if self.loss == "auto" else self.loss
        if by_network:
            return self._by_network(start, bags, proportions, train, validation, scalers)
        phases = start(self.loss_)

        def objective(head: nn.Module) -> nn.Module:
            if self.loss_ == "proportions":
                return BagLoss(bags, phases.encoder, head)
            labels = LabelRatio(phases.encoder, head, phases.noise, prior)
            if self.loss_ == "counts":
                return CountLikelihood(labels, bags)
            return RowLikelihood(labels) if proportions.exact else BagLikelihood(labels, bags)

        if phases.dense is not None:
            phases.minimize("pretraining", objective(phases.dense))
            phases.dense.cpu()
        z = phases.encode(rows)
        self._place_components(phases.layer, z, _predicted_labels(mean, phases.dense, z).sqrt())
        phases.minimize("joint", objective(phases.layer))
        self._keep_histories(phases.histories)
        encoder = None if phases.encoder is None else phases.encoder.cpu()
        return Predictor.from_standardized(phases.layer.cpu(), scalers, encoder=encoder)

    def _by_network(
        self,
        start: Callable[[Loss], PhasedFit],
        bags: Bags,
        proportions: LabelProportions,
        train: Tensor,
        validation: Tensor | None,
        scalers: dict[str, Scaler],
    ) -> Predictor:
        """A network by the better of two losses: a trend, or the teacher of a KDM behind its encoder."""
        rows, prior = bags.inside(train), torch.from_numpy(self.class_prior_).float()
        is_trend = self.encoder is None

        def network(loss: Any) -> FittedNetwork:
            phases = start(loss)
            if phases.encoder is not None and phases.dense is not None:
                return FittedNetwork(loss, phases.encoder, phases.dense, phases)
            logits = MeanLogits(rows.shape[1], proportions.n_classes, phases.noise, phases.generator)
            return FittedNetwork(loss, logits, nn.Identity(), phases)

        if is_trend:
            bags.x = soft_clip(bags.x)
        fitted = fit_network(network, bags, proportions, prior, validation)
        self.loss_, layer = fitted.loss, fitted.phases.layer
        z = encode_rows(fitted.encoder, soft_clip(rows) if is_trend else rows)
        with torch.no_grad():
            probs = fitted.head(z).softmax(-1)
        self._place_components(layer, rows if is_trend else z, probs.sqrt())
        if not isinstance(fitted.encoder, MeanLogits):
            history = self._run(SoftLabels(layer), Rows((z, probs)), None, "joint")
            self._keep_histories({**fitted.phases.histories, "joint": history})
            return Predictor.from_standardized(layer, scalers, encoder=fitted.encoder)
        history = fitted.phases.histories["pretraining"]
        self._keep_histories({"pretraining": history, "joint": history})
        scaler, offsets = scalers["x"], torch.zeros(layer.n_components, proportions.n_classes)
        standardized = Scaler(scaler.shift, scaler.scale)
        trend = LabelTrend(fitted.encoder.ensemble, None, standardized, offsets, torch.ones(()))
        module = Predictor.from_standardized(layer.cpu(), scalers, trend=trend)
        with torch.no_grad():
            components = module.layer.components
            components["y"].copy_(trend.probs_at_components(components["x"]).sqrt())
        return module

    def _input_scaler(self, x: Tensor, weights: Tensor | None) -> dict[str, Scaler]:
        if self.standardize:
            return super()._input_scaler(x, weights)
        return {} if self._takes_anything else {"x": Scaler.identity(x.shape[1], LARGEST_INPUT)}

    def _split(self, n_bags: int, chosen: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The ids of bags to learn from and of bags to validate on."""
        if chosen is None:
            return split_index(n_bags, self.validation_fraction, self._seed)
        everything = torch.arange(n_bags)
        return everything[~torch.isin(everything, chosen)], chosen

    def _place_components(self, layer: JointLayer, z: Tensor, amplitudes: Tensor) -> None:
        """Random rows as components; their amplitudes are the square roots of label probabilities."""
        sigma, generator = self._first_sigma("mean"), self._torch_generator()
        # One length for all dimensions: in one-hot columns, rare categories must not count more.
        width = typical_distance(z, sigma) if isinstance(sigma, str) else float(sigma)
        layer.initialize(z, amplitudes, method="random", sigma=width, generator=generator)

    # ---- answers

    def predict_proportions(
        self, X: Any, bags: Any, *, method: Literal["mean", "likelihood"] = "mean"
    ) -> Array:
        """The label proportions of new bags, `(n_bags, n_classes)`; ids are 0 … n_bags − 1.

        Args:
            X: of shape `(n, n_features)`, or whatever a user's encoder takes.
            bags: of shape `(n,)`, the bag of every row.
            method: `"mean"` is the mean of p(y|x_j) over a bag's rows, right for bags with the label
                proportions of all training bags together. `"likelihood"` maximises
                Σ_j log Σ_y γ_y p(y|x_j)/p(y) over γ, for bags with proportions of their own and more than a
                few rows.
        """
        check_choice("method", method, ("mean", "likelihood"))
        probs = self.predict_proba(X)
        index = check_bags(bags, len(probs)).numpy()
        if method == "mean":
            return normalized(_sums(probs, index))
        return _likeliest(probs, index, self.class_prior_)


def _objective_rows(loss: Loss, bags: Bags, proportions: LabelProportions, ids: Int[Tensor, " k"]) -> Rows:
    """The objective's tensors for some bags: one entry per row, or one per bag."""
    size, mean = bags.size[ids], proportions.mean.float()[ids]
    if loss == "likelihood" and proportions.exact:
        return Rows((bags.inside(ids), mean.repeat_interleave(size, 0)))
    if loss == "counts":
        return Rows((bags.first[ids], size, counts_of(proportions, bags.size)[ids]), size.float(), size)
    tensors = (bags.first[ids], size, mean)
    if loss == "proportions":
        return Rows(tensors, None, size)
    bounds = (part.float()[ids] for part in (proportions.low, proportions.high, proportions.counted))
    return Rows((*tensors, *bounds), size.float(), size)


@torch.no_grad()
def _predicted_labels(
    proportions: Float[Tensor, "n c"], head: nn.Module | None, z: Float[Tensor, "n d"]
) -> Float[Tensor, "n c"]:
    """p(y|z, bag) ∝ γ_y p(y|z)/p(y): labels of rows in bags with proportions γ, by a dense head (None: γ)."""
    if head is None:
        return proportions
    relative = torch.where(proportions > 0, proportions / proportions.mean(0), 0.0)
    return log_normalize(safe_log(relative) + torch.log_softmax(head(z), -1)).exp()


def _sums(values: Array, index: Array) -> Array:
    """The sum over the rows of every bag."""
    sums = np.zeros((index.max() + 1, values.shape[1]))
    np.add.at(sums, index, values)
    return sums


def _likeliest(probs: Array, index: Array, prior: Array) -> Array:
    """Proportions of bags by expectation-maximisation, from p(y|x) under the prior p(y)."""
    ratio = np.divide(probs, prior, out=np.zeros_like(probs), where=prior > 0)
    gamma = np.tile(prior, (index.max() + 1, 1))
    for _ in range(_EM_STEPS):
        gamma = normalized(_sums(normalized(gamma[index] * ratio), index))
    return gamma


def _check_validation(ids: Any, n_bags: int) -> Int[Tensor, " k"] | None:
    """Some of the bags, but not all."""
    if ids is None:
        return None
    chosen = np.unique(np.asarray(ids))
    whole = np.issubdtype(chosen.dtype, np.integer) and len(chosen) > 0
    if not whole or chosen[0] < 0 or chosen[-1] >= n_bags or len(chosen) == n_bags:
        raise ValueError(bad_argument("validation_bags", f"some but not all ids 0 … {n_bags - 1}", ids))
    return torch.from_numpy(chosen.astype(np.int64))
