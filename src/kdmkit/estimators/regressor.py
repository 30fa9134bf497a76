"""Regression with whole predictive distributions."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import validate_data
from torch import Tensor

from kdmkit._core.checks import check_choice, expected
from kdmkit.distributions import KDM, JointKDM
from kdmkit.estimators._checks import Array, check_count, check_number, to_tensor
from kdmkit.estimators._joint import JointEstimator, Phases
from kdmkit.estimators._model import Model, assembled
from kdmkit.estimators._objectives import Conditional, Pretraining
from kdmkit.estimators._rows import split_rows, weighted_rows
from kdmkit.estimators._scaling import Scaler
from kdmkit.kernels import RBF
from kdmkit.nn import JointLayer

_WIDEST_OUTPUT = 0.5


class KDMRegressor(MultiOutputMixin, RegressorMixin, JointEstimator):
    """Regression whose answer is a distribution: multimodal, heteroscedastic, with exact quantiles.

    Targets are standardised inside and every answer is in their own units.

    Args:
        loss: `"nll"` maximises p(y|x); `"mse"` minimises the squared error of its mean.
        n_components: `"auto"` is a fifth of the samples, at most 256.
        encoder: None; `"mlp"`; or any `nn.Module` from rows to vectors, pre-trained with a dense head.
        generative_weight: α of the hybrid loss −log p(y|x) − α·log p(x).
        sigma: starting bandwidth of the inputs, in units of standardised features; `"auto"` is a typical
            distance between components.
        noise: standard deviation of noise on inputs while training, in units of standardised features.
        batch_size: rows per step; `"auto"` is a sixty-fourth of them, between 64 and 512.
        max_epochs, learning_rate, validation_fraction, patience: of the training.
        checkpoint_dir: where a fit saves every epoch and resumes when killed.
        device: `"auto"`, `"cpu"` or `"cuda"`.
        random_state: seed; an integer makes fits repeatable.
        verbose: whether to show progress.

    Attributes:
        history_: one entry per epoch; `pretraining_history_` is that of an encoder's first phase.
        module_: the fitted `nn.Module`.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-2, 2, (200, 1))
    >>> y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=200)
    >>> model = KDMRegressor(max_epochs=10, random_state=0).fit(X, y)
    >>> mean, std = model.predict(X[:4], return_std=True)
    >>> mean.shape, std.shape, model.predict_interval(X[:4], coverage=0.9).shape
    ((4,), (4,), (4, 2))
    """

    def __init__(
        self,
        loss: Literal["nll", "mse"] = "nll",
        *,
        n_components: int | Literal["auto"] = "auto",
        encoder: Any = None,
        generative_weight: float = 0.0,
        sigma: Any = "auto",
        noise: float = 0.03,
        max_epochs: int = 100,
        batch_size: int | Literal["auto"] = "auto",
        learning_rate: float = 1e-2,
        validation_fraction: float = 0.1,
        patience: int | None = 20,
        checkpoint_dir: Any = None,
        device: str = "auto",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.loss = loss
        self.n_components = n_components
        self.encoder = encoder
        self.generative_weight = generative_weight
        self.sigma = sigma
        self.noise = noise
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

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> KDMRegressor:
        """Fits the joint distribution of rows and targets; y has shape `(n,)` or `(n, n_outputs)`."""
        check_choice("loss", self.loss, ("nll", "mse"))
        for name in ("noise", "generative_weight"):
            check_number(name, getattr(self, name), "a number ≥ 0")
        X, y = validate_data(
            self,
            X,
            y,
            dtype=[np.float64, np.float32],
            multi_output=True,
            y_numeric=True,
            allow_nd=self._takes_anything,
        )
        weights, X, y = weighted_rows(sample_weight, X, y)
        targets = to_tensor(y).double().reshape(len(y), -1)
        with self._seeded():
            self._keep(self._learned(to_tensor(X), targets, weights))
        self._flat_target = np.ndim(y) == 1
        return self

    def _learned(self, x: Tensor, y: Tensor, weights: Tensor | None) -> Model:
        scalers = {**self._input_scaler(x, weights), "y": Scaler.from_data(y, weights)}
        tensors = (self._training_inputs(x, scalers), scalers["y"](y).float())
        rows, validation = split_rows(tensors, weights, self.validation_fraction, self._seed)
        phases = Phases(
            pretraining=lambda encoder, head: Pretraining(encoder, head, _row_mse),
            first_layer=lambda z, _: self._first_layer(z, rows.tensors[1]),
            objective=lambda encoder, layer: Conditional(
                encoder,
                layer,
                generative_weight=float(self.generative_weight),
                noise=float(self.noise),
                loss=self.loss,
            ),
        )
        encoder, layer = self._learn(
            rows.tensors[0], rows, validation, phases, outputs=y.shape[1], description="regressor"
        )
        return assembled(layer, encoder, scalers)

    def _first_layer(self, z: Tensor, y: Tensor) -> JointLayer:
        """Centres of clusters of inputs and targets together; every component has an output bandwidth."""
        m = self._count_components(len(z), max(2, min(256, len(z) // 5)))
        d, outputs, sigma = z.shape[1], y.shape[1], self._first_sigma("nearest")
        of_x, of_y = RBF(torch.ones(d)), RBF(torch.ones(m, outputs))
        layer = JointLayer(d, outputs, m, in_kernel=of_x, out_kernel=of_y, dtype=torch.float32)
        layer.initialize(z, y, method="kmeans", sigma=sigma, generator=self._torch_generator())
        kernel = layer.kernels["y"]
        assert isinstance(kernel, RBF)
        kernel.bandwidth.bound(0.0)
        kernel.sigma = torch.full((m, outputs), _WIDEST_OUTPUT)
        kernel.bandwidth.bound(narrowest(y))
        return layer

    # ---- answers

    def predict_dist(self, X: Any) -> KDM:
        """p(y|x) of every row as one KDM with a batch, in the units of y."""
        x = self._inputs(X)
        z = torch.from_numpy(self._rowwise(self.module_.encode, x)).to(self._device)
        rho: KDM = self.module_.joint().infer(x=z, target="y")
        return rho

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean of p(y|x), and its standard deviation where asked."""
        x = self._inputs(X)

        def answer(rows: Tensor) -> Tensor:
            rho = self.module_(rows)
            return torch.stack([rho.mean, rho.variance.sqrt()] if return_std else [rho.mean], -1)

        answers = self._rowwise(answer, x)
        if self._flat_target:
            answers = answers.squeeze(1)
        return (answers[..., 0], answers[..., 1]) if return_std else answers[..., 0]

    def predict_quantiles(self, X: Any, quantiles: Any) -> Array:
        """Quantiles of p(y|x), `(n, n_quantiles)`, or of every output `(n, n_outputs, n_quantiles)`."""
        q = torch.from_numpy(np.atleast_1d(np.asarray(quantiles, dtype=np.float64)))
        if q.ndim != 1 or not bool(((q > 0) & (q < 1)).all()):
            raise ValueError(expected("quantiles", "numbers strictly between 0 and 1", quantiles))
        x = self._inputs(X)
        marginals = [self._over_output(output) for output in range(self._n_outputs)]

        def answer(rows: Tensor) -> Tensor:
            z, places = self.module_.encode(rows), q.to(rows.device).unsqueeze(-1)
            return torch.stack([joint.infer(x=z).icdf(places).squeeze(-1).mT for joint in marginals], 1)

        answers = self._rowwise(answer, x)
        return answers.squeeze(1) if self._flat_target else answers

    @property
    def _n_outputs(self) -> int:
        return self.module_.layer.variables["y"].shape[0]

    def _over_output(self, output: int) -> JointKDM:
        """The joint of x and one output."""
        joint, part = self.module_.joint(), slice(output, output + 1)
        kernel = joint.kernels["y"]
        assert isinstance(kernel, RBF)
        components = {"x": joint.components["x"], "y": joint.components["y"][:, part]}
        kernels = {"x": joint.kernels["x"], "y": RBF(kernel.sigma[:, part])}
        return JointKDM(components, None, kernels, log_weights=joint.log_weights)

    def predict_interval(self, X: Any, coverage: float = 0.9) -> Array:
        """The central interval that holds y with probability `coverage`, `(n, 2)`."""
        if not 0 < coverage < 1:
            raise ValueError(expected("coverage", "strictly between 0 and 1", coverage))
        return self.predict_quantiles(X, [(1 - coverage) / 2, (1 + coverage) / 2])

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = None) -> Array:
        """Draws of y for every row, `(n, n_samples)` or `(n, n_outputs, n_samples)`."""
        n_samples = check_count("n_samples", n_samples)
        rho = self.predict_dist(X)
        drawn = rho.sample((n_samples,), generator=self._generator(random_state)).cpu().movedim(0, -1)
        return np.asarray(drawn.squeeze(1) if self._flat_target else drawn)


def _row_mse(output: Tensor, y: Tensor) -> Tensor:
    return (output - y).square().mean(-1)


def narrowest(y: Tensor) -> float:
    """The lower bound of output bandwidths: half the smallest gap between distinct targets, as σ.

    Targets that repeat (integers, grades) would otherwise be met by spikes of any height. Where few values
    repeat, a hundredth of the standard deviation bounds the bandwidth instead.
    """
    bound = 0.01
    for column in y.double().mT:
        values = torch.unique(column)
        if len(values) > 1 and len(values) <= len(column) // 2:
            bound = max(bound, float(values.diff().min()) / 2)
    return min(bound * 2**0.5, 0.9 * _WIDEST_OUTPUT)
