"""Classification from label proportions: bags of rows whose labels are known only as shares."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from sklearn.utils.validation import validate_data
from torch import Tensor

from kdmkit.estimators._bags import BagLoss, BagPretraining, Bags, check_bags, check_proportions
from kdmkit.estimators._checks import Array, to_tensor
from kdmkit.estimators._joint import Phases
from kdmkit.estimators._labels import JointClassifier, normalized
from kdmkit.estimators._model import Model, assembled
from kdmkit.estimators._rows import split_rows
from kdmkit.kernels import RBF
from kdmkit.nn import JointLayer


class KDMProportionClassifier(JointClassifier):
    """A classifier of rows learned from bags of rows with label proportions (the paper's Algorithm 4).

    A bag is an input KDM with one component per row; its inferred label distribution is fitted to the
    bag's proportions.

    Args:
        n_components: `"auto"` is a tenth of the rows, at most 128.
        encoder: None; `"mlp"`; or any `nn.Module` from rows to vectors, pre-trained on the proportions.
        sigma: starting bandwidth in units of standardised features; `"auto"` is the mean distance between
            components.
        max_epochs, batch_size (bags), learning_rate, validation_fraction (of the bags), patience: of the
            training.
        checkpoint_dir: where a fit saves every epoch and resumes when killed.
        device: `"auto"`, `"cpu"` or `"cuda"`.
        random_state: seed; an integer makes fits repeatable.
        verbose: whether to show progress.

    Attributes:
        classes_: 0 … n_classes − 1, the columns of the proportions.
        history_: one entry per epoch; `pretraining_history_` is that of an encoder's first phase.
        module_: the fitted `nn.Module`.

    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(2, size=400)
    >>> X = rng.normal(size=(400, 2)) + 2 * y[:, None]
    >>> bags = np.arange(400) // 10
    >>> share = np.bincount(bags, y) / 10
    >>> model = KDMProportionClassifier(max_epochs=10, random_state=0)
    >>> model.fit(X, bags, np.column_stack([1 - share, share])).predict_proba(X[:3]).shape
    (3, 2)
    """

    def __init__(
        self,
        *,
        n_components: int | Literal["auto"] = "auto",
        encoder: Any = None,
        sigma: Any = "auto",
        max_epochs: int = 100,
        batch_size: int = 16,
        learning_rate: float = 5e-3,
        validation_fraction: float = 0.1,
        patience: int | None = 20,
        checkpoint_dir: Any = None,
        device: str = "auto",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.n_components = n_components
        self.encoder = encoder
        self.sigma = sigma
        self.max_epochs = max_epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.checkpoint_dir = checkpoint_dir
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    # ---- fitting

    def fit(self, X: Any, bags: Any, proportions: Any) -> KDMProportionClassifier:
        """Fits to bags of rows.

        Args:
            X: of shape `(n, n_features)`, or whatever a user's encoder takes.
            bags: of shape `(n,)`, the bag of every row: an index into `proportions`.
            proportions: of shape `(n_bags, n_classes)`, rows summing to 1 (to three digits).
        """
        X = validate_data(self, X, dtype=[np.float64, np.float32], allow_nd=self._takes_anything)
        shares = check_proportions(proportions)
        index = check_bags(bags, len(X), len(shares))
        with self._seeded():
            self._keep(self._learned(to_tensor(X), index, shares))
        self.classes_ = np.arange(shares.shape[1])
        return self

    def _learned(self, x: Tensor, ids: Tensor, shares: Tensor) -> Model:
        scalers = self._input_scaler(x, None)
        bags = Bags(self._training_inputs(x, scalers), ids)
        tensors = (bags.first, bags.size, shares.float())
        rows, validation = split_rows(tensors, None, self.validation_fraction, self._seed)
        first, size, share = rows.tensors
        instances = torch.cat([bags.x[f : f + n] for f, n in zip(first.tolist(), size.tolist(), strict=True)])
        amplitudes = share.sqrt().repeat_interleave(size, 0)
        phases = Phases(
            pretraining=lambda encoder, head: BagPretraining(bags, encoder, head),
            first_layer=lambda z: self._first_layer(z, amplitudes),
            objective=lambda encoder, layer: BagLoss(bags, encoder, layer),
        )
        encoder, layer = self._learn(
            instances, rows, validation, phases, outputs=shares.shape[1], description="proportions"
        )
        return assembled(layer, encoder, scalers)

    def _first_layer(self, z: Tensor, amplitudes: Tensor) -> JointLayer:
        """Random instances, each with the square roots of its bag's proportions as label amplitude."""
        m = self._count_components(len(z), max(2, min(128, len(z) // 10)))
        layer = JointLayer(z.shape[1], amplitudes.shape[1], m, in_kernel=RBF(1.0), dtype=torch.float32)
        sigma, generator = self._first_sigma("mean"), self._torch_generator()
        return layer.initialize(z, amplitudes, method="random", sigma=sigma, generator=generator)

    # ---- answers

    def predict_proportions(self, X: Any, bags: Any) -> Array:
        """The expected label proportions of new bags, `(n_bags, n_classes)`; ids are 0 … n_bags − 1."""
        probs = self.predict_proba(X)
        index = check_bags(bags, len(probs)).numpy()
        sums = np.zeros((index.max() + 1, probs.shape[1]))
        np.add.at(sums, index, probs)
        return normalized(sums)
