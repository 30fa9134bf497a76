"""The committee of `KDMRegressor` with a dense head: networks answer with a mixture of the residual."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit import KDM, RBF, KDMRegressor
from kdmkit.nn import MLPEnsemble, Trend
from kdmkit.training import FitOptions, Rows, fit
from kdmlab.regression import cross_fit
from kdmlab.regression.data import Split
from kdmlab.regression.scores import Mixtures

MEMBERS, COMPONENTS = 8, 5
# Standard deviation of the first components, relative to that of the residuals.
_FIRST_STD = 0.7


def committee_dense(split: Split, seed: int) -> Mixtures:
    """Σ_k w_k(x)·N(f(x) + c_k(x), s_k²(x) + v(x)): f and v of the committee, the others of the dense head.

    The s_k are at least half the smallest gap between distinct targets, as those of the KDM.
    """
    model = KDMRegressor(memory=False, n_components=1, device="cpu", random_state=seed)
    trend = model.fit(split.X, split.y).module_.trend
    assert isinstance(trend, Trend)
    X, y, x = (torch.from_numpy(part) for part in (split.X, split.y, split.X_test))
    scale = float(trend.y.scale)
    unit = cross_fit.min_target_std(y, scale)
    residuals = cross_fit.committee_residuals(model, X, y.unsqueeze(1)) / torch.tensor(unit / scale)
    head = _fitted_head(trend.x(X).float(), residuals, cross_fit.fit_seed(seed))
    with torch.no_grad():
        mean, excess = trend(x)
        answers = head(trend.x(x).float()).mean(1).double()
    log_weights, shifts, variances = mixture(answers)
    std = (unit**2 * variances + excess).sqrt().unsqueeze(-1)
    components = (mean + unit * shifts).unsqueeze(-1)
    return Mixtures(KDM(components, None, RBF.from_std(std), log_weights=log_weights))


def mixture(
    answers: Float[Tensor, "*batch outputs"],
) -> tuple[Float[Tensor, "*batch k"], Float[Tensor, "*batch k"], Float[Tensor, "*batch k"]]:
    """Log-weights, shifts and variances of a residual, in units of its least standard deviation."""
    logits, shifts, log_stds = answers.chunk(3, -1)
    return logits.log_softmax(-1), shifts, 1 + (2 * log_stds).exp()


def mixture_loss(
    answers: Float[Tensor, "*batch outputs"], r: Float[Tensor, "*rows 1"]
) -> Float[Tensor, "*batch"]:
    """−log p(r), up to a constant."""
    log_weights, shifts, variances = mixture(answers)
    return -torch.logsumexp(log_weights - 0.5 * ((r - shifts).square() / variances + variances.log()), -1)


def _fitted_head(x: Float[Tensor, "n d"], r: Float[Tensor, "n 1"], seed: int) -> MLPEnsemble:
    """Networks that hold out rows of their own and stop early, trained like the committee.

    All members start with the same components, so that answers can be averaged.
    """
    batch = cross_fit.trend_batch(len(x))
    options: dict[str, Any] = {
        "batch_size": batch,
        "max_epochs": cross_fit.trend_epochs(len(x), batch),
        "schedule": "constant",
        "patience": 40,
        "seed": seed,
        "device": "cpu",
    }

    def run(objective: Any, rows: Rows, validation: Rows, **changes: Any) -> list[dict[str, float]]:
        return fit(objective, rows, validation, options=FitOptions(**options, **changes))

    std = max(1.0, float(r.std()))
    first = [
        torch.zeros(COMPONENTS),
        torch.linspace(-std, std, COMPONENTS),
        torch.full((COMPONENTS,), math.log(_FIRST_STD * std)),
    ]
    return cross_fit.fit_ensemble(
        x, r, start=torch.cat(first), n_members=MEMBERS, loss=mixture_loss, seed=seed, run=run
    )
