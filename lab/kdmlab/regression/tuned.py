"""Peers with searched settings: exact Gaussian processes of several kernels, and NGBoost that stops early."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.optimize import minimize
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from kdmlab.regression.data import Split
from kdmlab.regression.scores import Gaussians

Array = NDArray[Any]

# ---- Gaussian processes

#: k(r) of the kernels compared, r the distance of rows whose features have a length scale each.
KERNELS: dict[str, Callable[[Tensor], Tensor]] = {
    "RBF": lambda r: (-0.5 * r.square()).exp(),
    "Matérn 5/2": lambda r: (1 + math.sqrt(5) * r + 5 / 3 * r.square()) * (-math.sqrt(5) * r).exp(),
    "Matérn 3/2": lambda r: (1 + math.sqrt(3) * r) * (-math.sqrt(3) * r).exp(),
}
# Rows that kernels and starts are compared on, and rows that the best one's hyperparameters are learned from;
# the answer is conditioned on all rows.
COMPARED_ROWS, LEARNING_ROWS = 700, 2000
# First length scales, in standard deviations of the features.
STARTS = (1.0, 4.0)
ITERATIONS = 60
_ROWS = 2048


def tuned_process(split: Split, seed: int, *, device: str = "cpu") -> Gaussians:
    """The kernel and start with the largest marginal likelihood on some rows, then learned from more of them.

    Rows and targets are standardised; predictive variances include noise.
    """
    of_x, mean, std = StandardScaler().fit(split.X), split.y.mean(), split.y.std()
    x, x_test, y = (
        torch.from_numpy(values).to(device)
        for values in (of_x.transform(split.X), of_x.transform(split.X_test), (split.y - mean) / std)
    )
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed)).to(device)
    few, some = order[:COMPARED_ROWS], order[:LEARNING_ROWS]
    candidates = [
        _maximized(x[few], y[few], k, _first(x, start)) for k in KERNELS.values() for start in STARTS
    ]
    _, kernel, point = min(candidates, key=lambda each: each[0])
    _, _, point = _maximized(x[some], y[some], kernel, point)
    answers, variance = conditioned(x, y, x_test, kernel, torch.from_numpy(point).to(x))
    return Gaussians(mean + std * answers, std * np.sqrt(variance))


def _first(x: Tensor, length: float) -> Array:
    return np.array([math.log(length)] * x.shape[1] + [0.0, math.log(0.1)])


def _maximized(
    x: Tensor, y: Tensor, kernel: Callable[[Tensor], Tensor], first: Array
) -> tuple[float, Callable[[Tensor], Tensor], Array]:
    """Least −log p(y|x) over log length scales, log amplitude and log noise variance, and where it lies."""
    d = x.shape[1]
    bounds = [(math.log(0.05), math.log(1e3))] * d + [(math.log(1e-2), math.log(1e3)), (math.log(1e-6), 1.0)]
    minimum = minimize(
        lambda point: negative_log_likelihood(x, y, kernel, point),
        first,
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": ITERATIONS},
    )
    return float(minimum.fun), kernel, minimum.x


def negative_log_likelihood(
    x: Float[Tensor, "n d"], y: Float[Tensor, " n"], kernel: Callable[[Tensor], Tensor], point: Array
) -> tuple[float, Array]:
    """−log N(y; 0, K) and its gradient ½·tr((K⁻¹ − ααᵀ)·dK) with α = K⁻¹y."""
    theta = torch.from_numpy(point).to(x.device).requires_grad_()
    matrix = _covariance(x, x, kernel, theta) + theta[-1].exp() * torch.eye(len(x)).to(x)
    factor, failed = torch.linalg.cholesky_ex(matrix.detach())
    if int(failed):
        return 1e10, np.zeros_like(point)
    alpha = torch.cholesky_solve(y.unsqueeze(1), factor)
    slope = torch.cholesky_inverse(factor) - alpha @ alpha.mT
    (gradient,) = torch.autograd.grad(0.5 * (slope * matrix).sum(), theta)
    value = 0.5 * y @ alpha.squeeze(1) + factor.diagonal().log().sum() + 0.5 * len(y) * math.log(2 * math.pi)
    return float(value), gradient.cpu().numpy()


def _covariance(x: Tensor, z: Tensor, kernel: Callable[[Tensor], Tensor], theta: Tensor) -> Tensor:
    x, z = (rows / theta[:-2].exp() for rows in (x, z))
    squares = x.square().sum(1, keepdim=True) + z.square().sum(1) - 2 * x @ z.mT
    # Where rows repeat, the gradient of the square root would be infinite.
    return theta[-2].exp() * kernel(squares.clamp_min(1e-12).sqrt())


@torch.no_grad()
def conditioned(
    x: Tensor, y: Tensor, x_test: Tensor, kernel: Callable[[Tensor], Tensor], theta: Tensor
) -> tuple[Array, Array]:
    """Mean and variance, with noise, of the targets of test rows, given all training rows."""
    matrix = _covariance(x, x, kernel, theta)
    matrix.diagonal().add_(theta[-1].exp())
    factor = torch.linalg.cholesky(matrix)
    del matrix
    alpha = torch.cholesky_solve(y.unsqueeze(1), factor)
    means, variances = [], []
    for part in x_test.split(_ROWS):
        cross = _covariance(x, part, kernel, theta)
        means.append((cross.mT @ alpha).squeeze(1))
        explained = torch.linalg.solve_triangular(factor, cross, upper=False).square().sum(0)
        variances.append(theta[-2].exp() + theta[-1].exp() - explained)
    return torch.cat(means).cpu().numpy(), torch.cat(variances).clamp_min(1e-12).cpu().numpy()


# ---- NGBoost

DEPTHS = (3, 5)
RATE, TREES, PATIENCE, HELD = 0.04, 2000, 50, 0.1


def tuned_ngboost(split: Split, seed: int) -> Gaussians:
    """The depth and the number of trees with the best likelihood of held-out rows, then fitted to all."""
    from ngboost import NGBRegressor

    order = np.random.default_rng(seed).permutation(len(split.y))
    held_out, kept = np.split(order, [max(1, round(HELD * len(order)))])
    tried = []
    for depth in DEPTHS:
        model = NGBRegressor(**_options(depth, TREES, seed))
        model.fit(
            split.X[kept], split.y[kept], split.X[held_out], split.y[held_out], early_stopping_rounds=PATIENCE
        )
        tried.append((float(model.evals_result["val"]["LOGSCORE"][model.best_val_loss_itr]), depth, model))
    _, depth, best = min(tried, key=lambda each: each[0])
    final = NGBRegressor(**_options(depth, best.best_val_loss_itr + 1, seed)).fit(split.X, split.y)
    answer = final.pred_dist(split.X_test)
    return Gaussians(answer.params["loc"], answer.params["scale"])


def _options(depth: int, trees: int, seed: int) -> dict[str, Any]:
    from ngboost.learners import default_tree_learner
    from sklearn.base import clone

    learner = clone(default_tree_learner).set_params(max_depth=depth)
    return {
        "Base": learner,
        "n_estimators": trees,
        "learning_rate": RATE,
        "random_state": seed,
        "verbose": False,
    }
