"""Gaussian processes: scikit-learn's exact one, and a sparse one for many rows."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.preprocessing import StandardScaler

from kdmlab.regression.data import Split
from kdmlab.regression.scores import Gaussians

Array = NDArray[Any]

EXACT_ROWS = 2000
ITERATIONS = 50
INDUCING, STEPS, RATE = 512, 150, 0.05


def gaussian_process(split: Split, seed: int) -> Gaussians:
    """Maximum marginal likelihood on standardised rows and targets; predictive variances include noise."""
    of_x, mean, std = StandardScaler().fit(split.X), split.y.mean(), split.y.std()
    X, X_test, y = of_x.transform(split.X), of_x.transform(split.X_test), (split.y - mean) / std
    fit = _exact if len(y) <= EXACT_ROWS else _sparse
    answers, spread = fit(X, y, X_test, seed)
    return Gaussians(mean + std * answers, std * spread)


def _exact(X: Array, y: Array, X_test: Array, seed: int) -> tuple[Array, Array]:
    kernel = ConstantKernel(1.0, (1e-2, 1e3)) * RBF(np.full(X.shape[1], 2.0), (1e-1, 1e3)) + WhiteKernel(0.1)
    model = GaussianProcessRegressor(kernel, optimizer=_lbfgs, random_state=seed)
    with warnings.catch_warnings():
        # The length scale of an irrelevant feature is meant to reach its bound.
        warnings.simplefilter("ignore", ConvergenceWarning)
        mean, std = model.fit(X, y).predict(X_test, return_std=True)
    return np.asarray(mean), np.asarray(std)


def _lbfgs(objective: Any, start: Array, bounds: Array) -> tuple[Array, float]:
    minimum = minimize(
        objective, start, method="L-BFGS-B", jac=True, bounds=bounds, options={"maxiter": ITERATIONS}
    )
    return minimum.x, minimum.fun


def _sparse(X: Array, y: Array, X_test: Array, seed: int) -> tuple[Array, Array]:
    """Titsias' bound on the marginal likelihood, with inducing points that move."""
    import gpytorch

    generator = torch.Generator().manual_seed(seed)
    inputs, targets, queries = (torch.from_numpy(values).float() for values in (X, y, X_test))
    chosen = inputs[torch.randperm(len(inputs), generator=generator)[:INDUCING]].clone()
    likelihood = gpytorch.likelihoods.GaussianLikelihood()

    class Sparse(gpytorch.models.ExactGP):
        def __init__(self) -> None:
            super().__init__(inputs, targets, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            base = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=inputs.shape[1]))
            self.kernel = gpytorch.kernels.InducingPointKernel(base, chosen, likelihood)

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    model = Sparse().train()
    bound = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = -bound(model(inputs), targets)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad(), gpytorch.settings.fast_pred_var():
        answer = likelihood(model(queries))
    return answer.mean.double().numpy(), answer.variance.double().sqrt().numpy()
