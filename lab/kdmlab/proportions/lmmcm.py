"""LMMCM, the baseline of the table: learning from label proportions by mutual contamination models.

C. Scott and J. Zhang, *Learning from label proportions: a mutual contamination framework* (NeurIPS 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import softplus

from kdmlab.common.checks import bad_argument

Array = NDArray[Any]

PENALTIES = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
# Added to the kernel matrix's diagonal: with repeated rows it would have no Cholesky factor.
_JITTER = 1e-8
_ROWS = 4096
# Only the gradient ends a minimisation: the loss has long flat valleys.
_LBFGS = {"maxiter": 500, "maxfun": 10_000, "gtol": 1e-6, "ftol": 0.0}


class LMMCM:
    """A kernel machine f = Kβ that minimises an unbiased estimate of the balanced logistic risk.

    Bags are paired, the lowest share γ⁻ with the highest γ⁺, the next with the next. With Δ = γ⁺ − γ⁻ the
    class distributions of a pair are P₁ = ((1−γ⁻)P⁺ − (1−γ⁺)P⁻)/Δ and P₀ = (γ⁺P⁻ − γ⁻P⁺)/Δ, which turns the
    risk into means over bags. Pairs weigh as Δ², the penalty is λβᵀKβ, the kernel RBF with γ = 1/(d·var X),
    and λ has the smallest estimate of the risk in cross-validation over bags.

    Args:
        penalties: the λ to choose from.
        folds: of the cross-validation.
        device: where the kernel matrix lies.
        random_state: seed of the folds.

    Attributes:
        penalty_: the chosen λ.
        losses_: the cross-validated loss of every λ, infinite where a fold failed.
    """

    def __init__(
        self,
        *,
        penalties: Sequence[float] = PENALTIES,
        folds: int = 5,
        device: str = "cpu",
        random_state: int = 0,
    ) -> None:
        self.penalties, self.folds = tuple(penalties), folds
        self.device, self.random_state = device, random_state

    def fit(self, X: Array, bags: Array, share: Array) -> LMMCM:
        """Fits to rows `(n, d)`, the bag of each `(n,)`, and every bag's share of positives `(n_bags,)`."""
        if not ((share >= 0) & (share <= 1)).all():
            raise ValueError(bad_argument("share", "values in [0, 1]", share[(share < 0) | (share > 1)][0]))
        x = torch.from_numpy(np.array(X, dtype=np.float64)).to(self.device)
        self._x, self._scale = x, 1 / (x.shape[1] * float(x.var(unbiased=False)))
        kernel = self._kernel(x)
        kernel.diagonal().add_(_JITTER)
        factor = torch.linalg.cholesky(kernel)
        del kernel
        folds = self._fold_coefficients(bags, share)
        everything = coefficients(bags, share, np.arange(len(share)))
        self.losses_ = self._validate(factor, folds)
        self.penalty_ = self.penalties[int(np.argmin(self.losses_))]
        solution = self._solve(factor, [everything], [self.penalty_])
        # f = Kβ = La where a = Lᵀβ.
        self._beta = torch.linalg.solve_triangular(factor.mT, solution, upper=True)
        return self

    def decision_function(self, X: Array) -> Array:
        """f(x) of every row: the larger, the likelier positive."""
        x = torch.from_numpy(np.array(X, dtype=np.float64)).to(self.device)
        return (
            torch.cat([self._kernel(part) @ self._beta for part in x.split(_ROWS)]).squeeze(1).cpu().numpy()
        )

    def _kernel(self, x: Tensor) -> Float[Tensor, "n m"]:
        product = x @ self._x.mT
        squares = x.square().sum(1, keepdim=True) + self._x.square().sum(1) - 2 * product
        return squares.clamp_min_(0).mul_(-self._scale).exp_()

    # ---- cross-validation

    def _fold_coefficients(self, bags: Array, share: Array) -> list[tuple[Array, Array]]:
        """Loss coefficients of the bags to learn from and of those held out, for every fold that has any."""
        order = np.random.default_rng(self.random_state).permutation(len(share))
        pairs = []
        for held_out in np.array_split(order, self.folds):
            kept = np.setdiff1d(order, held_out)
            both = coefficients(bags, share, kept), coefficients(bags, share, held_out)
            if all(np.any(part) for part in both):
                pairs.append(both)
        return pairs

    def _validate(self, factor: Tensor, folds: list[tuple[Array, Array]]) -> Array:
        """The mean held-out loss of every λ over all folds."""
        if not folds:
            return np.zeros(len(self.penalties))
        count = len(self.penalties)
        train = [kept for kept, _ in folds for _ in range(count)]
        solutions = self._solve(factor, train, list(self.penalties) * len(folds))
        held_out = self._stacked([held_out for _, held_out in folds for _ in range(count)])
        losses = _loss(factor @ solutions, held_out).reshape(len(folds), count).mean(0)
        return torch.where(torch.isfinite(losses), losses, torch.inf).cpu().numpy()

    def _solve(self, factor: Tensor, columns: list[Array], penalties: list[float]) -> Float[Tensor, "n c"]:
        """The minimiser a of every column, in coordinates where the penalty is λ‖a‖²."""
        weights = self._stacked(columns).unbind(-1)
        return torch.stack([_minimum(factor, *each) for each in zip(weights, penalties, strict=True)], 1)

    def _stacked(self, columns: list[Array]) -> Float[Tensor, "2 n c"]:
        return torch.from_numpy(np.stack(columns, -1)).to(self._x)


