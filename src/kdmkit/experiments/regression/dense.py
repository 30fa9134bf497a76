"""The committee of `KDMRegressor` with a dense head: networks answer with the Gaussian of the residual."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit.estimators import KDMRegressor
from kdmkit.estimators.common import cross_fit, targets
from kdmkit.experiments.regression.data import Split
from kdmkit.experiments.regression.scores import Gaussians
from kdmkit.nn import JointLayer, MLPEnsemble, Trend
from kdmkit.training import FitOptions, Rows, fit

MEMBERS = 8


class CommitteeWithDenseHead(KDMRegressor):
    """A regressor that also fits networks to the very rows and residuals that its joint KDM learns from."""

    head_: MLPEnsemble

    def _residual_layer(self, x: Tensor, r: Tensor, weights: Tensor | None) -> JointLayer:
        self.head_ = _fitted_head(x, r, self._seed)
        return super()._residual_layer(x, r, weights)


def committee_dense(split: Split, seed: int) -> Gaussians:
    """N(f(x) + shift(x), scale²(x) + v(x)): f and v of the committee, shift and scale of the dense head.

    The scale is at least half the smallest gap between distinct targets, as for components of the KDM.
    """
    model = CommitteeWithDenseHead(memory=False, n_components=1, device="cpu", random_state=seed)
    trend = model.fit(split.X, split.y).module_.trend
    assert isinstance(trend, Trend)
    x = torch.from_numpy(split.X_test)
    with torch.no_grad():
        mean, excess = trend(x)
        shift, variance = moments(model.head_(trend.x(x).float()).mean(1).double())
    unit = float(targets.min_target_std(torch.from_numpy(split.y).unsqueeze(1)))
    mean = mean.squeeze(1) + unit * shift
    return Gaussians(mean.numpy(), (unit**2 * variance + excess.squeeze(1)).sqrt().numpy())


def moments(answers: Float[Tensor, "*batch 2"]) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """Shift and variance of a residual, in units of its least standard deviation: the variance exceeds 1."""
    shift, log_scale = answers.unbind(-1)
    return shift, 1 + (2 * log_scale).exp()


def gaussian_loss(answers: Float[Tensor, "*batch 2"], r: Float[Tensor, "*rows 1"]) -> Float[Tensor, "*batch"]:
    """−log N(r; shift, variance), up to a constant."""
    shift, variance = moments(answers)
    return 0.5 * ((r.squeeze(-1) - shift).square() / variance + variance.log())


def _fitted_head(x: Float[Tensor, "n d"], r: Float[Tensor, "n 1"], seed: int) -> MLPEnsemble:
    """Networks that hold out rows of their own and stop early, trained like the committee."""
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
        # A share of the first loss is no measure of improvement where that loss may be negative.
        return fit(
            objective, rows, validation, options=FitOptions(**options, **changes | {"min_improvement": 0.0})
        )

    first = torch.tensor([0.0, math.log(max(1.0, float(r.std())))])
    fitted = cross_fit.fit_ensemble(
        x,
        r,
        None,
        start=first,
        n_members=MEMBERS,
        loss=gaussian_loss,
        generator=torch.Generator().manual_seed(seed),
        run=run,
    )
    return fitted.ensemble.eval()