def _minimum(factor: Float[Tensor, "n n"], weights: Float[Tensor, "2 n"], penalty: float) -> Tensor:
    """The minimiser of the loss of f = La plus λ‖a‖²."""

    def objective(point: Array) -> tuple[float, Array]:
        a = torch.from_numpy(point).to(factor)
        f = factor @ a
        value = _loss(f, weights) + penalty * a.square().sum()
        return float(value), (factor.mT @ _slope(f, weights) + 2 * penalty * a).cpu().numpy()

    start = np.zeros(len(factor))
    minimum = minimize(objective, start, jac=True, method="L-BFGS-B", options=_LBFGS)
    return torch.from_numpy(minimum.x).to(factor)


def coefficients(bags: Array, share: Array, chosen: Array) -> Array:
    """Coefficients of ℓ(f, +1) and ℓ(f, −1), `(2, n)`, for every row; zeros outside the chosen bags.

    An odd bag in the middle has no partner; a pair with equal shares tells nothing and weighs nothing.

    >>> coefficients(np.array([0, 0, 1]), np.array([0.25, 0.75]), np.array([0, 1]))
    array([[-0.25,  -0.25,  1.5 ],
           [ 0.75,   0.75, -0.5 ]])
    """
    result = np.zeros((2, len(bags)))
    ordered = chosen[np.argsort(share[chosen], kind="stable")]
    half = len(ordered) // 2
    low, high = ordered[:half], ordered[::-1][:half]
    gap = share[high] - share[low]
    if not gap.any():
        return result
    for below, above, delta, weight in zip(low, high, gap, gap**2 / (gap**2).sum(), strict=True):
        if delta > 0:
            up, down = bags == above, bags == below
            result[:, up] = weight / delta / up.sum() * np.array([[1 - share[below]], [-share[below]]])
            result[:, down] = weight / delta / down.sum() * np.array([[share[above] - 1], [share[above]]])
    return result


def _loss(f: Float[Tensor, "n *c"], weights: Float[Tensor, "2 n *c"]) -> Float[Tensor, "*c"]:
    positive, negative = weights
    return (positive * softplus(-f) + negative * softplus(f)).sum(0)


def _slope(f: Float[Tensor, "n *c"], weights: Float[Tensor, "2 n *c"]) -> Float[Tensor, "n *c"]:
    positive, negative = weights
    return negative * torch.sigmoid(f) - positive * torch.sigmoid(-f)
